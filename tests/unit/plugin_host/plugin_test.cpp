// Loading: every plugin that is wrong on purpose leads to one clear error, and the right ones live
// as plugin.h says.
#include "daemon/plugin_host/plugin.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "daemon/device/abi_call.h"
#include "daemon/plugin_host/private_copy.h"
#include "plugins/sdk/toolchain.h"
#include "tests/unit/plugin_host/support.h"

using namespace atlas;
using namespace atlas::plugin_host;
using namespace atlas::plugin_host::testing;

TEST_SUITE_BEGIN("plugin_host");

namespace {

const LoadOptions kCpu = {"cpu", ""};

// Code and message of the failure to load a test plugin.
Status load_error(const std::string& name) {
  const auto plugin = load_plugin(test_plugin(name), kCpu);
  return plugin ? Status() : plugin.error();
}

// What a stub's statics say: STUB_GENERATION, entries and shutdowns of its mapping.
struct Stub {
  uint64_t generation, entries, shutdowns;
};
Stub ask(const Plugin& plugin) {
  AtlasWeightQuery query{};
  query.struct_size = sizeof(query);
  query.module = "stub";
  AtlasWeightClaim claim{};
  claim.struct_size = sizeof(claim);
  const Status status = abi::call("claim", plugin.quant().claim, &query, &claim);
  REQUIRE_MESSAGE(status.ok(), status.message());
  CHECK(claim.claimed == 1);
  return {claim.n, claim.k, claim.row_group};
}

}  // namespace

TEST_CASE("load: a right plugin answers, and its copy is private, named by content and whole") {
  const auto plugin = load_plugin(test_plugin("good"), kCpu);
  REQUIRE_MESSAGE(plugin, plugin.error().message());
  CHECK((*plugin)->name() == "good");
  CHECK(ask(**plugin).generation == 1);
  const bool other_table = (*plugin)->attention().plan != nullptr;
  CHECK_FALSE(other_table);
  const std::string copy = (*plugin)->private_file();
  CHECK(copy.ends_with("-" + (*plugin)->digest() + ".so"));
  CHECK(read_file(copy) == read_file(test_plugin("good")));
  CHECK((fs::status(fs::path(copy).parent_path()).permissions() & fs::perms(0777)) ==
        fs::perms(0700));
  // Debuggers and profilers find the mapping under that very name.
  CHECK(read_file("/proc/self/maps").find(copy) != std::string::npos);
  CHECK(read_file("/proc/self/maps").find(test_plugin("good")) == std::string::npos);
}

TEST_CASE("load: shutdown runs once after the last use, and the same content can come back") {
  auto first = load_plugin(test_plugin("good"), kCpu);
  auto second = load_plugin(test_plugin("good"), kCpu);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->get() == second->get());
  const Stub before = ask(**first);
  first->reset();
  CHECK(ask(**second).shutdowns == before.shutdowns);
  second->reset();
  const auto again = load_plugin(test_plugin("good"), kCpu);
  REQUIRE(again);
  CHECK(ask(**again).entries == before.entries + 1);
  CHECK(ask(**again).shutdowns == before.shutdowns + 1);
}

TEST_CASE("load: threads that load and drop one content never see it between entry and shutdown") {
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 50; ++i) {
        const auto plugin = load_plugin(test_plugin("good_2"), kCpu);
        if (!plugin) std::abort();
        const Stub stub = ask(**plugin);
        if (stub.entries != stub.shutdowns + 1) std::abort();
      }
    });
  }
  threads.clear();
  const auto last = load_plugin(test_plugin("good_2"), kCpu);
  REQUIRE(last);
  CHECK(ask(**last).entries == ask(**last).shutdowns + 1);
}

TEST_CASE(
    "load: replacing or cutting the file short touches nothing, loading again gets the new one") {
  const TempDir dir;
  const std::string file = dir / "swap.so";
  fs::copy_file(test_plugin("good"), file);
  const auto old = load_plugin(file, kCpu);
  REQUIRE(old);
  // In place: the inode that was read now holds other bytes.
  write_file(file, read_file(test_plugin("good_2")));
  CHECK(ask(**old).generation == 1);
  const auto fresh = load_plugin(file, kCpu);
  REQUIRE(fresh);
  CHECK(ask(**fresh).generation == 2);
  CHECK(ask(**old).generation == 1);
  CHECK((*old)->digest() != (*fresh)->digest());
  fs::resize_file(file, 100);
  CHECK(ask(**old).generation == 1);
  CHECK(ask(**fresh).generation == 2);
  const auto cut = load_plugin(file, kCpu);
  REQUIRE_FALSE(cut);
  CHECK(missing_part(cut.error(), {file}) == "");
  fs::remove(file);
  CHECK(ask(**old).generation == 1);
}

TEST_CASE("load: a plugin of another ABI or toolchain is refused before any of its code runs") {
  const Status abi = load_error("other_abi");
  CHECK(abi.code() == Code::kFailedPrecondition);
  CHECK(missing_part(abi, {test_plugin("other_abi"), "ABI 2.4", "speaks 1.4"}) == "");
  const Status toolchain = load_error("other_toolchain");
  CHECK(toolchain.code() == Code::kFailedPrecondition);
  CHECK(missing_part(toolchain, {test_plugin("other_toolchain"), "compiler is 'tcc-0'",
                                 "sanitizer is 'memory'"}) == "");
  CHECK(toolchain.message().find("machine") == std::string::npos);
  CHECK_FALSE(fs::exists(kTestPlugins + "/other_abi.mark"));
  CHECK_FALSE(fs::exists(kTestPlugins + "/other_toolchain.mark"));
}

