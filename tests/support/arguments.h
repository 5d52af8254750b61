// The command line of a test program, for tests that take options of their own beside doctest's.
#pragma once

#include <string>
#include <vector>

namespace atlas::test {

/// Without the program's name.
const std::vector<std::string>& arguments();

/// The value of `--name VALUE` or `--name=VALUE`; empty if it is not there.
std::string argument(const std::string& name);

}  // namespace atlas::test
