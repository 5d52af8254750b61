// Options come as text; each is checked here and nowhere else.
#include "plugins/platform_cpu/options.h"

#include <charconv>
#include <string>
#include <string_view>

#include "plugins/sdk/guard.h"

namespace atlas::platform_cpu {

using sdk::Failure;

namespace {

uint32_t parse_threads(std::string_view value) {
  uint32_t threads = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, threads);
  if (error != std::errc() || stop != end || threads < 1 || threads > kMaxThreads) {
    throw Failure(ATLAS_INVALID_ARGUMENT, "platform option 'threads' is '" + std::string(value) +
                                              "': it takes a whole number from 1 to " +
                                              std::to_string(kMaxThreads));
  }
  return threads;
}

bool parse_bool(std::string_view key, std::string_view value) {
  if (value == "true") return true;
  if (value == "false") return false;
  throw Failure(ATLAS_INVALID_ARGUMENT, "platform option '" + std::string(key) + "' is '" +
                                            std::string(value) + "': it takes true or false");
}

}  // namespace

Options parse_options(const AtlasDeviceOptions& options) {
  Options parsed;
  for (uint32_t i = 0; i < options.option_count; ++i) {
    const AtlasOption& option = options.options[i];
    if (option.key == nullptr || option.value == nullptr) {
      throw Failure(ATLAS_INVALID_ARGUMENT, "a platform option without key or value");
    }
    const std::string_view key = option.key;
    if (key == "threads") {
      parsed.threads = parse_threads(option.value);
    } else if (key == "pin") {
      parsed.pin = parse_bool(key, option.value);
    } else {
      throw Failure(ATLAS_INVALID_ARGUMENT, "platform option '" + std::string(key) +
                                                "' is unknown: platform cpu knows threads, pin");
    }
  }
  return parsed;
}

}  // namespace atlas::platform_cpu
