// What server, socket and SSE add to a token: a fake engine emits, a client reads.
//   serve_overhead [tokens]     prints one JSON object
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "tests/unit/serve/fixture.h"

using namespace atlas;
using namespace atlas::serve::testing;
using Clock = std::chrono::steady_clock;

namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

size_t count_events(std::string_view text) {
  size_t events = 0;
  for (size_t at = text.find("data: "); at != text.npos; at = text.find("data: ", at + 6)) ++events;
  return events;
}

/// Emits a token when the client has read the last one: the time of a round is what a token waits
/// between engine and client.
class PingPongEngine : public engine::Engine {
 public:
  std::shared_ptr<const engine::ModelInfo> model() const override { return model_; }
  Result<engine::RequestId> submit(engine::RequestSpec, engine::UpdateSink sink) override {
    const std::lock_guard lock(mutex_);
    sink_ = std::move(sink);
    ready_.notify_all();
    return engine::RequestId{1};
  }
  void cancel(engine::RequestId) override {}
  engine::EngineStats stats() const override {
    engine::EngineStats stats;
    stats.state = engine::EngineState::kServing;
    return stats;
  }
  void wait_for_request() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return sink_ != nullptr; });
  }
  void emit(bool last) {
    engine::Update update;
    update.text = " word";
    update.tokens = {'w'};
    if (last) update.finish = engine::Finish{};
    sink_(1, std::move(update));
  }

 private:
  std::shared_ptr<const engine::ModelInfo> model_ = make_model({.chat_template = kTemplate});
  std::mutex mutex_;
  std::condition_variable ready_;
  engine::UpdateSink sink_;
};

struct Throughput {
  double wall_us, cpu_us;
};

Throughput throughput(size_t tokens) {
  Fixture fixture([](serve::ServerOptions& options) { options.limits.backlog_bytes = 1 << 30; });
  const std::vector<std::string> words(tokens, " word");
  std::mutex mutex;
  fixture.engine->set_script([&](const engine::RequestSpec& spec) { return speak(words, spec); });
  HttpClient client = fixture.client();
  const std::string request =
      HttpClient::text_of("POST", "/v1/chat/completions",
                          R"({"messages":[{"role":"user","content":"x"}],"stream":true})");
  const double cpu = cpu_seconds();
  const auto begin = Clock::now();
  client.send(request);
  size_t events = 0;
  client.read_head();
  std::string chunk;
  while (client.read_chunk(chunk) && !chunk.empty()) events += count_events(chunk);
  const double wall = std::chrono::duration<double>(Clock::now() - begin).count();
  if (events < tokens) std::fprintf(stderr, "only %zu of %zu events came\n", events, tokens);
  const double per_token = 1e6 / static_cast<double>(tokens);
  return {wall * per_token, (cpu_seconds() - cpu) * per_token};
}

double latency_us(size_t tokens) {
  Fixture fixture;
  auto engine = std::make_shared<PingPongEngine>();
  fixture.control.engines_ = {engine};
  HttpClient client = fixture.client();
  client.send(HttpClient::text_of("POST", "/v1/completions", R"({"prompt":"x","stream":true})"));
  engine->wait_for_request();
  std::string chunk;
  engine->emit(false);
  client.read_head();
  client.read_chunk(chunk);
  const auto begin = Clock::now();
  for (size_t i = 0; i < tokens; ++i) {
    engine->emit(false);
    client.read_chunk(chunk);
  }
  const double wall = std::chrono::duration<double>(Clock::now() - begin).count();
  engine->emit(true);
  while (client.read_chunk(chunk) && !chunk.empty()) {
  }
  return wall * 1e6 / static_cast<double>(tokens);
}

long resident_kib() {
  long total = 0;
  long resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file != nullptr) {
    if (std::fscanf(file, "%ld %ld", &total, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/// Growth of resident memory over `requests`, after as many to warm up; streams on new connections.
long growth_kib(size_t requests) {
  Fixture fixture;
  const std::vector<std::string> words(50, " word");
  fixture.engine->set_script([&](const engine::RequestSpec& spec) { return speak(words, spec); });
  long before = 0;
  for (size_t i = 0; i < 2 * requests; ++i) {
    if (i == requests) before = resident_kib();
    HttpClient client = fixture.client();
    client.post("/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"x"}],"stream":true})");
  }
  return resident_kib() - before;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t tokens = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 100'000;
  const double latency = latency_us(tokens / 10 + 1);
  const Throughput whole = throughput(tokens);
  const long growth = growth_kib(2000);
  std::printf(
      "{\"tokens\":%zu,\"latency_us\":%.2f,\"wall_us_per_token\":%.2f,"
      "\"cpu_us_per_token\":%.2f,\"growth_kib_over_2000_requests\":%ld}\n",
      tokens, latency, whole.wall_us, whole.cpu_us, growth);
  return 0;
}
