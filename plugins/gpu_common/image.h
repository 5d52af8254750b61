// The file of a kernel pack, read and looked at before a driver sees it: drivers take an address
// and no size, and would read past the end of a file that is cut short.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace atlas::gpu {

/// Reads a pack. Throws sdk::Failure: ATLAS_NOT_FOUND, or ATLAS_FAILED_PRECONDITION if it is no
/// 64-bit little-endian ELF file whose parts all lie inside it.
std::vector<char> read_image(const std::string& path);

/// Fields of the ELF header that say what an image is built for.
struct ImageHead {
  uint16_t machine;
  uint8_t abi_version;
  uint32_t flags;
};
ImageHead image_head(const std::vector<char>& image);

}  // namespace atlas::gpu
