// The safetensors reader: files of the format's own package, and every way to break a header.
#include "daemon/model/checkpoint/safetensors.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>

#include "tests/support/tiny_llama.h"
#include "tests/unit/checkpoint/support.h"

using namespace atlas;
using namespace atlas::model;
using namespace atlas::testing;

TEST_SUITE_BEGIN("checkpoint");

namespace {

std::string with_length(uint64_t length, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&length), 8) + rest;
}
std::string file_of(const std::string& header, const std::string& data) {
  return with_length(header.size(), header + data);
}

Result<TensorTable> read(const std::string& text) {
  const Bytes bytes(text);
  TensorTable table;
  const std::vector<std::string> files{"a.safetensors"};
  ATLAS_ASSIGN_OR_RETURN(const SafetensorsSummary summary,
                         read_safetensors(bytes.span(), files[0], 0, &table));
  ATLAS_RETURN_IF_ERROR(table.seal(files));
  check_tensors(table.tensors(), text.size());
  CHECK(summary.tensors == table.tensors().size());
  return table;
}

void refused(const std::string& header, size_t data_bytes, std::initializer_list<const char*> parts,
             Code code = Code::kInvalidArgument) {
  CAPTURE(header);
  const auto result = read(file_of(header, std::string(data_bytes, 'x')));
  check_error(result, code, {"a.safetensors: "});
  check_error(result, code, parts);
}

constexpr const char* kTwo =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
    R"("a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}  )";

}  // namespace

TEST_CASE("safetensors: a file of the Python package gives its names, shapes, types and bytes") {
  const Bytes bytes(read_text(golden_path("types.safetensors")));
  TensorTable table;
  const std::vector<std::string> files{"types.safetensors"};
  const auto summary = read_safetensors(bytes.span(), files[0], 0, &table);
  REQUIRE_MESSAGE(summary, summary.error().to_string());
  REQUIRE(table.seal(files).ok());
  const std::map<std::string, std::string> names = {{"float32", "f32"},
                                                    {"float16", "f16"},
                                                    {"bfloat16", "bf16"},
                                                    {"float64", "f64"},
                                                    {"int8", "i8"},
                                                    {"uint8", "u8"},
                                                    {"int16", "i16"},
                                                    {"uint16", "u16"},
                                                    {"int32", "i32"},
                                                    {"uint32", "u32"},
                                                    {"int64", "i64"},
                                                    {"uint64", "u64"},
                                                    {"bool", "bool"},
                                                    {"float8_e4m3fn", "f8_e4m3"},
                                                    {"float8_e5m2", "f8_e5m2"},
                                                    {"float8_e8m0fnu", "f8_e8m0"}};
  const auto& expected = golden()["safetensors"];
  CHECK(table.tensors().size() == expected.size());
  for (const auto& [name, tensor] : expected.items()) {
    CAPTURE(name);
    const TensorInfo* found = table.find(name);
    REQUIRE(found != nullptr);
    CHECK(dtype_name(found->dtype) == names.at(tensor["dtype"]));
    const std::vector<uint64_t> shape(found->shape().begin(), found->shape().end());
    CHECK(shape == tensor["shape"].get<std::vector<uint64_t>>());
    CHECK(hex(bytes.span().subspan(found->offset, found->bytes)) == tensor["data"]);
    CHECK(std::strlen(found->name.data()) == found->name.size());
  }
}

TEST_CASE("safetensors: order of entries, metadata and trailing spaces do not matter") {
  const auto table = read(file_of(kTwo, std::string(12, 'x')));
  REQUIRE_MESSAGE(table, table.error().to_string());
  CHECK(table->tensors()[0].name == "a");
  CHECK(table->tensors()[1].name == "b");
  CHECK(read(file_of("{}", "")));
  CHECK(read(file_of(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "1234")));
  CHECK(read(file_of(R"({"a":{"dtype":"F32","shape":[0,9],"data_offsets":[0,0]},)"
                     R"("b":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
                     "")));
}

