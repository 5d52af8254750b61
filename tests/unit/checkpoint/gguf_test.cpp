// The GGUF reader: a file of the format's own package, and every way to break a header.
#include "daemon/model/checkpoint/gguf.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <limits>

#include "tests/support/tiny_llama.h"
#include "tests/unit/checkpoint/gguf_bytes.h"
#include "tests/unit/checkpoint/support.h"

using namespace atlas;
using namespace atlas::model;
using namespace atlas::testing;

TEST_SUITE_BEGIN("checkpoint");

namespace {

/// Parses a copy and checks what the reader promises; the copy is gone afterwards.
Status read(const std::string& text) {
  const Bytes bytes(text);
  const auto file = GgufFile::parse(bytes.span(), "a.gguf");
  if (!file) return file.error();
  check_tensors(file->tensors(), text.size());
  return {};
}

void refused(const GgufBytes& file, std::initializer_list<const char*> parts,
             Code code = Code::kInvalidArgument) {
  const Status status = read(file.build());
  REQUIRE_FALSE(status.ok());
  const Result<int> result(status);
  check_error(result, code, {"a.gguf: "});
  check_error(result, code, parts);
}

}  // namespace

TEST_CASE("gguf: a file of the Python package gives its tensors, with dims outermost first") {
  const Bytes bytes(read_text(golden_path("types.gguf")));
  const auto file = GgufFile::parse(bytes.span(), "types.gguf");
  REQUIRE_MESSAGE(file, file.error().to_string());
  CHECK(file->version() == 3);
  CHECK(file->misaligned() == 0);
  const auto& expected = golden()["gguf"];
  CHECK(file->tensors().size() == expected.size());
  for (const TensorInfo& tensor : file->tensors()) {
    const std::string name(tensor.name);
    CAPTURE(name);
    REQUIRE(expected.contains(name));
    CHECK(dtype_name(tensor.dtype) == expected[name]["dtype"]);
    const std::vector<uint64_t> shape(tensor.shape().begin(), tensor.shape().end());
    CHECK(shape == expected[name]["shape"].get<std::vector<uint64_t>>());
    CHECK(tensor.offset == expected[name]["offset"]);
    const auto data = bytes.span().subspan(tensor.offset, tensor.bytes);
    CHECK(hex(data.first(std::min<size_t>(64, data.size()))) == expected[name]["data"]);
  }
}

TEST_CASE("gguf: metadata of every type is read, integers of any width") {
  const Bytes bytes(read_text(golden_path("types.gguf")));
  const auto file = GgufFile::parse(bytes.span(), "types.gguf");
  REQUIRE(file);
  CHECK(**file->integer("test.u8") == 200);
  CHECK(**file->integer("test.u16") == 60000);
  CHECK(**file->integer("test.u32") == 4000000000u);
  CHECK(**file->integer("test.u64") == 9223372036854775807u);
  CHECK(**file->number("test.i8") == -100);
  CHECK(**file->number("test.i16") == -30000);
  CHECK(**file->number("test.i32") == -2000000000);
  CHECK(**file->number("test.i64") == -4611686018427387904.0);
  CHECK(**file->number("test.f32") == 0.5);
  CHECK(**file->number("test.f64") == 0.1);
  CHECK(**file->boolean("test.true"));
  CHECK_FALSE(**file->boolean("test.false"));
  CHECK(**file->text("test.text") == "caf\u00e9\nline");
  CHECK(**file->texts("test.texts") == std::vector<std::string_view>{"", "a", "\u00e9"});
  CHECK(**file->integers("test.integers") == std::vector<int64_t>{1, -2, 3});
  CHECK(file->array_size("test.nested") == 2);
  CHECK(file->text_at("test.texts", 2) == "\u00e9");
  CHECK_FALSE(file->text_at("test.texts", 3));
  CHECK_FALSE(file->text_at("test.integers", 0));
  CHECK_FALSE(file->integer("no.such.key")->has_value());
}

