#include "tests/support/live_daemon.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/support/arguments.h"

namespace atlas::testing {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

namespace {

const test::OptionText kDevice("--device h200|gb10|strix-hip",
                               "daemons run on the GPU of this machine instead of the CPU");

int listen_on(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  REQUIRE(::listen(fd, 64) == 0);
  return fd;
}

}  // namespace

LiveDaemon::LiveDaemon(Options options) : options_(std::move(options)) {
  if (options_.platform.empty()) options_.platform = test::argument("device");
  if (options_.platform.empty()) options_.platform = "cpu";
  if (options_.own_model) {
    TinyLlama model;
    model.dtype = ATLAS_Q4_1;
    model.embedding_dtype = ATLAS_Q8_0;
    model.max_positions = 2048;
    write_tiny_llama_gguf(model, folder_.file("tiny.gguf"));
  }
  write_settings(options_.yaml);
}

LiveDaemon::~LiveDaemon() {
  if (pid_ > 0 && running()) {
    ::kill(pid_, SIGKILL);
    (void)wait_exit();
  }
}

std::string LiveDaemon::settings_text(const std::string& yaml) const {
  std::string text;
  if (options_.own_model) text += fmt::format("model: {{path: {}}}\n", folder_.file("tiny.gguf"));
  if (yaml.find("server:") == std::string::npos) {
    text += fmt::format("server: {{socket: {{path: {}}}, drain_timeout_s: 10}}\n", socket());
  }
  const bool imitation = options_.platform == "imitation";
  text += fmt::format("platform:\n  name: {}\n", imitation ? "cpu" : options_.platform);
  if (imitation) {
    text += fmt::format("  plugin: {}/lib/atlas/test-plugins/platform_imitation.so\n",
                        ATLAS_BINARY_DIR);
  }
  text += "  options: {";
  for (const auto& [key, value] : options_.platform_options)
    text += fmt::format("{}: {}, ", key, value);
  return text + "}\n" + yaml;
}

void LiveDaemon::write_settings(const std::string& yaml) {
  std::ofstream(folder_.file("atlasd.yaml")) << settings_text(yaml);
}

void LiveDaemon::start() {
  const std::string program = std::string(ATLAS_BINARY_DIR) + "/bin/atlasd";
  const std::string settings = folder_.file("atlasd.yaml");
  const std::string log = folder_.file("atlasd.log");
  const int listener = options_.listen_socket.empty() ? -1 : listen_on(options_.listen_socket);
  pid_ = ::fork();
  REQUIRE(pid_ >= 0);
  if (pid_ == 0) {
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    for (const std::string& one : options_.environment) ::putenv(const_cast<char*>(one.c_str()));
    if (listener >= 0) {
      ::dup2(listener, 3);  // sd_listen_fds(3): descriptors from 3 on, for this process
      ::setenv("LISTEN_FDS", "1", 1);
      ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
    }
    ::execl(program.c_str(), "atlasd", "--config", settings.c_str(), nullptr);
    ::_exit(127);
  }
  if (listener >= 0) ::close(listener);
}

void LiveDaemon::wait_ready() {
  const auto deadline = steady_clock::now() + 20s;
  while (steady_clock::now() < deadline && running()) {
    const auto response = client().get("/ready");
    if (response && response->status == 200) return;
    std::this_thread::sleep_for(10ms);
  }
  FAIL("atlasd is not ready:\n" << log());
}

void LiveDaemon::signal(int number) const { ::kill(pid_, number); }

bool LiveDaemon::running() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

std::optional<int> LiveDaemon::wait_exit(std::chrono::seconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (steady_clock::now() > deadline) return std::nullopt;
    std::this_thread::sleep_for(5ms);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string LiveDaemon::log() const {
  std::ifstream file(folder_.file("atlasd.log"));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Result<tools::Response> LiveDaemon::complete(const std::string& fields) const {
  return client().post("/v1/completions", fmt::format("{{\"model\":\"tiny\",{}}}", fields));
}

std::string completion_text(const tools::Response& response) {
  const auto json = nlohmann::json::parse(response.body, nullptr, false);
  if (!json.is_object() || !json.contains("choices")) return "";
  return json["choices"][0].value("text", "");
}

uint64_t resident_bytes(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/statm", pid));
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace atlas::testing
