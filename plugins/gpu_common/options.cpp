// Options come as text; each is checked here and nowhere else.
#include "plugins/gpu_common/options.h"

#include <charconv>
#include <string_view>

#include "plugins/sdk/guard.h"

namespace atlas::gpu {
namespace {

using sdk::Failure;

constexpr std::string_view kKnown = "device, reserve_bytes, patience_ms, check_launches";

[[noreturn]] void refuse(std::string_view key, std::string_view value, const std::string& takes) {
  throw Failure(ATLAS_INVALID_ARGUMENT, "platform option '" + std::string(key) + "' is '" +
                                            std::string(value) + "': it takes " + takes);
}

uint64_t parse_number(std::string_view key, std::string_view value, uint64_t least, uint64_t most) {
  uint64_t number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || number < least || number > most) {
    refuse(key, value,
           "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return number;
}

bool parse_switch(std::string_view key, std::string_view value) {
  if (value != "true" && value != "false") refuse(key, value, "true or false");
  return value == "true";
}

}  // namespace

Options parse_options(const AtlasDeviceOptions& options, const std::string& runtime) {
  Options parsed;
  if (options.platform == nullptr) {
    throw Failure(ATLAS_INVALID_ARGUMENT, "AtlasDeviceOptions names no platform");
  }
  parsed.platform = options.platform;
  for (uint32_t i = 0; i < options.option_count; ++i) {
    const AtlasOption& option = options.options[i];
    if (option.key == nullptr || option.value == nullptr) {
      throw Failure(ATLAS_INVALID_ARGUMENT, "a platform option without key or value");
    }
    const std::string_view key = option.key;
    if (key == "device") {
      parsed.device = static_cast<uint32_t>(parse_number(key, option.value, 0, 1023));
    } else if (key == "reserve_bytes") {
      parsed.reserve = parse_number(key, option.value, 0, uint64_t{1} << 50);
    } else if (key == "patience_ms") {
      parsed.patience_ms = parse_number(key, option.value, 1, 86'400'000);
    } else if (key == "check_launches") {
      parsed.check_launches = parse_switch(key, option.value);
    } else {
      throw Failure(ATLAS_INVALID_ARGUMENT, "platform option '" + std::string(key) +
                                                "' is unknown: platform " + runtime + " knows " +
                                                std::string(kKnown));
    }
  }
  return parsed;
}

}  // namespace atlas::gpu
