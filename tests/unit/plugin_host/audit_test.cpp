// Packs and the audit over them.
#include "daemon/plugin_host/audit.h"

#include <doctest/doctest.h>
#include <elf.h>

#include <cstddef>
#include <nlohmann/json.hpp>

#include "daemon/plugin_host/json.h"
#include "kernels/common/core_kernels.h"
#include "tests/support/bad_plugins/test_kernels.h"
#include "tests/unit/plugin_host/support.h"

using namespace atlas;
using namespace atlas::plugin_host;
using namespace atlas::plugin_host::testing;

TEST_SUITE_BEGIN("plugin_host");

namespace {

PackIndex test_packs() {
  auto packs = PackIndex::read("cpu", kTestKernels + "/cpu");
  REQUIRE_MESSAGE(packs, packs.error().message());
  return std::move(*packs);
}

// The audit of test plugins over the test pack.
AuditReport audit_of(const std::vector<std::string>& names,
                     const std::vector<KernelNeed>& needs = {}) {
  std::vector<PluginDescriptor> plugins;
  for (const std::string& name : names) {
    auto descriptor = read_descriptor(test_plugin(name));
    REQUIRE_MESSAGE(descriptor, descriptor.error().message());
    plugins.push_back(std::move(*descriptor));
  }
  return audit("cpu", plugins, needs, test_packs());
}

// A folder with the test pack in it.
struct PackDir : TempDir {
  PackDir() {
    fs::create_directory(*this / "cpu");
    fs::copy_file(kTestKernels + "/cpu/test.so", *this / "cpu/test.so");
  }
  Result<PackIndex> read() const { return PackIndex::read("cpu", *this / "cpu"); }
};

}  // namespace

TEST_CASE("packs: kernels and digests are read from the symbol table of the built pack") {
  const PackIndex packs = test_packs();
  REQUIRE(packs.kernels().size() == 1);
  const PackKernel* kernel = packs.find("test_scale");
  REQUIRE(kernel != nullptr);
  CHECK(kernel->digest == stub::kTestScaleParamsDigest);
  CHECK(kernel->file == kTestKernels + "/cpu/test.so");
  CHECK(packs.find("test_scal") == nullptr);
  CHECK(packs.near("test_scael") == std::vector<std::string>{"test_scale"});
  CHECK(packs.near("something_else").empty());
}

TEST_CASE("packs: other files in the folder are left alone, a damaged pack is an error") {
  const PackDir dir;
  write_file(dir / "cpu/tuning.yaml", "shapes: []\n");
  write_file(dir / "cpu/.test.so.swp", "an editor's\n");
  CHECK(dir.read());
  const std::string pack = read_file(dir / "cpu/test.so");
  for (const size_t length : {size_t{0}, size_t{4}, size_t{63}, size_t{64}, size_t{1000},
                              pack.size() / 2, pack.size() - 1}) {
    CAPTURE(length);
    write_file(dir / "cpu/test.so", pack.substr(0, length));
    const auto read = dir.read();
    REQUIRE_FALSE(read);
    CHECK(missing_part(read.error(),
                       {"kernel pack '" + (dir / "cpu/test.so") + "' cannot be used"}) == "");
  }
}

TEST_CASE("packs: a kernel in two packs, a lone symbol and an absent folder are errors") {
  const PackDir dir;
  fs::copy_file(dir / "cpu/test.so", dir / "cpu/again.so");
  const auto twice = dir.read();
  REQUIRE_FALSE(twice);
  CHECK(twice.error().code() == Code::kAlreadyExists);
  CHECK(missing_part(twice.error(), {"'test_scale'", dir / "cpu/again.so", dir / "cpu/test.so"}) ==
        "");
  const auto lone = PackIndex::read("lone", kTestKernels + "/lone");
  REQUIRE_FALSE(lone);
  CHECK(missing_part(lone.error(), {"'lone' has no symbol 'atlas_params_lone'"}) == "");
  const auto absent = PackIndex::read("gb10", kTestKernels + "/gb10");
  REQUIRE_FALSE(absent);
  CHECK(absent.error().code() == Code::kNotFound);
  CHECK(missing_part(absent.error(), {"'gb10'", "there are: cpu, lone"}) == "");
}

TEST_CASE("packs: all packs of a platform are for one device") {
  const PackDir dir;
  const std::string pack = read_file(dir / "cpu/test.so");
  const auto refuse = [&](size_t at, const std::string& bytes, const std::string& part) {
    std::string other = pack;
    other.replace(at, bytes.size(), bytes);
    write_file(dir / "cpu/other.so", other);
    const auto read = dir.read();
    REQUIRE_FALSE(read);
    CHECK(missing_part(read.error(), {dir / "cpu/other.so", dir / "cpu/test.so", part,
                                      "for different devices"}) == "");
  };
  const uint16_t cuda = EM_CUDA;
  refuse(offsetof(Elf64_Ehdr, e_machine), {reinterpret_cast<const char*>(&cuda), sizeof(cuda)},
         "CUDA");
  refuse(offsetof(Elf64_Ehdr, e_flags), std::string("\x02\x79\x00\x06", 4), "flags 0x6007902");
}

