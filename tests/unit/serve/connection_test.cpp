// Connections that behave, and connections that do not.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "tests/unit/serve/fixture.h"

using namespace atlas;
using namespace atlas::serve::testing;
using namespace std::chrono_literals;
using Json = nlohmann::json;

TEST_SUITE_BEGIN("serve");

namespace {

const std::string kComplete = HttpClient::text_of("POST", "/v1/completions", R"({"prompt":"x"})");
const std::string kStream =
    HttpClient::text_of("POST", "/v1/completions", R"({"prompt":"x","stream":true})");

// An answer that goes on until it is cancelled.
std::vector<Beat> endless(const engine::RequestSpec& spec, std::chrono::microseconds wait,
                          const std::string& word = "word ") {
  auto beats = speak(std::vector<std::string>(10'000, word), spec, wait);
  beats.pop_back();
  return beats;
}

}  // namespace

TEST_CASE("connection: requests follow one another, pipelined ones in order") {
  Fixture fixture;
  HttpClient client = fixture.client();
  for (int i = 0; i < 5; ++i) {
    client.send(kComplete);
    CHECK(client.read_answer().status == 200);
  }
  client.send(kComplete + HttpClient::text_of("GET", "/v1/models", "") + kStream + kComplete +
              HttpClient::text_of("GET", "/nowhere", ""));
  CHECK(client.read_answer().body.find("text_completion") != std::string::npos);
  CHECK(client.read_answer().body.find("\"list\"") != std::string::npos);
  CHECK(events_of(client.read_answer().body).back() == "[DONE]");
  CHECK(client.read_answer().body.find("Hello!") != std::string::npos);
  CHECK(client.read_answer().status == 404);
}

TEST_CASE("connection: a request may come byte by byte, and in chunks") {
  Fixture fixture;
  HttpClient client = fixture.client();
  for (const char c : kComplete) client.send({&c, 1});
  CHECK(client.read_answer().status == 200);
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5\r\n{\"pro\r\n");
  std::this_thread::sleep_for(10ms);
  client.send("a\r\nmpt\": \"x\"}\r\n0\r\n\r\n");
  CHECK(client.read_answer().status == 200);
}

TEST_CASE("connection: what asks to go on before its body is told to") {
  Fixture fixture;
  HttpClient client = fixture.client();
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
      "Content-Length: 14\r\n\r\n");
  CHECK(client.read_head().status == 100);
  client.send(R"({"prompt":"x"})");
  CHECK(client.read_answer().status == 200);
  // A request that will be refused is told before it sends its body.
  client.send(
      "POST /nowhere HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
      "Content-Length: 14\r\n\r\n");
  CHECK(client.read_answer().status == 404);
}

TEST_CASE("connection: HTTP/1.0 and Connection: close end the connection behind the answer") {
  Fixture fixture;
  HttpClient old = fixture.client();
  old.send(
      "POST /v1/completions HTTP/1.0\r\nContent-Length: 28\r\n\r\n"
      R"({"prompt":"x","stream":true})");
  const HttpAnswer stream = old.read_answer();
  CHECK_FALSE(stream.headers.contains("transfer-encoding"));
  CHECK(events_of(stream.body).back() == "[DONE]");
  HttpClient closing = fixture.client();
  CHECK(closing.get("/health", "Connection: close\r\n").status == 200);
  CHECK(closing.at_end());
}

TEST_CASE("connection: what is not HTTP gets a 400 and the connection ends") {
  Fixture fixture;
  const std::vector<std::string> garbage = {
      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
      std::string(300, '\0'),
      "GET\r\n\r\n",
      "GET / HTTP/1.1\r\nbad header\r\n\r\n",
      "GET / HTTP/1.1\r\n\r\n",  // no Host
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
      "GET relative HTTP/1.1\r\nHost: x\r\n\r\n",
  };
  for (const std::string& bytes : garbage) {
    HttpClient client = fixture.client();
    client.send(bytes);
    const HttpAnswer answer = client.read_answer();
    CHECK_MESSAGE(answer.status == 400, bytes);
    CHECK(Json::parse(answer.body)["error"]["code"] == "malformed_http");
    CHECK(client.at_end());
  }
  HttpClient newer = fixture.client();
  newer.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  CHECK(newer.read_answer().status == 505);
  HttpClient random = fixture.client();
  uint32_t state = 1;
  std::string noise;
  for (int i = 0; i < 100'000; ++i) {
    state = state * 1664525 + 1013904223;
    noise += static_cast<char>(state >> 24);
  }
  random.send(noise);
  random.close();
  CHECK(fixture.client().get("/health").status == 200);
}

TEST_CASE("connection: headers and bodies beyond the limits have their own answers") {
  Fixture fixture([](serve::ServerOptions& options) {
    options.limits.header_bytes = 4096;
    options.limits.body_bytes = 10'000;
  });
  HttpClient headers = fixture.client();
  headers.send("GET /health HTTP/1.1\r\nHost: x\r\nX: " + std::string(1 << 20, 'a'));
  CHECK(headers.read_answer().status == 431);
  CHECK(headers.at_end());
  HttpClient many = fixture.client();
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += "A" + std::to_string(i) + ": b\r\n";
  many.send("GET /health HTTP/1.1\r\nHost: x\r\n" + lines + "\r\n");
  CHECK(many.read_answer().status == 431);
  // Told from the length alone, and readable though the body is still being sent.
  HttpClient body = fixture.client();
  body.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  body.send(std::string(1'000'000, ' '));
  const HttpAnswer answer = body.read_answer();
  CHECK(answer.status == 413);
  CHECK(Json::parse(answer.body)["error"]["message"].get<std::string>().find("10000") !=
        std::string::npos);
  HttpClient chunks = fixture.client();
  chunks.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) chunks.send("400\r\n" + std::string(1024, ' ') + "\r\n");
  CHECK(chunks.read_answer().status == 413);
}

