// One table: key, where its value goes, what it may be.
#include "tests/support/platform_imitation/options.h"

#include <charconv>
#include <string_view>

#include "plugins/sdk/guard.h"

namespace atlas::imitation {
namespace {

using sdk::Failure;

struct NumberOption {
  std::string_view key;
  uint64_t Options::*field;
  uint64_t least;
  uint64_t most;
};

constexpr uint64_t kAnyCount = 1'000'000'000;

constexpr NumberOption kNumbers[] = {
    {"memory_bytes", &Options::memory_bytes, uint64_t{1} << 16, uint64_t{64} << 30},
    {"delay_us", &Options::delay_us, 0, 10'000'000},
    {"patience_ms", &Options::patience_ms, 1, 3'600'000},
    {"fail_alloc_at", &Options::fail_alloc_at, 1, kAnyCount},
    {"fail_launch_at", &Options::fail_launch_at, 1, kAnyCount},
    {"hang_at", &Options::hang_at, 1, kAnyCount},
    {"lose_at", &Options::lose_at, 1, kAnyCount},
    {"corrupt_graph_at", &Options::corrupt_graph_at, 1, kAnyCount},
};

struct SwitchOption {
  std::string_view key;
  bool Options::*field;
};

constexpr SwitchOption kSwitches[] = {
    {"refuse_graphs", &Options::refuse_graphs},
    {"corrupt_graphs", &Options::corrupt_graphs},
};

[[noreturn]] void refuse(std::string_view key, std::string_view value, const std::string& takes) {
  throw Failure(ATLAS_INVALID_ARGUMENT, "platform option '" + std::string(key) + "' is '" +
                                            std::string(value) + "': it takes " + takes);
}

std::string known_keys() {
  std::string keys = "device_program";
  for (const NumberOption& option : kNumbers) keys += ", " + std::string(option.key);
  for (const SwitchOption& option : kSwitches) keys += ", " + std::string(option.key);
  return keys;
}

uint64_t parse_number(const NumberOption& option, std::string_view value) {
  uint64_t number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || number < option.least || number > option.most) {
    refuse(option.key, value,
           "a whole number from " + std::to_string(option.least) + " to " +
               std::to_string(option.most));
  }
  return number;
}

void parse_option(std::string_view key, std::string_view value, Options& parsed) {
  if (key == "device_program") {
    parsed.device_program = value;
    return;
  }
  for (const NumberOption& option : kNumbers) {
    if (option.key != key) continue;
    parsed.*option.field = parse_number(option, value);
    return;
  }
  for (const SwitchOption& option : kSwitches) {
    if (option.key != key) continue;
    if (value != "true" && value != "false") refuse(key, value, "true or false");
    parsed.*option.field = value == "true";
    return;
  }
  throw Failure(ATLAS_INVALID_ARGUMENT, "platform option '" + std::string(key) +
                                            "' is unknown: the imitation knows " + known_keys());
}

}  // namespace

Options parse_options(const AtlasDeviceOptions& options) {
  Options parsed;
  parsed.device_program = ATLAS_IMITATION_DEVICE;
  parsed.memory_bytes = uint64_t{2} << 30;
  for (uint32_t i = 0; i < options.option_count; ++i) {
    const AtlasOption& option = options.options[i];
    if (option.key == nullptr || option.value == nullptr) {
      throw Failure(ATLAS_INVALID_ARGUMENT, "a platform option without key or value");
    }
    parse_option(option.key, option.value, parsed);
  }
  return parsed;
}

}  // namespace atlas::imitation
