// Each kernel of each built pack removed in turn from a copy of the pack: atlas-kernel-check, which
// is the build's own audit too, and a starting daemon fail with its name.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "daemon/plugin_host/packs.h"
#include "tests/support/live_daemon.h"
#include "tests/support/run_program.h"

namespace atlas::testing {
namespace {

namespace fs = std::filesystem;
using plugin_host::PackKernel;

const std::string kLibrary = std::string(ATLAS_BINARY_DIR) + "/lib/atlas";

void run_command(const std::string& command) { REQUIRE(std::system(command.c_str()) == 0); }

/// A copy of a platform's packs, which lacks one kernel at a time.
class SpoiltPacks {
 public:
  explicit SpoiltPacks(const std::string& platform) : platform_(platform) {
    const std::string folder = folder_.file(platform);
    fs::copy(kLibrary + "/kernels/" + platform, folder, fs::copy_options::recursive);
    // Without lines for profiles the CPU pack is a tenth of its size, and each audit reads all of
    // it.
    if (platform == "cpu") run_command("strip -g " + folder + "/*.so");
    auto packs = plugin_host::PackIndex::read(platform, folder);
    REQUIRE_MESSAGE(packs.has_value(), packs.error().message());
    for (const auto& [name, kernel] : packs->kernels()) kernels_.push_back(kernel);
    for (const plugin_host::PackFile& pack : packs->files()) {
      std::stringstream bytes;
      bytes << std::ifstream(pack.path, std::ios::binary).rdbuf();
      contents_[pack.path] = bytes.str();
    }
  }
  const std::string& platform() const { return platform_; }
  const std::string& root() const { return folder_.path(); }
  const std::vector<PackKernel>& kernels() const { return kernels_; }

  /// Calls what() while the kernel's symbols have other names, or without its file if that holds no
  /// other kernel.
  template <typename What>
  void without(const PackKernel& kernel, const What& what) {
    const auto in_file = [&](const PackKernel& other) { return other.file == kernel.file; };
    if (std::count_if(kernels_.begin(), kernels_.end(), in_file) == 1) {
      fs::rename(kernel.file, kernel.file + ".gone");
      what();
      fs::rename(kernel.file + ".gone", kernel.file);
      return;
    }
    REQUIRE(rename(kernel, 'x') == 2);
    what();
    rename(kernel, 'a');
  }

 private:
  /// Gives the kernel's symbols another first letter; how many kinds of them there are.
  int rename(const PackKernel& kernel, char letter) {
    const std::string& bytes = contents_.at(kernel.file);
    std::fstream file(kernel.file, std::ios::in | std::ios::out | std::ios::binary);
    int kinds = 0;
    for (const char* prefix : {"atlas_kernel_", "atlas_params_"}) {
      // A whole string of a string table.
      const std::string symbol = '\0' + (prefix + kernel.name) + '\0';
      bool found = false;
      for (size_t at = 0; (at = bytes.find(symbol, at)) != std::string::npos; ++at, found = true) {
        file.seekp(static_cast<std::streamoff>(at + 1));
        file.put(letter);
      }
      kinds += found ? 1 : 0;
    }
    return kinds;
  }

  TempDir folder_;
  std::string platform_;
  std::vector<PackKernel> kernels_;
  std::map<std::string, std::string> contents_;
};

std::vector<std::string> built_platforms() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kLibrary + "/kernels")) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Ran check(const SpoiltPacks& packs) {
  return run_program(
      {"atlas-kernel-check", "--platform", packs.platform(), "--kernels", packs.root()});
}

// Whoever opens this device fails with this name.
constexpr char kNoDevice[] = "/nowhere/no-such-device";

/// What a daemon of all plugins says when it ends by itself, at the latest with its device; nothing
/// if it does not.
std::string failed_start(const SpoiltPacks& packs) {
  LiveDaemon::Options options;
  options.platform = "imitation";
  options.platform_options["device_program"] = kNoDevice;
  options.yaml = fmt::format(
      "plugins:\n  kernels: {}\n  quant: [gguf, gguf_f32, nvfp4, fp8, exl3, bf16]\n"
      "  attention: [gqa, qsa, gdn]\n",
      packs.root());
  LiveDaemon daemon(options);
  daemon.start();
  const auto code = daemon.wait_exit();
  return code && *code != 0 ? daemon.log() : "";
}

}  // namespace

TEST_SUITE("daemon") {
  TEST_CASE("removed kernels: atlas-kernel-check fails with the name of each") {
    for (const std::string& platform : built_platforms()) {
      SpoiltPacks packs(platform);
      const std::string before = check(packs).out;
      REQUIRE(contains(before, "good"));
      for (const PackKernel& kernel : packs.kernels()) {
        CAPTURE(platform);
        CAPTURE(kernel.name);
        const std::string name = fmt::format("'{}' of '", kernel.name);
        packs.without(kernel, [&] {
          const Ran ran = check(packs);
          CHECK(contains(ran.out, name));
          CHECK(ran.code == 1);
        });
      }
      CHECK(check(packs).out == before);
    }
  }

  TEST_CASE("removed kernels: a daemon does not start, and names each") {
    SpoiltPacks packs("cpu");
    REQUIRE(contains(failed_start(packs), kNoDevice));  // with all kernels it opens the device
    for (const PackKernel& kernel : packs.kernels()) {
      CAPTURE(kernel.name);
      packs.without(kernel, [&] {
        const std::string said = failed_start(packs);
        CHECK(contains(said, fmt::format("'{}' of '", kernel.name)));
        CHECK_FALSE(contains(said, kNoDevice));
      });
    }
  }
}

}  // namespace atlas::testing