TEST_CASE("gguf: a value of another type is an error that shows what it is") {
  const Bytes bytes(read_text(golden_path("types.gguf")));
  const auto file = GgufFile::parse(bytes.span(), "types.gguf");
  REQUIRE(file);
  const Code bad = Code::kInvalidArgument;
  check_error(file->integer("test.i8"), bad, {"types.gguf", "'test.i8' is -100", "an integer"});
  check_error(file->integer("test.f32"), bad, {"'test.f32' is a f32"});
  check_error(file->integer("test.integers"), bad, {"array of 3 i32"});
  check_error(file->integer("test.text"), bad, {"is a string"});
  check_error(file->integer("test.nested"), bad, {"array of 2 array"});
  check_error(file->number("test.text"), bad, {"a number"});
  check_error(file->number("test.integers"), bad, {"a number"});
  check_error(file->boolean("test.u8"), bad, {"true or false"});
  check_error(file->text("test.u8"), bad, {"a string"});
  check_error(file->texts("test.integers"), bad, {"an array of strings"});
  check_error(file->texts("test.text"), bad, {"an array of strings"});
  check_error(file->integers("test.texts"), bad, {"an array of integers"});
  check_error(file->integers("test.numbers"), bad, {"an array of integers"});
}

TEST_CASE("gguf: an array of equal integers is that integer, as some writers give each layer one") {
  GgufBytes file;
  file.i32s("equal", {3, 3, 3}).i32s("mixed", {3, 4}).i32s("none", {}).i32s("below", {-1});
  const Bytes bytes(file.build());
  const auto parsed = GgufFile::parse(bytes.span(), "a.gguf");
  REQUIRE_MESSAGE(parsed, parsed.error().to_string());
  CHECK(**parsed->integer("equal") == 3);
  check_error(parsed->integer("mixed"), Code::kInvalidArgument, {"the same one"});
  check_error(parsed->integer("none"), Code::kInvalidArgument, {"array of 0"});
  check_error(parsed->integer("below"), Code::kInvalidArgument, {"from 0"});
}

TEST_CASE("gguf: version 2 is read; version 1, later ones and big-endian files say so") {
  GgufBytes file = small_llama();
  file.version = 2;
  CHECK(read(file.build()).ok());
  file.version = 1;
  refused(file, {"version 1", "versions 2 and 3"}, Code::kUnimplemented);
  file.version = 4;
  refused(file, {"version 4"}, Code::kUnimplemented);
  file.version = 3u << 24;
  refused(file, {"big-endian"}, Code::kUnimplemented);
  file.version = 0;
  refused(file, {"version 0"}, Code::kUnimplemented);
}

TEST_CASE("gguf: what only pretends to be such a file is called by its name") {
  GgufBytes file;
  file.magic = 0x67676a74;
  refused(file, {"not a GGUF file", "before GGUF"});
  const auto looks_like = [](const std::string& text, const char* kind) {
    const Status status = read(text);
    CHECK(status.message().find("not a GGUF file") != std::string::npos);
    CHECK_MESSAGE(status.message().find(kind) != std::string::npos, status.message());
  };
  looks_like("version https://git-lfs.github.com/spec/v1\n", "git-lfs");
  looks_like("", "empty");
  looks_like("GGU", "something else");
  looks_like(raw<uint64_t>(2) + "{}", "a safetensors file");
}

TEST_CASE("gguf: counts that the file cannot hold are refused before anything is allocated") {
  GgufBytes file = small_llama();
  file.extra_pairs = uint64_t{1} << 60;
  refused(file, {"key-value pairs cannot fit"});
  file.extra_pairs = 0;
  file.extra_tensors = uint64_t{1} << 60;
  refused(file, {"tensors cannot fit"});
  file.extra_tensors = 1;
  refused(file, {"ends inside tensor record 2"});
  GgufBytes other;
  other.alignment = 8;
  other.extra_pairs = 1;
  other.data = std::string(40, '\xff');
  refused(other, {"ends inside key 1 of 1"});
}

