// Descriptors: what a right one says, and one clear error for each way to be wrong.
#include "daemon/plugin_host/descriptor.h"

#include <doctest/doctest.h>

#include <cstddef>

#include "plugins/sdk/descriptor.h"
#include "tests/support/elf_builder.h"
#include "tests/unit/plugin_host/support.h"

using namespace atlas;
using namespace atlas::plugin_host;
using namespace atlas::plugin_host::testing;

TEST_SUITE_BEGIN("plugin_host");

namespace {

constexpr auto kNote =
    sdk::describe({ATLAS_KIND_ATTENTION, "sample", "1.2.3", "Apache-2.0"},
                  std::array<std::string_view, 2>{"cpu", "h200"},
                  std::array{sdk::required_kernel("cpu", "walk", 0x1122334455667788ull),
                             sdk::optional_kernel("h200", "walk_fast", 7, "needs sm_90a", "walk"),
                             sdk::required_kernel("h200", "walk", 7)});
constexpr size_t kPlatforms = sizeof(AtlasDescriptorHeader);
constexpr size_t kKernels = kPlatforms + 2 * sizeof(AtlasDescriptorPlatform);

std::vector<std::byte> record() {
  std::vector<std::byte> bytes(kNote.bytes.size());
  std::memcpy(bytes.data(), kNote.bytes.data(), bytes.size());
  return bytes;
}

template <typename T>
std::vector<std::byte> with(std::vector<std::byte> bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
  return bytes;
}
std::vector<std::byte> with_text(std::vector<std::byte> bytes, size_t offset,
                                 std::string_view text) {
  std::memcpy(bytes.data() + offset, text.data(), text.size());
  bytes[offset + text.size()] = std::byte{0};
  return bytes;
}

// The message of the one error that `bytes` lead to.
std::string error_of(const std::vector<std::byte>& bytes) {
  const auto parsed = parse_descriptor(bytes);
  return parsed ? "no error" : parsed.error().message();
}

std::vector<std::byte> image_of(const std::vector<std::byte>& description, int copies = 1,
                                const atlas::testing::ElfOptions& options = {}) {
  std::vector<std::byte> notes;
  const std::byte build_id[8] = {};
  atlas::testing::append_note(notes, "GNU", 3, build_id);
  for (int i = 0; i < copies; ++i) {
    atlas::testing::append_note(notes, ATLAS_NOTE_NAME, ATLAS_NOTE_DESCRIPTOR, description);
  }
  return atlas::testing::elf_with_notes(notes, options);
}

}  // namespace

TEST_CASE("descriptor: every field of a right one is read from the file's bytes") {
  const auto read = descriptor_of_image(image_of(record()), "/x/sample.so");
  REQUIRE_MESSAGE(read, read.error().message());
  CHECK(read->file == "/x/sample.so");
  CHECK(read->name == "sample");
  CHECK(read->version == "1.2.3");
  CHECK(read->licence == "Apache-2.0");
  CHECK(read->kind == PluginKind::kAttention);
  CHECK(read->abi_major == ATLAS_ABI_MAJOR);
  CHECK(read->toolchain == sdk::kToolchain);
  CHECK(read->platforms == std::vector<std::string>{"cpu", "h200"});
  CHECK(read->lists("h200"));
  CHECK_FALSE(read->lists("gb10"));
  REQUIRE(read->kernels.size() == 3);
  CHECK(read->kernels[0].digest == 0x1122334455667788ull);
  CHECK(read->kernels[0].required);
  CHECK_FALSE(read->kernels[1].required);
  CHECK(read->kernels[1].reason == "needs sm_90a");
  CHECK(read->kernels[1].fallback == "walk");
}

TEST_CASE("descriptor: a built plugin's file is read as its source says") {
  const auto read = read_descriptor(test_plugin("optional_absent"));
  REQUIRE_MESSAGE(read, read.error().message());
  CHECK(read->name == "optional_absent");
  REQUIRE(read->kernels.size() == 2);
  CHECK(read->kernels[0].fallback == "test_scale");
}

TEST_CASE("descriptor: every length shorter than the record is refused, and one byte more") {
  const std::vector<std::byte> whole = record();
  for (size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    const std::span<const std::byte> cut(whole.data(), length);
    CHECK_FALSE(parse_descriptor(cut));
  }
  std::vector<std::byte> longer = whole;
  longer.push_back(std::byte{0});
  CHECK(error_of(longer).find("but its note holds") != std::string::npos);
}

