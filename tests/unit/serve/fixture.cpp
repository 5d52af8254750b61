// The byte-sized model and the fake daemon around a real server.
#include "tests/unit/serve/fixture.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "daemon/base/log.h"
#include "daemon/model/chat_template/chat_template.h"
#include "daemon/model/tokenizer/tokenizer.h"
#include "daemon/model/tokenizer/vocabulary.h"

namespace atlas::serve::testing {
namespace {

std::shared_ptr<const model::Tokenizer> byte_tokenizer() {
  model::GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(model::byte_to_letter(static_cast<uint8_t>(byte)));
    vocabulary.token_types.push_back(1);
  }
  for (const char* special : {"<|im_start|>", "<|im_end|>"}) {
    vocabulary.tokens.emplace_back(special);
    vocabulary.token_types.push_back(3);
  }
  for (const char* tag : {"<think>", "</think>"}) {
    vocabulary.tokens.emplace_back(tag);
    vocabulary.token_types.push_back(4);
  }
  vocabulary.eos = kImEnd;
  auto tokenizer = model::Tokenizer::from_gguf(vocabulary);
  ATLAS_CHECK(tokenizer, tokenizer.error().message());
  return std::make_shared<const model::Tokenizer>(std::move(*tokenizer));
}

}  // namespace

const char* const kTemplate =
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}";

std::shared_ptr<const engine::ModelInfo> make_model(const ModelOptions& options) {
  auto model = std::make_shared<engine::ModelInfo>();
  model->id = options.id;
  model->architecture = "llama";
  model->format = "test";
  model->context_tokens = kContext;
  model->vocab = kVocab;
  model->created_unix_s = 1700000000;
  model->generation = 7;
  model->fingerprint = "fp_test";
  model->eos_text = "<|im_end|>";
  model->end_of_generation = {kImEnd};
  if (options.tokenizer) model->tokenizer = byte_tokenizer();
  if (!options.chat_template.empty()) {
    auto parsed = model::ChatTemplate::parse(options.chat_template, "test");
    ATLAS_CHECK(parsed, parsed.error().message());
    model->chat_template = std::make_shared<const model::ChatTemplate>(std::move(*parsed));
  }
  return model;
}

std::vector<Beat> speak(const std::vector<std::string>& pieces, const engine::RequestSpec& spec,
                        std::chrono::microseconds wait) {
  std::vector<Beat> beats;
  uint32_t tokens = 0;
  for (const std::string& piece : pieces) {
    engine::Update update;
    update.text = piece;
    if (piece == "<think>" || piece == "</think>") {
      update.tokens = {piece == "<think>" ? kThink : kThinkEnd};
    } else {
      for (const char c : piece) update.tokens.push_back(static_cast<uint8_t>(c));
    }
    tokens += static_cast<uint32_t>(update.tokens.size());
    if (spec.logprobs) {
      for (const engine::TokenId id : update.tokens) {
        update.logprobs.push_back({id, -0.5f, 1, {{id, -0.5f}, {(id + 1) % 256, -1.5f}}});
      }
    }
    beats.push_back({std::move(update), wait});
  }
  engine::Update last;
  last.finish = engine::Finish{.reason = engine::FinishReason::kStop};
  last.finish->usage = {static_cast<uint32_t>(spec.prompt.size()), 0, tokens};
  beats.push_back({std::move(last), wait});
  return beats;
}

void FakeControl::plan(std::string request, ControlReply reply) {
  // From another thread, as a real plan would come.
  std::thread([request = std::move(request), reply = std::move(reply)] {
    reply(R"({"asked":)" + request + "}");
  }).detach();
}

void FakeControl::swap(std::string, ControlReply reply) {
  reply(Status(Code::kFailedPrecondition, "the new plugin has another ABI"));
}

void FakeControl::drain(std::string, ControlReply reply) {
  accepting_ = false;
  reply(std::string(R"({"draining":true})"));
}

Fixture::Fixture(const std::function<void(ServerOptions&)>& change, const ModelOptions& model) {
  configure_log(LogLevel::kCritical, LogStyle::kPlain);
  char name[] = "/tmp/atlas-serve-XXXXXX";
  ATLAS_CHECK(mkdtemp(name) != nullptr, "no temporary folder");
  folder = name;
  engine = std::make_shared<FakeEngine>(make_model(model), [](const engine::RequestSpec& spec) {
    return speak({"Hel", "lo", "!"}, spec);
  });
  control.engines_.push_back(engine);
  ServerOptions options;
  options.socket_path = socket_path();
  if (change) change(options);
  server = std::make_unique<Server>(std::move(options), control);
  const Status status = server->start();
  ATLAS_CHECK(status.ok(), status.message());
}

Fixture::~Fixture() {
  server.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 500; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

}  // namespace atlas::serve::testing