TEST_CASE("connection: bodies together are bounded too") {
  Fixture fixture([](serve::ServerOptions& options) {
    options.limits.body_bytes = 1000;
    options.limits.bodies_bytes = 2500;
  });
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n";
  HttpClient first = fixture.client();
  HttpClient second = fixture.client();
  first.send(head);
  second.send(head);
  std::this_thread::sleep_for(50ms);
  HttpClient third = fixture.client();
  third.send(head);
  const HttpAnswer answer = third.read_answer();
  CHECK(answer.status == 503);
  CHECK(answer.headers.contains("retry-after"));
  first.close();
  std::this_thread::sleep_for(50ms);
  CHECK(fixture.client()
            .post("/v1/completions", R"({"prompt":"x"})" + std::string(900, ' '))
            .status == 200);
}

TEST_CASE("connection: slow headers and bodies time out, idle connections are closed") {
  Fixture fixture([](serve::ServerOptions& options) {
    options.timeouts.header = 100ms;
    options.timeouts.body = 100ms;
    options.timeouts.idle = 100ms;
  });
  HttpClient headers = fixture.client();
  headers.send("GET /health HTT");
  CHECK(headers.read_answer().status == 408);
  HttpClient body = fixture.client();
  body.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{");
  CHECK(body.read_answer().status == 408);
  HttpClient idle = fixture.client();
  CHECK(idle.get("/health").status == 200);
  CHECK(idle.at_end());
}

TEST_CASE("connection: a client that leaves is cancelled at once, streaming or waiting") {
  Fixture fixture;
  fixture.engine->set_script([](const engine::RequestSpec& spec) { return endless(spec, 1ms); });
  size_t gone = 0;
  for (const std::string& request : {kStream, kComplete}) {
    HttpClient client = fixture.client();
    client.send(request);
    REQUIRE(eventually([&] { return fixture.engine->specs().size() == gone + 1; }));
    client.close();
    ++gone;
    CHECK(eventually([&] { return fixture.engine->cancelled() == gone; }));
  }
  // Before a long prompt's first token, too.
  fixture.engine->set_script([](const engine::RequestSpec& spec) { return endless(spec, 1h); });
  HttpClient client = fixture.client();
  client.send(kStream);
  REQUIRE(eventually([&] { return fixture.engine->specs().size() == 3; }));
  client.close();
  CHECK(eventually([&] { return fixture.engine->cancelled() == 3; }));
  CHECK(fixture.client().get("/metrics").body.find("atlas_clients_gone_total 3\n") !=
        std::string::npos);
}

TEST_CASE("connection: who closes one half of a Unix socket still gets the answer") {
  Fixture fixture;
  fixture.engine->set_script([](const engine::RequestSpec& spec) {
    return speak({"a", "b"}, spec, 30ms);
  });
  HttpClient client = fixture.client();
  client.send(kStream);
  client.half_close();
  const HttpAnswer answer = client.read_answer();
  CHECK(events_of(answer.body).back() == "[DONE]");
  fixture.engine->set_script([](const engine::RequestSpec& spec) { return endless(spec, 1h); });
  HttpClient leaver = fixture.client();
  leaver.send(kStream);
  leaver.half_close();
  REQUIRE(eventually([&] { return fixture.engine->specs().size() == 2; }));
  leaver.close();
  CHECK(eventually([&] { return fixture.engine->cancelled() == 1; }));
}

TEST_CASE("connection: a client that does not read is cut off, and its memory is bounded") {
  Fixture fixture([](serve::ServerOptions& options) { options.limits.backlog_bytes = 100'000; });
  const std::string word(2000, 'x');
  fixture.engine->set_script(
      [&](const engine::RequestSpec& spec) { return endless(spec, 0us, word); });
  HttpClient client = fixture.client();
  client.send(kStream);
  CHECK(eventually([&] { return fixture.engine->cancelled() == 1; }));
  const HttpAnswer answer = client.read_answer();
  CHECK_FALSE(answer.complete);
  CHECK(fixture.client().get("/metrics").body.find("atlas_slow_readers_total 1\n") !=
        std::string::npos);
}

TEST_CASE("connection: a client that stops reading is cut off after a while") {
  Fixture fixture([](serve::ServerOptions& options) { options.timeouts.write = 100ms; });
  fixture.engine->set_script(
      [](const engine::RequestSpec& spec) { return speak({std::string(600'000, 'x')}, spec); });
  HttpClient client = fixture.client();
  client.send(kStream);
  CHECK(eventually([&] {
    return fixture.client().get("/metrics").body.find("atlas_slow_readers_total 1\n") !=
           std::string::npos;
  }));
}

TEST_CASE("connection: a slow reader that reads gets everything") {
  Fixture fixture;
  fixture.engine->set_script([](const engine::RequestSpec& spec) {
    return speak(std::vector<std::string>(300, "\xf0\x9f\x99\x82 "), spec);
  });
  HttpClient client = fixture.client();
  client.send(kStream);
  CHECK(client.read_head().status == 200);
  std::string body;
  std::string chunk;
  while (client.read_chunk(chunk) && !chunk.empty()) {
    body += chunk;
    std::this_thread::sleep_for(200us);
  }
  std::string text;
  for (const std::string& event : events_of(body)) {
    if (event != "[DONE]") text += Json::parse(event)["choices"][0]["text"].get<std::string>();
  }
  CHECK(text.size() == 300 * 5);
}

TEST_CASE("connection: five hundred at once all get their answers") {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  setrlimit(RLIMIT_NOFILE, &limit);
  Fixture fixture;
  std::vector<HttpClient> clients;
  for (int i = 0; i < 500; ++i) clients.push_back(fixture.client());
  for (HttpClient& client : clients) client.send(kStream);
  for (HttpClient& client : clients) {
    const HttpAnswer answer = client.read_answer();
    CHECK(answer.status == 200);
    CHECK(events_of(answer.body).back() == "[DONE]");
  }
}

TEST_CASE("connection: beyond the limit clients are turned away with a reason") {
  Fixture fixture([](serve::ServerOptions& options) { options.limits.connections = 2; });
  HttpClient first = fixture.client();
  HttpClient second = fixture.client();
  CHECK(first.get("/health").status == 200);
  CHECK(second.get("/health").status == 200);
  HttpClient third = fixture.client();
  const HttpAnswer answer = third.read_answer();
  CHECK(answer.status == 503);
  CHECK(Json::parse(answer.body)["error"]["code"] == "connections_full");
  first.close();
  CHECK(eventually([&] { return fixture.client().get("/health").status == 200; }));
}

TEST_CASE("connection: without free descriptors accepting waits and goes on") {
  Fixture fixture;
  HttpClient before = fixture.client();
  CHECK(before.get("/health").status == 200);
  HttpClient waiting = fixture.client();  // its other end is not accepted yet, perhaps
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  rlimit none = old;
  none.rlim_cur = 3;
  HttpClient blocked = [&] {
    HttpClient client = fixture.client();
    return client;
  }();
  CHECK(blocked.get("/health").status == 200);
  // The client's descriptor is made before the limit falls; the server's accept comes after.
  const int spare = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, fixture.socket_path().c_str(), sizeof(address.sun_path) - 1);
  setrlimit(RLIMIT_NOFILE, &none);
  CHECK(connect(spare, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  std::this_thread::sleep_for(150ms);
  const HttpAnswer metrics = before.get("/metrics");
  setrlimit(RLIMIT_NOFILE, &old);
  CHECK(metrics.body.find("atlas_accept_errors_total 0\n") == std::string::npos);
  const std::string request = HttpClient::text_of("GET", "/health", "");
  REQUIRE(send(spare, request.data(), request.size(), 0) > 0);
  char byte = 0;
  pollfd poll_fd{.fd = spare, .events = POLLIN, .revents = 0};
  CHECK(poll(&poll_fd, 1, 5000) == 1);
  CHECK(recv(spare, &byte, 1, 0) == 1);
  CHECK(byte == 'H');
  ::close(spare);
}

TEST_SUITE_END();