TEST_CASE("descriptor: counts that do not fit the size are refused without overflow") {
  const size_t platform_count = offsetof(AtlasDescriptorHeader, platform_count);
  const size_t kernel_count = offsetof(AtlasDescriptorHeader, kernel_count);
  for (const uint32_t count : {0u, 1u, 3u, 0x08000000u, 0x7fffffffu, 0xffffffffu}) {
    CAPTURE(count);
    CHECK(error_of(with(record(), platform_count, count)).find("counts") != std::string::npos);
  }
  for (const uint32_t count : {0u, 4u, 0x0f0f0f10u, 0xffffffffu}) {
    CAPTURE(count);
    CHECK(error_of(with(record(), kernel_count, count)).find("counts") != std::string::npos);
  }
}

TEST_CASE("descriptor: wrong magic, kind and version are told apart") {
  CHECK(error_of(with(record(), 0, 0x12345678u)) ==
        "its descriptor begins with 0x12345678 instead of 0x44735441");
  CHECK(error_of(with(record(), offsetof(AtlasDescriptorHeader, kind), 9u)) ==
        "its kind is 9, which is none of 1 to 3");
  const auto other =
      parse_descriptor(with(record(), offsetof(AtlasDescriptorHeader, abi_major), 0u));
  REQUIRE_FALSE(other);
  CHECK(other.error().code() == Code::kFailedPrecondition);
  CHECK(missing_part(other.error(), {"plugin ABI 0.4", "speaks 1.4"}) == "");
}

TEST_CASE("descriptor: texts must end inside their arrays and be printable") {
  const size_t name = offsetof(AtlasDescriptorHeader, name);
  std::vector<std::byte> endless = record();
  std::memset(endless.data() + name, 'a', 32);
  CHECK(error_of(endless) == "its name is not terminated within 32 bytes");
  CHECK(error_of(with_text(record(), name, "")) == "its name is empty");
  CHECK(error_of(with_text(record(), name, "../evil")).find("letters, digits") !=
        std::string::npos);
  CHECK(error_of(with_text(record(), offsetof(AtlasDescriptorHeader, licence), "\x1b[31mred"))
            .find("not printable") != std::string::npos);
  std::vector<std::byte> kernel = record();
  std::memset(kernel.data() + kKernels + offsetof(AtlasDescriptorKernel, kernel), 'k', 64);
  CHECK(error_of(kernel) == "its kernel entry 0's name is not terminated within 64 bytes");
}

TEST_CASE("descriptor: entries must agree with each other") {
  const size_t kernel_bytes = sizeof(AtlasDescriptorKernel);
  const size_t required = offsetof(AtlasDescriptorKernel, required);
  CHECK(error_of(with_text(record(), kPlatforms + 32, "cpu")) == "it lists a platform twice");
  CHECK(error_of(with_text(record(), kKernels, "moon")) ==
        "its kernel 'walk' is for platform 'moon', which it does not list");
  CHECK(error_of(with_text(record(), kKernels + kernel_bytes + 32, "walk")) ==
        "it lists kernel 'walk' of platform 'h200' twice");
  CHECK(error_of(with(record(), kKernels + required, 2u)).find("required=2") != std::string::npos);
  CHECK(error_of(with(record(), kKernels + required, 0u)) ==
        "its optional kernel 'walk' says no reason or no fallback");
}

TEST_CASE("descriptor: fallbacks lead to a kernel with the same parameters, or to the core") {
  const size_t second = kKernels + sizeof(AtlasDescriptorKernel);
  const size_t third = second + sizeof(AtlasDescriptorKernel);
  const size_t fallback = offsetof(AtlasDescriptorKernel, fallback);
  CHECK(parse_descriptor(with_text(record(), second + fallback, "core")));
  CHECK(error_of(with_text(record(), second + fallback, "absent")).find("neither 'core' nor") !=
        std::string::npos);
  CHECK(error_of(with_text(record(), second + fallback, "walk_fast")) ==
        "the fallbacks of its kernel 'walk_fast' go in a circle");
  auto circle = with(record(), third + offsetof(AtlasDescriptorKernel, required), 0u);
  circle = with_text(circle, third + offsetof(AtlasDescriptorKernel, reason), "none");
  CHECK(error_of(with_text(circle, third + fallback, "walk_fast")) ==
        "the fallbacks of its kernel 'walk_fast' go in a circle");
  CHECK(error_of(
            with(record(), third + offsetof(AtlasDescriptorKernel, params_digest), uint64_t{8})) ==
        "its kernel 'walk_fast' falls back to 'walk', which has other parameters");
}