TEST_CASE("safetensors: data that is not aligned to its elements is read and counted") {
  const Bytes bytes(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"));
  TensorTable table;
  const auto summary = read_safetensors(bytes.span(), "a", 0, &table);
  REQUIRE(summary);
  CHECK(summary->misaligned == (bytes.span().size() % 4 == 0 ? 0 : 1));
}

TEST_CASE("safetensors: what only pretends to be such a file is called by its name") {
  const auto looks_like = [](const std::string& text, const char* kind) {
    check_error(read(text), Code::kInvalidArgument, {"not a safetensors file", kind});
  };
  looks_like("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n", "git-lfs");
  looks_like(std::string("PK\x03\x04\x00\x00", 6) + std::string(100, 'z'), "zip");
  looks_like(std::string("\x80\x02}q\x00X\x05\x00\x00\x00", 10), "pickle");
  looks_like("GGUF\x03" + std::string(100, '\0'), "GGUF");
  looks_like("<!DOCTYPE html><html>", "web page");
  looks_like("{\"a\": 1, \"b\": 2}", "JSON");
  looks_like("", "empty");
  looks_like(std::string(50, '\0'), "something else");
  looks_like(with_length(2, "[]"), "something else");
}

TEST_CASE("safetensors: a length that does not fit is refused with both numbers") {
  check_error(read(with_length(3, "{}")), Code::kInvalidArgument,
              {"says 3 bytes", "only 2 follow"});
  check_error(read(with_length(UINT64_MAX, "{}")), Code::kInvalidArgument,
              {"18446744073709551615", "only 2 follow"});
  check_error(read(with_length(1, "{}")), Code::kInvalidArgument, {"has 1 bytes"});
  check_error(read(with_length(0, "{}")), Code::kInvalidArgument, {"has 0 bytes"});
}

TEST_CASE("safetensors: a header beyond the limit is refused with the limit, without reading it") {
  // Address space only: the pages behind it are never touched.
  const uint64_t size = kMaxSafetensorsHeader + 100;
  const std::unique_ptr<std::byte[]> bytes = std::make_unique_for_overwrite<std::byte[]>(size);
  const uint64_t length = kMaxSafetensorsHeader + 1;
  std::memcpy(bytes.get(), &length, 8);
  bytes[8] = std::byte{'{'};
  TensorTable table;
  check_error(read_safetensors({bytes.get(), size}, "a", 0, &table), Code::kInvalidArgument,
              {"536870913", "the limit is 536870912"});
}

TEST_CASE("safetensors: fields that are missing, doubled, unknown or of another type are named") {
  refused(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, {"'a'", "no dtype"});
  refused(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, {"'a'", "no shape"});
  refused(R"({"a":{"dtype":"F32","shape":[1]}})", 4, {"'a'", "no data_offsets"});
  refused(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
          {"'a'", "'dtype' twice"});
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4,
          {"'a'", "unknown field 'x'"});
  refused(R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", 4, {"'a'", "in its dtype"});
  refused(R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4, {"'a'", "in its shape"});
  refused(R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", 4, {"'a'", "a string"});
  refused(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, {"'a'", "negative"});
  refused(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, {"'a'", "not whole"});
  refused(R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, {"'a'", "a list"});
  refused(R"({"a":{"dtype":"F32","shape":[{}],"data_offsets":[0,4]}})", 4, {"'a'", "an object"});
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, {"3 data_offsets"});
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4]}})", 4, {"1 data_offsets"});
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":null}})", 4, {"null"});
  refused(R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4,
          {"more than 6 dimensions"});
  refused(R"({"a":[]})", 0, {"'a' is a list"});
  refused(R"({"a":null})", 0, {"'a' is null"});
  refused(R"({"__metadata__":{"a":1}})", 0, {"__metadata__"});
  refused(R"({"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, {"is empty"});
  refused("{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
          {"zero byte"});
}

TEST_CASE("safetensors: a type that Atlas does not read is named with those that it does") {
  refused(R"({"a":{"dtype":"F4","shape":[8],"data_offsets":[0,4]}})", 4,
          {"'a'", "'F4'", "F32, F16, BF16"}, Code::kUnimplemented);
}

TEST_CASE("safetensors: spans must match shapes and lie inside the data") {
  // The public report: a shape of a million floats over four bytes.
  refused(R"({"a":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}})", 4,
          {"needs 4000000 bytes", "span 4"});
  refused(R"({"a":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4000000]}})", 4,
          {"[0, 4000000) of 4 bytes"});
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, {"[4, 0)"});
  refused(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
          {"overflows"});
  refused(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
          {"overflows"});
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551616]}})", 4,
          {"does not fit in 64 bits"});
}

TEST_CASE("safetensors: overlaps, holes and a rest of the data are refused") {
  refused(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
          R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
          6, {"'b' overlaps 'a' by 2 bytes"});
  refused(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
          R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
          4, {"overlaps"});
  refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
          R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
          6, {"2 bytes between 'a' and 'b'"});
  refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3, {"1 bytes between"});
  refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 5, {"3 bytes after"});
  refused("{}", 5, {"5 bytes after"});
}

