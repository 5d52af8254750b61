// The command line of a measurement: options with a value each, and flags. Whoever misspells one,
// or asks for --help, gets the list, and nothing is measured.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace atlas::test {

class BenchOptions {
 public:
  /// `take` gets the value and says whether it can be one. An option may be given again.
  void option(const std::string& name, const std::string& about,
              std::function<bool(const std::string&)> take) {
    options_.push_back({name, about, true, std::move(take)});
  }
  void count(const std::string& name, const std::string& about, std::function<void(uint32_t)> take,
             uint32_t least = 1) {
    option(name, about, [take = std::move(take), least](const std::string& text) {
      uint32_t value = 0;
      if (!number(text, value) || value < least) return false;
      take(value);
      return true;
    });
  }
  void measure(const std::string& name, const std::string& about,
               std::function<void(double)> take) {
    option(name, about, [take = std::move(take)](const std::string& text) {
      double value = 0;
      if (!number(text, value) || !(value > 0)) return false;
      take(value);
      return true;
    });
  }
  void flag(const std::string& name, const std::string& about, bool& value) {
    options_.push_back({name, about, false, [&value](const std::string&) { return value = true; }});
  }

  /// -1: go on; else the program's exit status: 0 after --help, 2 for what cannot be read.
  int parse(int count, char** arguments) const {
    for (int i = 1; i < count; ++i) {
      const std::string name = arguments[i];
      if (name == "--help") return usage(stdout, 0);
      const Option* known = nullptr;
      for (const Option& one : options_) known = one.name == name ? &one : known;
      if (known == nullptr) {
        std::fprintf(stderr, "%s: there is no option '%s'\n", arguments[0], name.c_str());
        return usage(stderr, 2);
      }
      if (known->has_value && ++i == count) {
        std::fprintf(stderr, "%s: %s takes a value\n", arguments[0], name.c_str());
        return usage(stderr, 2);
      }
      const std::string value = known->has_value ? arguments[i] : "";
      if (known->take(value)) continue;
      std::fprintf(stderr, "%s: %s cannot be '%s'\n", arguments[0], name.c_str(), value.c_str());
      return usage(stderr, 2);
    }
    return -1;
  }

 private:
  struct Option {
    std::string name, about;
    bool has_value;
    std::function<bool(const std::string&)> take;
  };

  template <typename T>
  static bool number(const std::string& text, T& value) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    return error == std::errc() && stop == end;
  }

  int usage(std::FILE* to, int code) const {
    for (const Option& one : options_) {
      std::fprintf(to, "  %-16s %s\n", (one.name + (one.has_value ? " X" : "")).c_str(),
                   one.about.c_str());
    }
    return code;
  }

  std::vector<Option> options_;
};

}  // namespace atlas::test
