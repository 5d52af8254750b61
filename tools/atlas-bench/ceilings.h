// What a device's memory and units allow: the least time of one launch, from figures measured on
// such a device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace atlas::bench {

/// Microseconds that one kernel takes which depends on the one before it and reads so many bytes
/// from memory, its launch included.
struct ReadPoint {
  double megabytes = 0, us = 0;
};

struct Ceilings {
  std::string_view source;           // of the figures
  std::span<const ReadPoint> reads;  // growing
  double operations_per_us = 0;      // bf16 multiplications and additions
  double lane_instructions_per_us = 0;
};

/// The device's figures; null if nobody measured that platform.
const Ceilings* ceilings_of(std::string_view platform);

/// Interpolated between the points; beyond the last with its bytes a second.
double read_floor_us(const Ceilings& ceilings, double bytes);

/// Instructions of a lane that decode one weight of a format; 0: not counted.
double decode_instructions(std::string_view format);

/// The least time of some work: by the bytes that it reads, by its multiplications and additions,
/// and by decoding its weights.
struct Floor {
  double bytes_us = 0, operations_us = 0, decode_us = 0;
  double us() const;          // the largest
  const char* limit() const;  // which it is: "bytes", "operations" or "decode"
};
Floor floor_of(const Ceilings& ceilings, std::string_view format, double bytes, double operations,
               double weights);

}  // namespace atlas::bench