TEST_CASE("load: what the file alone shows to be wrong gives one error that names it") {
  struct Case {
    std::string name;
    std::vector<std::string> parts;
  };
  for (const Case& c :
       {Case{"truncated_descriptor", {"descriptor is cut short: 40 bytes"}},
        Case{"no_descriptor", {"no Atlas descriptor"}},
        Case{"two_descriptors", {"more than one Atlas descriptor"}},
        Case{"platform_not_listed", {"does not list platform 'cpu'", "gb10, h200"}},
        Case{"no_entry", {"does not export 'atlas_plugin_entry'"}},
        Case{"undefined_symbol", {"undefined symbol: nobody_defines_this"}},
        Case{"null_functions", {"'bad_table'", "lacks pack, plan_gather"}},
        Case{"small_table", {"struct_size 24, version 1.4 has 72"}},
        Case{"small_plugin", {"struct_size 0"}},
        Case{"other_kind", {"says kind 3, its descriptor 1"}},
        Case{"other_version", {"says ABI 1.11, its descriptor 1.4"}},
        Case{"null_table", {"quantization table is null"}},
        Case{"entry_silent", {"'entry_silent'", "gave no reason"}},
        Case{"entry_throws", {"'entry_throws'", "threw an exception: thrown in the entry"}}}) {
    CAPTURE(c.name);
    const Status error = load_error(c.name);
    CHECK(missing_part(error, c.parts) == "");
    CHECK(load_error(c.name).message() == error.message());  // and nothing of the failure stays
  }
}

TEST_CASE("load: an entry that fails says why, and may succeed when it is asked again") {
  const Status error = load_error("entry_fails");
  CHECK(error.code() == Code::kFailedPrecondition);
  CHECK(missing_part(error, {"'entry_fails'", "the moon is not in the seventh house"}) == "");
  CHECK(load_error("entry_fails").ok());
}

TEST_CASE("load: a later minor version is taken, its longer tables cut to ours") {
  const auto plugin = load_plugin(test_plugin("newer_minor"), kCpu);
  REQUIRE_MESSAGE(plugin, plugin.error().message());
  CHECK((*plugin)->descriptor().abi_minor == ATLAS_ABI_MINOR + 1);
  CHECK(ask(**plugin).generation == 1);
}

TEST_CASE(
    "load: a plugin of version 1.0 is taken, and what 1.1 added answers that it is not there") {
  const auto plugin = load_plugin(test_plugin("older_minor"), kCpu);
  REQUIRE_MESSAGE(plugin, plugin.error().message());
  CHECK((*plugin)->descriptor().abi_minor == 0);
  CHECK(ask(**plugin).generation == 1);
  const Status status =
      abi::call("plan_grouped", (*plugin)->quant().plan_grouped, nullptr, nullptr);
  CHECK(status.code() == Code::kUnimplemented);
  CHECK(missing_part(status, {"plan_grouped: the plugin has no such call"}) == "");
  CHECK(missing_part(load_error("lacks_grouped"), {"'bad_table'", "lacks plan_grouped"}) == "");
}

TEST_CASE("load: exceptions, odd codes and endless messages of a plugin become one Status") {
  const auto plugin = load_plugin(test_plugin("call_throws"), kCpu);
  REQUIRE(plugin);
  const AtlasQuantApi& quant = (*plugin)->quant();
  const auto expect = [](const Status& status, Code code, const std::string& part) {
    CHECK(status.code() == code);
    CHECK(missing_part(status, {part}) == "");
  };
  expect(abi::call("claim", quant.claim, nullptr, nullptr), Code::kInternal,
         "claim: the plugin threw an exception: thrown in claim");
  expect(abi::call("linear_needs", quant.linear_needs, nullptr, nullptr), Code::kInternal,
         "threw an exception");
  const Status endless = abi::call("plan_linear", quant.plan_linear, nullptr, nullptr);
  expect(endless, Code::kInvalidArgument, "xxxx");
  CHECK(endless.message().size() < 1100);
  expect(abi::call("plan_encode", quant.plan_encode, nullptr, nullptr), Code::kUnknown,
         "gave no reason");
  expect(abi::call("plan_gather", quant.plan_gather, nullptr, nullptr), Code::kUnimplemented,
         "a stub does not compute");
  AtlasCode (*absent)(int, AtlasError*) = nullptr;
  expect(abi::call("later", absent, 1), Code::kUnimplemented, "no such call");
}

TEST_CASE("load: a folder for copies that cannot be used is an error that says so") {
  const auto plugin = load_plugin(test_plugin("optional_absent"), {"cpu", "/proc/nowhere"});
  REQUIRE_FALSE(plugin);
  CHECK(plugin.error().code() == Code::kFailedPrecondition);
  CHECK(missing_part(plugin.error(), {"/proc/nowhere", "writable"}) == "");
}

TEST_CASE("copies: the same content is reused, and a dead process's folder is swept") {
  const TempDir base;
  // What a killed process leaves behind: a folder that nobody locks.
  const std::string left = base / "atlas-plugins-killed";
  fs::create_directory(left);
  write_file(left + "/old.so", "old");
  const auto image = read_image(test_plugin("good"));
  REQUIRE(image);
  const auto first = private_copy(*image, base.path());
  const auto second = private_copy(*image, base.path());
  REQUIRE_MESSAGE(first, first.error().message());
  CHECK(*first == *second);
  CHECK(fs::path(*first).parent_path().parent_path() == base.path());
  CHECK_FALSE(fs::exists(left));
  // Ours is locked, so another process's sweep leaves it: a child sees it so.
  const pid_t child = ::fork();
  if (child == 0) ::_exit(private_copy(*image, base.path()) && fs::exists(*first) ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(fs::exists(*first));
}

TEST_SUITE_END();
