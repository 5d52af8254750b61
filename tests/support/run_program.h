// Runs one of our programs in a test, as a shell would.
#pragma once

#include <string>
#include <vector>

namespace atlas::testing {

struct Ran {
  int code = -1;  // exit code, or 128 + signal
  std::string out, err;
};

/// Runs `arguments` (the first: a program of build/<preset>/bin) with `directory` as its working
/// directory and waits for its end.
Ran run_program(const std::vector<std::string>& arguments, const std::string& directory = "/");

}  // namespace atlas::testing