TEST_CASE("safetensors: names used twice and broken JSON are refused") {
  check_error(read(file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                           R"("a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                           "1234")),
              Code::kInvalidArgument, {"'a' is defined twice"});
  refused(R"({"a":)", 0, {"not valid JSON"});
  refused("{}{}", 0, {"not valid JSON"});
  refused("{\"\xff\":1}", 0, {"not valid JSON"});
  refused("{" + std::string(100000, '['), 0, {"not valid JSON"});
  refused(R"({"a":)" + std::string(100000, '['), 0, {"'a' is a list"});
}

TEST_CASE("safetensors: control characters of a name do not reach the message") {
  refused("{\"\\u001b[31m\\n\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8,
          {"'\\x1b[31m\\x0a'"});
}

TEST_CASE("safetensors: cut anywhere or with any byte changed, a file is refused or harmless") {
  const std::string good = file_of(kTwo, std::string(12, 'x'));
  REQUIRE(read(good));
  for (size_t length = 0; length < good.size(); ++length) {
    CAPTURE(length);
    CHECK_FALSE(read(good.substr(0, length)));
  }
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char change : {'\0', '"', '{', '}', '0', '9', '\x7f', '\xff'}) {
      std::string bad = good;
      bad[at] = change;
      (void)read(bad).has_value();  // its checks run inside
    }
  }
}

TEST_CASE("index: names and shards come as listed, nested metadata is passed over") {
  const auto index = read_safetensors_index(
      R"({"metadata":{"total_size":3,"x":[{"y":[null,true,1.5]}]},)"
      R"("weight_map":{"b":"2.safetensors","a":"1.safetensors","c":"2.safetensors"},"z":[1]})",
      "i");
  REQUIRE_MESSAGE(index, index.error().to_string());
  CHECK(index->shards == std::vector<std::string>{"2.safetensors", "1.safetensors"});
  REQUIRE(index->tensors.size() == 3);
  CHECK(index->tensors[0] == std::pair<std::string_view, uint32_t>{"a", 1});
  CHECK(index->tensors[1] == std::pair<std::string_view, uint32_t>{"b", 0});
}

TEST_CASE("index: broken maps and shard names that leave the folder are refused") {
  const auto refuse = [](const std::string& json, std::initializer_list<const char*> parts) {
    CAPTURE(json);
    check_error(read_safetensors_index(json, "i.json"), Code::kInvalidArgument, parts);
  };
  refuse("{}", {"i.json", "no 'weight_map'"});
  refuse("[]", {"i.json"});
  refuse("7", {"i.json"});
  refuse("", {"i.json", "not valid JSON"});
  refuse(R"({"weight_map":[]})", {"a list"});
  refuse(R"({"weight_map":7})", {"a number"});
  refuse(R"({"weight_map":"x"})", {"a string"});
  refuse(R"({"weight_map":{"a":1}})", {"a number"});
  refuse(R"({"weight_map":{"a":{"b":"c"}}})", {"an object"});
  refuse(R"({"weight_map":{"a":{}}})", {"an object"});
  refuse(R"({"weight_map":{"a":null}})", {"null"});
  refuse(R"({"weight_map":{"a":"x","a":"x"}})", {"'a' is listed twice"});
  refuse(R"({"weight_map":{},"weight_map":{}})", {"twice"});
  for (const char* path : {"../x", "/etc/passwd", "a/../../x", "..", "", "a/..", "x\\u0000y"}) {
    refuse(std::string(R"({"weight_map":{"a":")") + path + "\"}}", {"not inside the folder"});
  }
  CHECK(read_safetensors_index(R"({"weight_map":{"a":"sub/..x.safetensors"}})", "i"));
}

TEST_CASE("safetensors: of a file on the disk the header is read, and what is cut is told") {
  const std::string header(kTwo);
  const std::string text = file_of(header, std::string(12, 'x'));
  const TempDir dir;
  const std::string path = dir.file("a.safetensors");
  write_text(path, text);
  const auto input = InputFile::open(path);
  REQUIRE(input);
  TensorTable table;
  const auto summary = read_safetensors(*input, 0, &table);
  REQUIRE_MESSAGE(summary, summary.error().to_string());
  CHECK(summary->tensors == 2);
  REQUIRE(table.seal(std::span(&path, 1)).ok());
  check_tensors(table.tensors(), text.size());
  for (const size_t bytes : {text.size() - 20, size_t{20}, size_t{3}, size_t{0}}) {
    CAPTURE(bytes);
    std::filesystem::resize_file(path, bytes);
    TensorTable none;
    check_error(read_safetensors(*input, 0, &none), Code::kDataLoss,
                {path.c_str(), "cut short while it was read", "by renaming"});
    const auto shorter = InputFile::open(path);
    check_error(read_safetensors(*shorter, 0, &none), Code::kInvalidArgument, {path.c_str()});
  }
}

TEST_SUITE_END();
