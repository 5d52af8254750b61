// The program atlas-kernel-check, run as a user runs it.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/common/core_kernels.h"
#include "tests/unit/plugin_host/support.h"

using namespace atlas;
using namespace atlas::plugin_host::testing;

TEST_SUITE_BEGIN("plugin_host");

namespace {

struct Run {
  int status;
  std::string output;
};

Run kernel_check(const std::string& arguments) {
  const std::string command = ATLAS_BINARY_DIR "/bin/atlas-kernel-check " + arguments + " 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Run run{};
  std::array<char, 4096> part;
  while (const size_t got = std::fread(part.data(), 1, part.size(), pipe)) {
    run.output.append(part.data(), got);
  }
  run.status = WEXITSTATUS(::pclose(pipe));
  return run;
}

std::string plugin_option(const std::string& name) { return " --plugin " + test_plugin(name); }
const std::string kKernels = " --kernels " + kTestKernels;

}  // namespace

TEST_CASE("kernel check: what is complete is good, with status 0") {
  const Run run = kernel_check("--platform cpu --only-plugins" + kKernels + plugin_option("good") +
                               plugin_option("optional_absent") + plugin_option("packed"));
  CAPTURE(run.output);
  CHECK(run.status == 0);
  CHECK(run.output.find("good     4 kernels of 3 plugins in 2 packs") != std::string::npos);
  CHECK(run.output.find("'test_scale_fast' of 'optional_absent' is absent (needs a wider machine): "
                        "'test_scale' runs instead") != std::string::npos);
}

TEST_CASE("kernel check: the coverage table says what is there, and what runs where it is not") {
  const Run run = kernel_check("--coverage --platform cpu --only-plugins" + kKernels +
                               plugin_option("good") + plugin_option("optional_absent"));
  CAPTURE(run.output);
  CHECK(run.status == 0);
  CHECK(run.output.starts_with("| of | kernels | cpu |\n| --- | --- | --- |\n"));
  CHECK(run.output.find("| optional_absent | `test_scale_fast` | optional |") != std::string::npos);
  CHECK(run.output.find("- `test_scale_fast` of optional_absent on cpu: needs a wider machine; "
                        "`test_scale` runs instead") != std::string::npos);
  const Run absent = kernel_check("--coverage --platform cpu --only-plugins" + kKernels +
                                  plugin_option("kernels_absent"));
  CHECK(absent.status == 1);
  CHECK(absent.output.find(" | **absent** |") != std::string::npos);
  CHECK(kernel_check("--coverage --json").status == 2);
}

TEST_CASE("kernel check: every problem of every plugin is in one JSON answer, with status 1") {
  const Run run =
      kernel_check("--json --platform cpu" + kKernels + plugin_option("kernels_absent") +
                   plugin_option("other_digest") + plugin_option("no_descriptor") +
                   plugin_option("platform_not_listed"));
  CHECK(run.status == 1);
  const auto json = nlohmann::json::parse(run.output);
  CHECK(json["ok"] == false);
  REQUIRE(json["platforms"].size() == 1);
  // 3 absent, 1 digest, 1 platform, and all of the core's.
  CHECK(json["platforms"][0]["problems"].size() == 5 + kernels::kCoreKernels.size());
  REQUIRE(json["refused"].size() == 1);
  CHECK(json["refused"][0]["file"] == test_plugin("no_descriptor"));
}

TEST_CASE(
    "kernel check: a platform without packs fails if it is asked for, and is noted otherwise") {
  const Run asked =
      kernel_check("--platform gb10" + kKernels + plugin_option("platform_not_listed"));
  CHECK(asked.status == 1);
  CHECK(asked.output.find("no kernel packs for platform 'gb10'") != std::string::npos);
  const Run noted = kernel_check("--json" + kKernels + plugin_option("platform_not_listed"));
  CHECK(nlohmann::json::parse(noted.output)["not_built"] ==
        nlohmann::json::array({"gb10", "h200"}));

  // Folders that a build has made without a pack in them are the same.
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / fmt::format("kernels-{}", ::getpid());
  fs::create_directories(folder / "gb10");
  fs::create_directory_symlink(kTestKernels + "/cpu", folder / "cpu");
  const std::string kernels = " --kernels " + folder.string();
  const std::string builds = "target atlas_kernels_gb10 builds them\n";
  const Run empty = kernel_check("--platform gb10" + kernels + plugin_option("good"));
  CHECK(empty.status == 1);
  CHECK_MESSAGE(empty.output.find(builds) != std::string::npos, empty.output);
  const Run beside = kernel_check(kernels + plugin_option("platform_not_listed"));
  CHECK_MESSAGE(
      beside.output.find("no packs here; plugins list it, and " + builds) != std::string::npos,
      beside.output);
  CHECK(beside.output.find("refused") == std::string::npos);
  fs::remove_all(folder);
}

TEST_CASE("kernel check: one name in two files is refused") {
  const Run run =
      kernel_check("--only-plugins" + kKernels + plugin_option("good") + plugin_option("good_2"));
  CHECK(run.status == 1);
  CHECK(run.output.find("plugin 'good' is there twice") != std::string::npos);
}

TEST_CASE("kernel check: wrong usage is status 2, help is 0") {
  CHECK(kernel_check("--bogus").status == 2);
  CHECK(kernel_check("--platform").status == 2);
  CHECK(kernel_check("surplus").status == 2);
  const Run help = kernel_check("--help");
  CHECK(help.status == 0);
  CHECK(help.output.find("--only-plugins") != std::string::npos);
}

TEST_SUITE_END();
