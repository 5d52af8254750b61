// A server with a fake engine for clients in other languages: prints where it listens as one line
// of JSON and ends with its standard input. The answer to a chat says what was asked, word by word.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/unit/serve/fixture.h"

using namespace atlas;
using namespace atlas::serve::testing;

namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find(' ', begin + 1);
    words.push_back(text.substr(begin, end - begin));
    if (end == text.npos) break;
    begin = end;
  }
  return words;
}

// "fail" in a prompt fails in mid-answer, "think" reasons first, "weather" calls a tool twice, all
// others are repeated.
std::vector<Beat> answer(const engine::RequestSpec& spec) {
  std::string prompt;
  for (const engine::TokenId id : spec.prompt) {
    if (id < 256) prompt += static_cast<char>(id);
  }
  std::vector<std::string> pieces = words_of("You said: " + prompt);
  if (prompt.find("think") != prompt.npos) {
    pieces.insert(pieces.begin(), {"<think>", "\nhm", "m\n", "</think>", "\n\n"});
  }
  if (prompt.find("weather") != prompt.npos) {
    pieces = {"I",
              " look.\n\n<tool_",
              "call>{\"name\": \"weather\", ",
              "\"arguments\": {\"place\": \"",
              "größer 🙂 </tool_call>",
              "\"}}\n</tool",
              "_call>\n<tool_call>",
              "{\"name\": \"weather\", ",
              "\"arguments\": {\"days\": 2}}</tool_call>"};
  }
  std::vector<Beat> beats = speak(pieces, spec, std::chrono::microseconds(500));
  if (spec.prompt_logprobs) {
    for (size_t i = 1; i < spec.prompt.size(); ++i) {
      beats[0].update.prompt.push_back({spec.prompt[i], -1.0f, 2, {}});
    }
  }
  if (prompt.find("fail") != prompt.npos) {
    beats.back().update.finish->reason = engine::FinishReason::kError;
    beats.back().update.finish->error = internal_error("failed as asked");
  }
  return beats;
}

}  // namespace

int main() {
  // A comment is enough to say how calls are written.
  const std::string chat_template = std::string(kTemplate) + "{# <tool_call> #}";
  Fixture fixture(
      [](serve::ServerOptions& options) {
        options.tcp = serve::TcpAddress{"127.0.0.1", 0};
        options.api_key = "test-key";
      },
      {.chat_template = chat_template});
  fixture.engine->set_script(answer);
  std::printf("{\"socket\": \"%s\", \"tcp\": \"127.0.0.1:%u\", \"key\": \"test-key\"}\n",
              fixture.socket_path().c_str(), static_cast<unsigned>(fixture.server->tcp_port()));
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