TEST_CASE("packs: a plugin's own packs are found beside it, under its own names only") {
  PackIndex packs = test_packs();
  CHECK(packs.add_plugin_packs(test_plugin("good"), "good").ok());
  CHECK(packs.kernels().size() == 1);
  CHECK(packs.add_plugin_packs(test_plugin("packed"), "packed").ok());
  REQUIRE(packs.find("packed_scale") != nullptr);
  CHECK(packs.files().back().plugin == "packed");
  PackIndex other = test_packs();
  const Status foreign = other.add_plugin_packs(test_plugin("packed_wrongly"), "packed_wrongly");
  CHECK(missing_part(foreign, {"'packed_scale'", "begin with 'packed_wrongly_'"}) == "");
}

TEST_CASE("packs: what is loaded is a private copy of what was read, or an error") {
  const PackDir dir;
  const auto packs = dir.read();
  REQUIRE(packs);
  const auto copy = packs->copy_for_loading(packs->files()[0], "");
  REQUIRE(copy);
  CHECK(read_file(*copy) == read_file(dir / "cpu/test.so"));
  write_file(dir / "cpu/test.so", "other");
  const auto changed = packs->copy_for_loading(packs->files()[0], "");
  REQUIRE_FALSE(changed);
  CHECK(changed.error().code() == Code::kFailedPrecondition);
  CHECK(missing_part(changed.error(), {"has changed since it was audited"}) == "");
}

TEST_CASE("audit: all that is there passes") {
  const AuditReport report = audit_of({"good"});
  CHECK(report.ok());
  CHECK(report.to_status().ok());
  CHECK(report.kernels_checked == 1);
}

TEST_CASE("audit: all absent kernels are named at once, with the plugin and what is near") {
  const AuditReport report = audit_of({"kernels_absent"});
  CHECK(report.problems.size() == 3);
  const Status status = report.to_status();
  CHECK(status.code() == Code::kFailedPrecondition);
  CHECK(missing_part(
            status,
            {"platform 'cpu'", "3 problems: no pack has '", "'kernels_absent'", "'test_scael' of",
             "(near: test_scale)", ", 'nowhere_to_be_seen'", "'absent_as_well'",
             "1 pack in " + kTestKernels + "/cpu (target atlas_kernels_cpu builds them). "}) == "");
  CHECK(how_to_build("strix-hip") == "target atlas_kernels_strix_hip builds them");
}

TEST_CASE("audit: a kernel with other parameters is a problem with both digests") {
  const AuditReport report = audit_of({"other_digest"});
  REQUIRE(report.problems.size() == 1);
  CHECK(report.problems[0].kind == ProblemKind::kDigestDiffers);
  CHECK(missing_part(report.to_status(),
                     {"'test_scale' of 'other_digest'",
                      fmt::format("0x{:016x}", stub::kTestScaleParamsDigest),
                      fmt::format("0x{:016x}", stub::changed::kTestScaleParamsDigest)}) == "");
}

TEST_CASE("audit: an absent optional kernel is reported with reason and fallback, which runs") {
  const AuditReport report = audit_of({"optional_absent"});
  CHECK(report.ok());
  REQUIRE(report.fallbacks.size() == 1);
  CHECK(report.fallbacks[0].kernel == "test_scale_fast");
  CHECK(report.fallbacks[0].reason == "needs a wider machine");
  CHECK(report.kernel_to_run("optional_absent", "test_scale_fast") == "test_scale");
  CHECK(report.kernel_to_run("optional_absent", "test_scale") == "test_scale");
  CHECK(report.kernel_to_run("another", "test_scale_fast") == "test_scale_fast");
}

TEST_CASE("audit: problems of several plugins and of the plan's own needs come together") {
  std::vector<KernelNeed> needs = core_needs("cpu");
  CHECK(core_needs("gb10").size() == needs.size() + kernels::kGpuCoreKernels.size());
  CHECK(needs.size() == kernels::kCoreKernels.size());
  needs.push_back(needs.front());
  const AuditReport report =
      audit_of({"platform_not_listed", "other_digest", "kernels_absent"}, needs);
  CHECK(report.problems.size() == 1 + 1 + 3 + kernels::kCoreKernels.size());
  CHECK(missing_part(report.to_status(),
                     {"'platform_not_listed' does not list the platform (it lists: gb10, h200)",
                      "'control_fetch' of 'core'", "'score' of 'core'"}) == "");
}

TEST_CASE("audit: the JSON form holds the same, with digests as text") {
  const auto json = nlohmann::json::parse(to_json(
      audit_of({"other_digest", "optional_absent", "kernels_absent", "platform_not_listed"})));
  CHECK(json["ok"] == false);
  CHECK(json["platform"] == "cpu");
  CHECK(json["plugins"].size() == 4);
  CHECK(json["packs"][0]["file"] == kTestKernels + "/cpu/test.so");
  REQUIRE(json["problems"].size() == 5);
  CHECK(json["problems"][0]["kind"] == "digest_differs");
  CHECK(json["problems"][0]["found"] == fmt::format("0x{:016x}", stub::kTestScaleParamsDigest));
  CHECK(json["problems"][1]["available"][0] == "test_scale");
  CHECK(json["problems"][4]["kind"] == "platform_not_listed");
  CHECK(json["fallbacks"][0]["fallback"] == "test_scale");
}

TEST_SUITE_END();
