// exl3_encode_wgmma, for h200: exl3_encode's rows in the order of kernels/common/exl3_wgmma.h.
#pragma once

#include "kernels/common/exl3_wgmma.h"
#include "kernels/common/gpu/exl3_encode.h"

namespace atlas::kernels {

struct Exl3WgmmaOrder {
  ATLAS_DEVICE static uint32_t place(const Exl3EncodeParams& params, uint32_t row,
                                     uint32_t expert) {
    if (params.offsets == nullptr) return row;
    const uint32_t begin = device::load(params.offsets + expert);
    return exl3_wgmma_place(begin, expert) + row - begin;
  }
  /// The encoder of a run's last row fills its group of eight.
  ATLAS_DEVICE static uint32_t fill_end(const Exl3EncodeParams& params, uint32_t row,
                                        uint32_t expert, uint32_t place) {
    const uint32_t* end =
        params.offsets == nullptr ? params.row_count : params.offsets + expert + 1;
    return row + 1 == device::load(end) ? place / 8 * 8 + 8 : 0;
  }
  ATLAS_DEVICE static void put_two(const Exl3EncodeParams& params, uint32_t place, uint32_t k,
                                   uint32_t two) {
    device::store_as(
        static_cast<uint8_t*>(params.encoded) + exl3_wgmma_offset(params.rows, place, k), two);
  }
  ATLAS_DEVICE static void put_tile(const Exl3EncodeParams& params, uint32_t place, uint32_t k,
                                    bool there, const uint32_t (&words)[8]) {
    using namespace device;
    // An instruction takes one word of each of four neighbouring tiles in its first eight elements,
    // and one in its last. A lane trades with that of the tile beside, so that one writes the first
    // and one the last, of two tiles.
    const bool odd = (lane_index() & 4) != 0;
    ATLAS_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t kept = odd ? words[4 + i] : words[i];
      const uint32_t got = shuffle_xor(odd ? words[i] : words[4 + i], 4);
      const Words2 two = odd ? Words2{{got, kept}} : Words2{{kept, got}};
      // The first of the two tiles has an even number.
      const uint64_t at =
          exl3_wgmma_offset(params.rows, place, k / 32 * 32 + 2 * i + (odd ? 8 : 0));
      if (there) store_as(static_cast<uint8_t*>(params.encoded) + at, two);
    }
  }
};

ATLAS_DEVICE_KERNEL(exl3_encode_wgmma, Exl3EncodeParams, kExl3EncodeThreads) {
  exl3_encode_rows<Exl3WgmmaOrder>(params);
}

}  // namespace atlas::kernels
