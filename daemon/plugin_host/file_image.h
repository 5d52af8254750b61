// The bytes of one plugin or pack, read once: what is checked is what is loaded.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "daemon/base/status.h"

namespace atlas::plugin_host {

/// A whole regular file in our own memory. Not a mapping: a file that is cut short while it is
/// mapped kills whoever reads it.
struct FileImage {
  std::string path;
  std::vector<std::byte> bytes;
  std::string digest;  // XXH64 of the bytes, 16 hexadecimal digits: the content's name
};

/// Errors: kNotFound, kPermissionDenied or kInvalidArgument (not a regular file, over 1 GiB), each
/// with the path. Never waits (a FIFO is no regular file).
Result<FileImage> read_image(const std::string& path);

/// The digest that read_image gives.
std::string content_digest(const std::vector<std::byte>& bytes);

}  // namespace atlas::plugin_host