TEST_CASE("descriptor: what is no plugin is refused by what it is") {
  const std::vector<std::byte> good = image_of(record());
  const auto error = [](const std::vector<std::byte>& image) {
    return descriptor_of_image(image, "p.so").error();
  };
  CHECK(missing_part(error({}), {"'p.so'", "it is empty"}) == "");
  CHECK(missing_part(error({good.begin(), good.begin() + 40}), {"cut short"}) == "");
  CHECK(missing_part(error(image_of(record(), 2)), {"more than one Atlas descriptor"}) == "");
  CHECK(missing_part(error(image_of(record(), 0)), {"no Atlas descriptor"}) == "");
  CHECK(missing_part(error(image_of(record(), 1, {.type = ET_EXEC})), {"not a shared object"}) ==
        "");
  CHECK(missing_part(error(image_of(record(), 1, {.machine = EM_CUDA})), {"built for CUDA"}) == "");
  CHECK(missing_part(error(with(good, EI_CLASS, uint8_t{ELFCLASS32})), {"64-bit"}) == "");
  // Cut anywhere, the file is refused and nothing outside of it is read (asan watches).
  for (size_t length = 0; length < good.size(); ++length) {
    CAPTURE(length);
    CHECK_FALSE(descriptor_of_image(std::vector(good.begin(), good.begin() + length), "p.so"));
  }
}

TEST_CASE("descriptor: a plugin that was cut behind its notes is refused before it is mapped") {
  const std::string built = read_file(test_plugin("good"));
  const auto* bytes = reinterpret_cast<const std::byte*>(built.data());
  REQUIRE(descriptor_of_image({bytes, built.size()}, "p.so"));
  for (const size_t length : {built.size() / 8, built.size() / 4, built.size() / 2,
                              built.size() * 3 / 4, built.size() - 1}) {
    CAPTURE(length);
    const auto cut = descriptor_of_image({bytes, length}, "p.so");
    REQUIRE_FALSE(cut);
    CHECK(missing_part(cut.error(), {"'p.so' is refused", "cut short"}) == "");
  }
}

TEST_CASE("descriptor: files of every other kind give one error that names them") {
  const TempDir dir;
  write_file(dir / "text.so", "not a plugin at all\n");
  write_file(dir / "empty.so", "");
  fs::create_symlink(dir / "nowhere", dir / "dangling.so");
  fs::create_directory(dir / "folder.so");
  struct Case {
    std::string path;
    Code code;
    std::string part;
  };
  for (const Case& c :
       {Case{dir / "text.so", Code::kInvalidArgument, "begins with 'not a pl'"},
        Case{dir / "empty.so", Code::kInvalidArgument, "it is empty"},
        Case{dir / "dangling.so", Code::kNotFound, "No such file"},
        Case{dir / "folder.so", Code::kInvalidArgument, "it is a folder"},
        Case{"/dev/null", Code::kInvalidArgument, "not a regular file"},
        Case{fs::read_symlink("/proc/self/exe"), Code::kInvalidArgument, "no Atlas descriptor"},
        Case{dir / "text.so/x", Code::kNotFound, "Not a directory"}}) {
    const auto read = read_descriptor(c.path);
    REQUIRE_FALSE(read);
    CHECK(read.error().code() == c.code);
    CHECK(missing_part(read.error(), {"'" + c.path + "'", c.part}) == "");
  }
}

TEST_CASE("toolchain: a refusal names each field that differs, with both values") {
  PluginDescriptor descriptor;
  descriptor.file = "q.so";
  descriptor.toolchain = "machine=x86_64 compiler=gcc-11 extra=1 sanitizer=none";
  const std::string host = "machine=x86_64 compiler=gcc-12 sanitizer=none";
  const Status refused = check_toolchain(descriptor, host);
  CHECK(refused.code() == Code::kFailedPrecondition);
  CHECK(refused.message() ==
        "plugin 'q.so' is refused: it is built by another toolchain: compiler is 'gcc-11' in the "
        "plugin and 'gcc-12' in this Atlas, extra is '1' in the plugin and nothing in this Atlas; "
        "build it with the same one");
  descriptor.toolchain = host;
  CHECK(check_toolchain(descriptor, host).ok());
  for (const std::string odd : {"", "=", "   ", "machine", "x86_64=machine"}) {
    descriptor.toolchain = odd;
    CHECK_FALSE(check_toolchain(descriptor, host).ok());
  }
}

TEST_SUITE_END();
