// The one translation unit that compiles doctest's runner; every test program links it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "tests/support/arguments.h"

namespace atlas::test {
namespace {

std::vector<std::string>& stored() {
  static std::vector<std::string> arguments;
  return arguments;
}

}  // namespace

const std::vector<std::string>& arguments() { return stored(); }

std::string argument(const std::string& name) {
  const std::string option = "--" + name;
  for (size_t i = 0; i < stored().size(); ++i) {
    const std::string& text = stored()[i];
    if (text.starts_with(option + "=")) return text.substr(option.size() + 1);
    if (text == option && i + 1 < stored().size()) return stored()[i + 1];
  }
  return {};
}

}  // namespace atlas::test

int main(int count, char** values) {
  atlas::test::stored().assign(values + 1, values + count);
  return doctest::Context(count, values).run();
}
