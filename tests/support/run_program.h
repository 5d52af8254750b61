// Runs our programs in a test, as a shell would.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/support/tiny_llama.h"

namespace atlas::testing {

struct Ran {
  int code = -1;  // exit code, or 128 + signal
  std::string out, err;
};

/// A program that runs beside the test: `arguments` (the first: a program of build/<preset>/bin)
/// with `directory` as its working directory. Who lets go of it before its end kills it.
class RunningProgram {
 public:
  explicit RunningProgram(const std::vector<std::string>& arguments,
                          const std::string& directory = "/");
  ~RunningProgram();
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  bool running() const;
  /// Waits for its end; once only.
  Ran finish();

 private:
  const TempDir folder_;  // of what it prints
  pid_t pid_ = -1;        // until it was waited for
};

/// Runs a program as RunningProgram does, and waits for its end.
Ran run_program(const std::vector<std::string>& arguments, const std::string& directory = "/");

}  // namespace atlas::testing
