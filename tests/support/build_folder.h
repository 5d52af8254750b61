// Where plugins, packs and test libraries of this build lie: beside the running program, so that a
// build can be carried to another machine, or else where it was built.
#pragma once

#include <filesystem>
#include <string>

namespace atlas::test {

/// The build's folder. Test programs lie in its folder tests.
inline std::string build_folder() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path folder = program.parent_path().parent_path();
  if (!error && std::filesystem::is_directory(folder / "lib" / "atlas", error)) {
    return folder.string();
  }
  return ATLAS_BINARY_DIR;
}

}  // namespace atlas::test
