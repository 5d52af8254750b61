// What the tests of this room share: where the test plugins are, temporary folders.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/status.h"

namespace atlas::plugin_host::testing {

namespace fs = std::filesystem;

inline const std::string kTestPlugins = ATLAS_BINARY_DIR "/lib/atlas/test-plugins";
inline const std::string kTestKernels = ATLAS_BINARY_DIR "/lib/atlas/test-kernels";

inline std::string test_plugin(const std::string& name) {
  return kTestPlugins + "/" + name + ".so";
}

/// A folder that is gone after the test.
class TempDir {
 public:
  TempDir() {
    std::string path = (fs::temp_directory_path() / "atlas-test-XXXXXX").string();
    if (::mkdtemp(path.data()) != nullptr) path_ = path;
  }
  ~TempDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// "" if the message says every one of `parts`, otherwise the first that it does not, and the
/// message.
inline std::string missing_part(const Status& status, const std::vector<std::string>& parts) {
  if (status.ok()) return "no error";
  for (const std::string& part : parts) {
    if (status.message().find(part) == std::string::npos) {
      return "no '" + part + "' in: " + status.message();
    }
  }
  return "";
}

}  // namespace atlas::plugin_host::testing
