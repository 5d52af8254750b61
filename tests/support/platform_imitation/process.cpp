// posix_spawn from a thread that lives as long as the device: the child asks the kernel to end it
// with its parent, and by that the kernel means the thread that started it.
#include "tests/support/platform_imitation/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "plugins/sdk/guard.h"

extern char** environ;

namespace atlas::imitation {
namespace {

using sdk::Failure;

constexpr uint64_t kStartPatienceMs = 60'000;

// Above the descriptors that the child's ends are put on, so that none is overwritten too early.
File raised(int fd) { return File(::fcntl(fd, F_DUPFD_CLOEXEC, 10)); }

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) {
    return "the device process ended by signal " + std::to_string(WTERMSIG(status)) + " (" +
           ::strsignal(WTERMSIG(status)) + ")";
  }
  return "the device process ended with status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

Process::Process(const std::string& program, const Files& files,
                 std::function<void(const std::string&)> ended)
    : program_(program), ended_callback_(std::move(ended)) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Failure(ATLAS_RESOURCE_EXHAUSTED, std::string("no socket pair: ") + std::strerror(errno));
  }
  socket_ = File(ends[0]);
  const File child(ends[1]);
  watcher_ = std::thread([&, this] { watch(files, child.fd()); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return started_; });
  if (start_error_ != 0) {
    lock.unlock();
    watcher_.join();
    throw Failure(
        ATLAS_FAILED_PRECONDITION,
        "the device program '" + program_ + "' cannot be started: " + std::strerror(start_error_));
  }
}

Process::~Process() {
  ::shutdown(socket_.fd(), SHUT_RDWR);
  if (!wait_until_ended(1000)) kill();
  watcher_.join();
}

int Process::start(const Files& files, int child_socket) {
  const File sources[] = {raised(child_socket), raised(files.device.fd()),
                          raised(files.pinned.fd()), raised(files.shared.fd())};
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  int target = kSocketFd;
  for (const File& source : sources) {
    ::posix_spawn_file_actions_adddup2(&actions, source.fd(), target++);
  }
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string name = program_;
  char* arguments[] = {name.data(), nullptr};
  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, program_.c_str(), &actions, &attributes, arguments, environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  const std::lock_guard lock(mutex_);
  pid_ = pid;
  return error;
}

void Process::watch(const Files& files, int child_socket) {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  const int error = start(files, child_socket);
  {
    const std::lock_guard lock(mutex_);
    start_error_ = error;
    started_ = true;
    // Notified under the lock: the references to the constructor's arguments end with its wait.
    changed_.notify_all();
  }
  if (error != 0) return;
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 &&
         errno == EINTR) {
  }
  std::string how = "the device process ended";
  {
    // Reaped under the lock, so that kill() never meets a number that is someone else's.
    const std::lock_guard lock(mutex_);
    int status = 0;
    if (::waitpid(pid_, &status, 0) == pid_) how = describe_end(status);
    end_status_ = status;
    reaped_ = true;
  }
  ended_callback_(how);
  // Only now: who waits for the end finds the reason in its place.
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

bool Process::wait_until_ended(uint64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return ended_; });
}

void Process::set_patience(uint64_t patience_ms) {
  timeval patience{};
  patience.tv_sec = static_cast<time_t>(patience_ms / 1000);
  patience.tv_usec = static_cast<suseconds_t>(patience_ms % 1000 * 1000);
  ::setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  ::setsockopt(socket_.fd(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

void Process::kill() {
  const std::lock_guard lock(mutex_);
  if (!reaped_) ::kill(pid_, SIGKILL);
}

void Process::send_all(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes != 0) {
    const ssize_t sent = ::send(socket_.fd(), next, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) throw Failure(ATLAS_UNAVAILABLE, "the device process takes no requests");
    next += sent;
    bytes -= static_cast<size_t>(sent);
  }
}

void Process::receive_all(void* data, size_t bytes) {
  char* next = static_cast<char*>(data);
  while (bytes != 0) {
    const ssize_t received = ::recv(socket_.fd(), next, bytes, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) {
      // If it has just ended, its end is the better reason; it is known in a moment.
      (void)wait_until_ended(received == 0 ? 1000 : 0);
      throw Failure(ATLAS_UNAVAILABLE, "the device process does not answer");
    }
    next += received;
    bytes -= static_cast<size_t>(received);
  }
}

void Process::greet(const Hello& hello, uint64_t patience_ms) {
  set_patience(std::max(patience_ms, kStartPatienceMs));
  try {
    (void)ask(RequestKind::kHello, {reinterpret_cast<const char*>(&hello), sizeof(hello)});
  } catch (const Failure& failure) {
    if (failure.code() != ATLAS_UNAVAILABLE || !wait_until_ended(1000)) throw;
    const std::lock_guard lock(mutex_);
    // POSIX leaves posix_spawn a second way to say that there was no program to run: a child that
    // ends with status 127. Under qemu's emulation of user programs it is the only one.
    if (!WIFEXITED(end_status_) || WEXITSTATUS(end_status_) != 127) throw;
    throw Failure(ATLAS_FAILED_PRECONDITION,
                  "the device program '" + program_ + "' cannot be started (status 127)");
  }
  set_patience(patience_ms);
}

uint64_t Process::ask(RequestKind kind, std::span<const char> payload) {
  const std::lock_guard lock(ask_mutex_);
  const RequestHead head{kind, static_cast<uint32_t>(payload.size())};
  send_all(&head, sizeof(head));
  send_all(payload.data(), payload.size());
  Answer answer{};
  receive_all(&answer, sizeof(answer));
  if (answer.code == ATLAS_OK) return answer.value;
  std::vector<char> message(answer.bytes);
  receive_all(message.data(), message.size());
  throw Failure(answer.code, std::string(message.begin(), message.end()));
}

}  // namespace atlas::imitation
