// Where the rows of n-gram tables lie, whatever way a checkpoint stores them.
#include "daemon/model/checkpoint/ngram_table.h"

#include <doctest/doctest.h>

#include "tests/unit/checkpoint/safetensors_folder.h"
#include "tests/unit/checkpoint/support.h"

using namespace atlas;
using namespace atlas::model;
using namespace atlas::testing;
using nlohmann::json;

TEST_SUITE_BEGIN("checkpoint");

namespace {

// small_qwen4() has 408 rows of 2 elements: heads of 97, 101, 103 and 107 rows.
const std::string kModule = "model.layers.0.ple.ple_embedding.";
const std::string kTable = kModule + "ngram_embedding.";

FileTensors constants() {
  return {
      {kModule + "layer_multipliers",
       {"I64", {3}, bytes_of<int64_t>({4295158889762567, 35454616657218897, 19285316470915801})}},
      {kModule + "ngram_heads_vocab_sizes", {"I64", {4}, bytes_of<int64_t>({97, 101, 103, 107})}},
      {kModule + "ngram_heads_offsets", {"I64", {4}, bytes_of<int64_t>({0, 97, 198, 301})}}};
}

/// Shards whose 16-bit elements count on from one shard to the next.
FileTensors sharded(const std::vector<uint64_t>& rows) {
  FileTensors out = constants();
  const std::string all = numbered_data(2 * 408);
  uint64_t done = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    out[kTable + fmt::format("shard_{}.weight", i)] = {
        "BF16", {rows[i], 2}, all.substr(done * 4, rows[i] * 4)};
    done += rows[i];
  }
  return out;
}

Result<NgramTable> table_of(const TempDir& dir, const FileTensors& tensors,
                            const json& config = small_qwen4()) {
  ATLAS_ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_folder(dir, config, tensors));
  return ngram_table(checkpoint, checkpoint.config());
}

/// The first element of `row`, read from the file itself.
uint16_t read_row(const NgramTable& table, uint64_t row) {
  const NgramTable::Place place = table.locate(row);
  std::ifstream file(table.shards[place.shard].path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(place.offset));
  uint16_t out = 0;
  file.read(reinterpret_cast<char*>(&out), sizeof(out));
  REQUIRE(file);
  return out;
}

}  // namespace

TEST_CASE("ngram table: rows are found in shards, of which the last may be shorter") {
  const TempDir dir;
  for (const auto& rows : {std::vector<uint64_t>{102, 102, 102, 102}, {150, 150, 108}, {408}}) {
    const auto table = table_of(dir, sharded(rows));
    REQUIRE_MESSAGE(table, table.error().to_string());
    CHECK(table->dtype == ATLAS_BF16);
    CHECK(table->scale == 1);
    CHECK(table->row_width == 2);
    CHECK(table->row_bytes == 4);
    CHECK(table->rows == 408);
    CHECK(table->shards.size() == rows.size());
    CHECK(table->shards.back().rows == rows.back());
    for (const uint64_t row : {0, 1, 101, 102, 149, 150, 299, 300, 407}) {
      CHECK(read_row(*table, row) == 2 * row);
    }
  }
}

TEST_CASE("ngram table: one tensor is a table too, of any of its types") {
  const TempDir dir;
  FileTensors tensors;
  tensors[kTable + "weight"] = {"F32", {408, 2}, std::string(408 * 8, 0)};
  const auto checkpoint = open_folder(dir, small_qwen4(), tensors);
  REQUIRE_MESSAGE(checkpoint, checkpoint.error().to_string());
  CHECK(checkpoint->config().ngram->shards == 0);
  const auto table = ngram_table(*checkpoint, checkpoint->config());
  REQUIRE_MESSAGE(table, table.error().to_string());
  CHECK(table->dtype == ATLAS_F32);
  CHECK(table->row_bytes == 8);
  CHECK(table->shards.size() == 1);
  tensors[kTable + "weight"] = {"F16", {408, 2}, std::string(408 * 4, 0)};
  CHECK(table_of(dir, tensors)->dtype == ATLAS_F16);
  tensors[kTable + "weight"] = {"I16", {408, 2}, std::string(408 * 4, 0)};
  check_error(table_of(dir, tensors), Code::kUnimplemented, {"ngram_embedding.weight", "i16"});
}

TEST_CASE("ngram table: an FP8 table has one scale, and is refused without it") {
  const TempDir dir;
  FileTensors tensors = constants();
  for (int i = 0; i < 4; ++i) {
    tensors[kTable + fmt::format("shard_{}.weight", i)] = {
        "F8_E4M3", {102, 2}, std::string(204, 0)};
  }
  const std::string scale = kTable + "weight_scale";
  check_error(table_of(dir, tensors), Code::kInvalidArgument, {"f8_e4m3", scale.c_str()});
  // The released value, bf16.
  tensors[scale] = {"BF16", {1}, bytes_of<uint16_t>({0x3951})};
  const auto table = table_of(dir, tensors);
  REQUIRE_MESSAGE(table, table.error().to_string());
  CHECK(table->dtype == ATLAS_F8_E4M3);
  CHECK(table->scale == 0.00019931793212890625f);
  CHECK(table->row_bytes == 2);
  tensors[scale] = {"F32", {}, bytes_of<float>({0.5f})};
  CHECK(table_of(dir, tensors)->scale == 0.5f);
  tensors[scale] = {"F32", {2}, bytes_of<float>({1, 1})};
  check_error(table_of(dir, tensors), Code::kInvalidArgument,
              {scale.c_str(), "f32 [2]", "one bf16"});
  tensors[scale] = {"F32", {1}, bytes_of<float>({0})};
  check_error(table_of(dir, tensors), Code::kInvalidArgument, {scale.c_str(), "above 0"});
}