TEST_CASE("gguf: lengths, types and depths of values are checked") {
  const auto value = [](uint32_t type, const std::string& bytes) {
    return GgufBytes().pair("k", type, bytes);
  };
  const std::string huge = raw(std::numeric_limits<uint64_t>::max());
  refused(value(8, huge), {"key 'k'", "ends inside the string"});
  refused(value(9, raw<uint32_t>(4) + huge), {"key 'k'", "ends inside the value"});
  refused(value(9, raw<uint32_t>(8) + huge),
          {"key 'k'", "ends inside string 2 of 18446744073709551615"});
  refused(value(9, raw<uint32_t>(9) + huge), {"key 'k'"});
  refused(value(9, raw<uint32_t>(13) + raw<uint64_t>(1)), {"element type 13 is unknown"});
  refused(value(13, raw<uint64_t>(1)), {"value type 13 is unknown"});
  // A count whose bytes overflow 64 bits.
  refused(value(9, raw<uint32_t>(10) + raw(uint64_t{1} << 61)), {"ends inside the value"});
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += raw<uint32_t>(9) + raw<uint64_t>(1);
  refused(value(9, deep), {"nested deeper than 4"});
  refused(GgufBytes().u32("k", 1).u32("k", 2), {"'k' is there twice"});
}

TEST_CASE("gguf: the alignment is a power of two of a sane size, of any integer type") {
  GgufBytes file;
  file.alignment = 64;
  file.pair("general.alignment", 10, raw<uint64_t>(64));
  file.append("a", {1}, 0, "1234").append("b", {2}, 0, "12345678");
  CHECK(read(file.build()).ok());
  for (const uint32_t bad : {0u, 3u, 48u, 1u << 21}) {
    CAPTURE(bad);
    refused(GgufBytes().u32("general.alignment", bad), {"general.alignment", "power of two"});
  }
  refused(GgufBytes().text("general.alignment", "32"), {"general.alignment"});
}

TEST_CASE("gguf: tensor records with impossible names, shapes, types or places are refused") {
  const auto one = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset,
                      size_t bytes, const std::string& name = "t") {
    GgufBytes file;
    file.tensor(name, dims, type, offset);
    file.data = std::string(bytes, '\1');
    return file;
  };
  CHECK(read(one({32, 2}, 2, 0, 36).build()).ok());
  CHECK(read(one({}, 0, 0, 4).build()).ok());
  CHECK(read(one({5, 0}, 0, 0, 0).build()).ok());
  // Without the padding in front of its data, even a tensor of no bytes has no place in the file.
  const std::string empty = one({5, 0}, 0, 0, 0).build();
  CHECK(read(empty.substr(0, empty.size() - 1)).message().find("cut short") != std::string::npos);
  refused(one({33, 2}, 2, 0, 100), {"'t' has rows of 33", "q4_0 has blocks of 32"});
  refused(one({32, 2}, 2, 0, 35), {"'t' needs 36 bytes at 0 of 35", "cut short"});
  refused(one({32, 2}, 2, 64, 99), {"'t' needs 36 bytes at 64 of 99"});
  refused(one({32}, 2, 1, 99), {"'t' lies at 1", "multiple of 32"});
  refused(one({8}, 0, uint64_t{0} - 32, 99), {"needs 32 bytes at 18446744073709551584"});
  refused(one({uint64_t{1} << 62}, 0, 0, 9), {"overflows"});
  refused(one({uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0, 9), {"overflows"});
  refused(one({1, 1, 1, 1, 1}, 0, 0, 9), {"5 dimensions", "at most 4"});
  refused(one({1}, 0, 0, 4, ""), {"is empty"});
  refused(one({1}, 0, 0, 4, std::string("a\0b", 3)), {"zero byte"});
  refused(one({256}, 10, 0, 99), {"'t' has type 10, Q2_K", "Q4_0, Q4_1"}, Code::kUnimplemented);
  refused(one({1}, 99, 0, 99), {"'t' has type 99; Atlas reads"}, Code::kUnimplemented);
  GgufBytes overlap;
  overlap.tensor("a", {16}, 0, 0).tensor("b", {16}, 0, 32).data = std::string(96, '\1');
  refused(overlap, {"'a' and 'b' overlap"});
}

