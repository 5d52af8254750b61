// The command line of a test program, for tests that take options of their own beside doctest's.
#pragma once

#include <string>
#include <vector>

namespace atlas::test {

/// Without the program's name.
const std::vector<std::string>& arguments();

/// A line about an option of this program's own, for --help; as a static object of a file that asks
/// for the option.
struct OptionText {
  OptionText(const char* option, const char* about);
};

/// The value of `--name VALUE` or `--name=VALUE`; empty if it is not there.
std::string argument(const std::string& name);

}  // namespace atlas::test
