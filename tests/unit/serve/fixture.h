// What the tests of serve share: a byte-sized model, a control without a daemon, a running server.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/serve/control.h"
#include "daemon/serve/options.h"
#include "daemon/serve/server.h"
#include "tests/support/fake_engine.h"
#include "tests/support/http_client.h"

namespace atlas::serve::testing {

using atlas::testing::Beat;
using atlas::testing::events_of;
using atlas::testing::FakeEngine;
using atlas::testing::HttpAnswer;
using atlas::testing::HttpClient;

// Ids 0..255 are the bytes; then come these.
constexpr engine::TokenId kImStart = 256, kImEnd = 257, kThink = 258, kThinkEnd = 259;
constexpr uint32_t kVocab = 260;
constexpr uint32_t kContext = 2048;

struct ModelOptions {
  std::string id = "test/model";
  /// Empty: no chat template.
  std::string chat_template;
  bool tokenizer = true;
};
/// With messages, tools, tool_calls, enable_thinking and reasoning_content.
extern const char* const kTemplate;
std::shared_ptr<const engine::ModelInfo> make_model(const ModelOptions& options);

/// One beat a piece: bytes of the text as tokens, or one of the tags above. Then the end.
std::vector<Beat> speak(const std::vector<std::string>& pieces, const engine::RequestSpec& spec,
                        std::chrono::microseconds wait = std::chrono::microseconds(0));

class FakeControl : public Control {
 public:
  std::vector<std::shared_ptr<engine::Engine>> engines() const override { return engines_; }
  std::string status_json() const override { return R"({"version":"test"})"; }
  std::string plugins_json() const override { return R"({"plugins":[]})"; }
  void plan(std::string request, ControlReply reply) override;
  void swap(std::string request, ControlReply reply) override;
  void reload(ControlReply reply) override { reply(std::string(R"({"reloaded":true})")); }
  void drain(std::string request, ControlReply reply) override;
  bool accepting() const override { return accepting_; }

  std::vector<std::shared_ptr<engine::Engine>> engines_;
  std::atomic<bool> accepting_ = true;
};

/// A server on a socket of its own in a temporary folder, with one fake engine.
class Fixture {
 public:
  explicit Fixture(const std::function<void(ServerOptions&)>& change = {},
                   const ModelOptions& model = {.chat_template = kTemplate});
  ~Fixture();
  HttpClient client() const { return HttpClient::unix_socket(socket_path()); }
  HttpClient tcp_client() const { return HttpClient::tcp(server->tcp_port()); }
  std::string socket_path() const { return folder + "/s"; }

  std::string folder;
  std::shared_ptr<FakeEngine> engine;
  FakeControl control;
  std::unique_ptr<Server> server;
};

/// Waits up to five seconds for the condition.
bool eventually(const std::function<bool()>& condition);

}  // namespace atlas::serve::testing