TEST_CASE("gguf: data that is not aligned to its elements is read and counted") {
  GgufBytes file;
  file.alignment = 1;
  file.u32("general.alignment", 1);
  file.append("a", {1}, 24, "1").append("b", {1}, 0, "1234");
  const Bytes bytes(file.build());
  const auto parsed = GgufFile::parse(bytes.span(), "a.gguf");
  REQUIRE_MESSAGE(parsed, parsed.error().to_string());
  CHECK(parsed->misaligned() == (parsed->tensors()[1].offset % 4 == 0 ? 0 : 1));
}

TEST_CASE("gguf: names of llama tensors become Hugging Face's, others stay") {
  CHECK(huggingface_name("token_embd.weight") == "model.embed_tokens.weight");
  CHECK(huggingface_name("output_norm.weight") == "model.norm.weight");
  CHECK(huggingface_name("output.weight") == "lm_head.weight");
  CHECK(huggingface_name("blk.0.attn_q.weight") == "model.layers.0.self_attn.q_proj.weight");
  CHECK(huggingface_name("blk.12.attn_k.bias") == "model.layers.12.self_attn.k_proj.bias");
  CHECK(huggingface_name("blk.1.attn_v.weight") == "model.layers.1.self_attn.v_proj.weight");
  CHECK(huggingface_name("blk.1.attn_output.weight") == "model.layers.1.self_attn.o_proj.weight");
  CHECK(huggingface_name("blk.1.attn_norm.weight") == "model.layers.1.input_layernorm.weight");
  CHECK(huggingface_name("blk.1.ffn_norm.weight") ==
        "model.layers.1.post_attention_layernorm.weight");
  CHECK(huggingface_name("blk.1.ffn_gate.weight") == "model.layers.1.mlp.gate_proj.weight");
  CHECK(huggingface_name("blk.1.ffn_up.weight") == "model.layers.1.mlp.up_proj.weight");
  CHECK(huggingface_name("blk.1.ffn_down.weight") == "model.layers.1.mlp.down_proj.weight");
  for (const char* name :
       {"rope_freqs.weight", "blk.1.unknown.weight", "blk.x.attn_q.weight", "blk..attn_q.weight",
        "blk.1.attn_q.scale", "blk.1", "output", ".weight", "blk.attn_q.weight"}) {
    CHECK(huggingface_name(name) == name);
  }
}

TEST_CASE("gguf: cut anywhere or with any byte changed, a file is refused or harmless") {
  const std::string good = small_llama().build();
  REQUIRE(read(good).ok());
  for (size_t length = 0; length < good.size(); ++length) {
    CAPTURE(length);
    CHECK_FALSE(read(good.substr(0, length)).ok());
  }
  for (size_t at = 0; at < good.size() - 384; ++at) {
    for (const char change : {'\0', '\1', '\x09', '\x20', '\x7f', '\x80', '\xff'}) {
      std::string bad = good;
      bad[at] = change;
      (void)read(bad).ok();  // its checks run inside
    }
  }
}

TEST_CASE("gguf: of a file on the disk the header is read, however long, and what is cut is told") {
  GgufBytes bytes = small_llama();
  const std::string long_text(5 << 20, 'x');
  bytes.texts("many", std::vector<std::string>(100'000, "a word of some length"));
  bytes.text("long", long_text);
  const std::string text = bytes.build();
  const TempDir dir;
  const std::string path = dir.file("a.gguf");
  write_text(path, text);
  auto input = InputFile::open(path);
  REQUIRE(input);
  {
    auto read = GgufFile::read(*input);
    REQUIRE_MESSAGE(read, read.error().to_string());
    const GgufFile file = std::move(*read);
    check_tensors(file.tensors(), text.size());
    CHECK(file.text_at("many", 99'999) == "a word of some length");
    CHECK(**file.text("long") == long_text);
    CHECK(file.tensors()[0].name == "token_embd.weight");
    CHECK(file.tensors()[0].offset == text.size() - 384);
  }
  // Cut while nobody has read further than its beginning.
  std::filesystem::resize_file(path, text.size() / 2);
  check_error(GgufFile::read(*input), Code::kDataLoss,
              {path.c_str(), "cut short while it was read", "by renaming"});
  const auto shorter = InputFile::open(path);
  check_error(GgufFile::read(*shorter), Code::kInvalidArgument, {path.c_str(), "'long'", "ends"});
}

TEST_SUITE_END();
