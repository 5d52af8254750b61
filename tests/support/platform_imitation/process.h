// The device process as the host sees it: started, asked, watched, ended.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "tests/support/platform_imitation/memory.h"
#include "tests/support/platform_imitation/protocol.h"

namespace atlas::imitation {

class Process {
 public:
  struct Files {
    const File& device;
    const File& pinned;
    const File& shared;
  };
  /// Starts `program`. `ended` is called once, from a thread of this object, when the process has
  /// ended, with the way it did.
  Process(const std::string& program, const Files& files,
          std::function<void(const std::string&)> ended);
  /// Ends the process: closing its socket asks it to, SIGKILL makes it.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// The first request, before any other. A program is given a minute to begin, as a busy machine
  /// or an emulator may need; later requests wait at most `patience_ms` for their answer. Throws
  /// sdk::Failure: as `ask`, or ATLAS_FAILED_PRECONDITION if the program could not be started.
  void greet(const Hello& hello, uint64_t patience_ms);
  /// Sends a request and waits for the answer. Throws sdk::Failure: the answer's own, or
  /// ATLAS_UNAVAILABLE if there is none.
  uint64_t ask(RequestKind kind, std::span<const char> payload);
  void kill();
  pid_t pid() const { return pid_; }

 private:
  void watch(const Files& files, int child_socket);
  int start(const Files& files, int child_socket);
  void send_all(const void* data, size_t bytes);
  void receive_all(void* data, size_t bytes);
  bool wait_until_ended(uint64_t timeout_ms);
  void set_patience(uint64_t patience_ms);

  const std::string program_;
  std::function<void(const std::string&)> ended_callback_;
  File socket_;
  std::mutex ask_mutex_;  // one request at a time
  std::mutex mutex_;      // guards what follows
  std::condition_variable changed_;
  pid_t pid_ = -1;
  int start_error_ = 0;
  bool started_ = false;  // or failed to start
  bool reaped_ = false;   // and its number may be another process's by now
  int end_status_ = 0;    // as waitpid(2) has it
  bool ended_ = false;    // and the callback has been told
  std::thread watcher_;
};

}  // namespace atlas::imitation
