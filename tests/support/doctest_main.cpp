// The one translation unit that compiles doctest's runner; every test program links it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <utility>

#include "tests/support/arguments.h"

namespace atlas::test {
namespace {

std::vector<std::string>& stored() {
  static std::vector<std::string> arguments;
  return arguments;
}

/// Options of the program's own, with what is said of them.
std::vector<std::pair<std::string, std::string>>& option_texts() {
  static std::vector<std::pair<std::string, std::string>> texts;
  return texts;
}

void print_option_texts() {
  if (option_texts().empty()) return;
  std::printf("options of this program:\n\n");
  for (const auto& [option, about] : option_texts()) {
    std::printf(" %-36s  %s\n", option.c_str(), about.c_str());
  }
  std::printf("\n");
}

}  // namespace

OptionText::OptionText(const char* option, const char* about) {
  option_texts().emplace_back(option, about);
}

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
  const int code = doctest::Context(count, values).run();
  for (const std::string& argument : atlas::test::arguments()) {
    if (argument == "--help" || argument == "-h") atlas::test::print_option_texts();
  }
  return code;
}