TEST_CASE(
    "ngram table: a trellis has rows of words, a bias for each head, and constants beside it") {
  const TempDir dir;
  json config = small_qwen4();
  // Rows of a trellis have 160 elements: 4 heads of them.
  config["ple_embed_dim"] = 4 * 160;
  FileTensors tensors;
  tensors[kTable + "trellis"] = {"I16", {408, 51}, std::string(408 * 102, 0)};
  check_error(table_of(dir, tensors, config), Code::kInvalidArgument, {"trellis", "head_bias"});
  std::vector<uint16_t> bias(4 * 160);
  bias[160 + 7] = 0xc000;  // head 1: -2
  tensors[kTable + "head_bias"] = {"F16", {4, 160}, bytes_of(bias)};
  tensors[kTable + "head_offsets"] = {"I64", {4}, bytes_of<int64_t>({0, 97, 198, 301})};
  const auto table = table_of(dir, tensors, config);
  REQUIRE_MESSAGE(table, table.error().to_string());
  CHECK(table->trellis_bits == 5);
  CHECK(table->row_bytes == 102);
  CHECK(table->row_width == 160);
  CHECK(table->head_offsets == std::vector<uint64_t>{0, 97, 198, 301});
  REQUIRE(table->head_bias.size() == 640);
  CHECK(table->head_bias[167] == -2);
  tensors[kTable + "head_offsets"] = {"I64", {4}, bytes_of<int64_t>({0, 97, 199, 301})};
  check_error(table_of(dir, tensors, config), Code::kInvalidArgument, {"head_offsets", "199"});
  tensors.erase(kTable + "head_offsets");
  tensors[kTable + "head_bias"].shape = {160, 4};
  check_error(table_of(dir, tensors, config), Code::kInvalidArgument, {"head_bias", "[4, 160]"});
  bias[1] = 0x7e00;
  tensors[kTable + "head_bias"] = {"F16", {4, 160}, bytes_of(bias)};
  check_error(table_of(dir, tensors, config), Code::kInvalidArgument, {"head_bias", "at 1"});
  tensors[kTable + "trellis"] = {"I16", {408, 52}, std::string(408 * 104, 0)};
  check_error(table_of(dir, tensors, config), Code::kInvalidArgument, {"trellis", "10 * bits"});
  // Shards of different bits.
  tensors.erase(kTable + "trellis");
  tensors[kTable + "shard_0.trellis"] = {"I16", {204, 51}, std::string(204 * 102, 0)};
  tensors[kTable + "shard_1.trellis"] = {"I16", {204, 61}, std::string(204 * 122, 0)};
  check_error(table_of(dir, tensors, config), Code::kInvalidArgument,
              {"shard_1.trellis", "with 5 bits"});
}

TEST_CASE("ngram table: sizes that do not fit together are refused") {
  const TempDir dir;
  check_error(table_of(dir, constants()), Code::kInvalidArgument,
              {"there is no tensor", "shard_0.weight"});
  check_error(table_of(dir, sharded({102, 102, 102})), Code::kInvalidArgument,
              {"306 rows in 3 tensors", "expected 408"});
  check_error(table_of(dir, sharded({102, 100, 102, 104})), Code::kInvalidArgument,
              {"shard_1.weight", "100 rows", "expected 102"});
  check_error(table_of(dir, sharded({100, 100, 100, 108})), Code::kInvalidArgument,
              {"shard_3.weight", "at most 100"});
  FileTensors tensors = sharded({102, 102, 102, 102});
  tensors[kTable + "shard_2.weight"].shape = {51, 4};
  check_error(table_of(dir, tensors), Code::kInvalidArgument,
              {"shard_2.weight", "[51, 4]", "rows of 2 elements"});
  tensors[kTable + "shard_2.weight"] = {"F16", {102, 2}, std::string(408, 0)};
  check_error(table_of(dir, tensors), Code::kInvalidArgument,
              {"shard_2.weight", "f16", "expected bf16"});
}

TEST_CASE("ngram table: stored constants must be those of the configuration") {
  const TempDir dir;
  const FileTensors good = sharded({204, 204});
  json config = small_qwen4();
  config["seed"] = 0;
  check_error(table_of(dir, good, config), Code::kInvalidArgument,
              {"layer_multipliers", "4295158889762567 at 0", "seed"});
  FileTensors tensors = good;
  tensors[kModule + "ngram_heads_vocab_sizes"].data = bytes_of<int64_t>({97, 101, 103, 109});
  check_error(table_of(dir, tensors), Code::kInvalidArgument,
              {"ngram_heads_vocab_sizes", "109 at 3", "expected 107"});
  tensors = good;
  tensors[kModule + "ngram_heads_offsets"].data = bytes_of<int64_t>({0, -97, 198, 301});
  check_error(table_of(dir, tensors), Code::kInvalidArgument, {"offsets", "-97 at 1"});
  tensors = good;
  tensors[kModule + "layer_multipliers"] = {"F32", {3}, bytes_of<float>({1, 2, 3})};
  check_error(table_of(dir, tensors), Code::kInvalidArgument, {"f32 [3]", "expected i64 [3]"});
  tensors = good;
  tensors.erase(kModule + "layer_multipliers");
  CHECK(table_of(dir, tensors));
}

TEST_SUITE_END();
