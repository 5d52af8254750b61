// Two models side by side: KL divergence over a text, dumps of steps, and where steps part.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/unit/tools/tools_fixture.h"
#include "tools/atlas-eval/divergence.h"
#include "tools/atlas-eval/dump.h"
#include "tools/atlas-eval/first_divergence.h"
#include "tools/atlas-eval/logits.h"
#include "tools/atlas-eval/perplexity.h"
#include "tools/common/files.h"

using namespace atlas;
using namespace atlas::eval;
using namespace atlas::testing;
using engine::TokenId;

TEST_SUITE_BEGIN("tools compare");

namespace {

const std::string kQwen4 = std::string(ATLAS_SOURCE_DIR) + "/tests/golden/qwen/qwen4_base";
const std::string kText = "It was a dark night, and no lamp was lit; 40 steps up, 12 down.";

std::unique_ptr<Tracer> open_tracer(const tools::ModelOptions& options, uint32_t tokens) {
  const auto settings = tools::tool_settings(options, Tracer::needs(tokens));
  REQUIRE_MESSAGE(settings, settings.error().message());
  auto tracer = Tracer::open(*settings, tokens);
  REQUIRE_MESSAGE(tracer, tracer.error().message());
  return std::move(*tracer);
}

/// A tiny model's folder, with the sign of one weight of `tensor` [rows, columns] turned.
std::string turned_model(const TempDir& folder, const std::string& tensor, uint64_t element) {
  write_tiny_llama_folder({}, folder.path());
  std::string bytes = *tools::read_text(folder.file("model.safetensors"));
  uint64_t header = 0;
  std::copy_n(bytes.begin(), sizeof(header), reinterpret_cast<char*>(&header));
  const auto json = nlohmann::json::parse(bytes.substr(8, header));
  const uint64_t begin = 8 + header + json[tensor]["data_offsets"][0].get<uint64_t>();
  bytes[begin + 2 * element + 1] = static_cast<char>(bytes[begin + 2 * element + 1] ^ 0x80);
  write_file(folder, "model.safetensors", bytes);
  return folder.path();
}

std::vector<float> read_floats(const std::string& path) {
  const auto bytes = tools::read_text(path);
  REQUIRE(bytes);
  std::vector<float> values(bytes->size() / sizeof(float));
  std::copy(bytes->begin(), bytes->end(), reinterpret_cast<char*>(values.data()));
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) {
           return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
         });
}

Tensor tensor_of(uint32_t rows, std::vector<float> values) {
  Tensor tensor;
  tensor.operation = "layers.0.mlp.linear";
  tensor.activation = "y";
  tensor.rows = rows;
  tensor.columns = values.size() / rows;
  tensor.values = std::move(values);
  return tensor;
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace

// ---- KL divergence
// ------------------------------------------------------------------------------

TEST_CASE("kl: what its definition gives, whatever is added to all logits") {
  const auto row = row_divergence(std::vector<float>{7, 7}, std::vector<float>{std::log(3.0f), 0});
  REQUIRE(row);
  CHECK(row->kl == doctest::Approx(0.5 * std::log(4.0 / 3)).epsilon(1e-6));
  CHECK(row->same_top());
  const std::vector<float> far{200, 0, -200}, near{0, 200, 0};
  CHECK(row_divergence(far, far)->kl == 0);
  CHECK(row_divergence(far, near)->kl == doctest::Approx(200));
  CHECK_FALSE(row_divergence(far, near)->same_top());
  CHECK_FALSE(row_divergence(far, std::vector<float>{0, kNan, 0}));
  CHECK_FALSE(row_divergence(std::vector<float>{kNan, 0, 0}, far));
}

TEST_CASE("kl: a model against itself is zero, and both perplexities are perplexity's own") {
  const auto first = open_model(tiny_options(), {.sequence_tokens = 100, .scored_rows = 16});
  const auto second = open_model(tiny_options(), {.sequence_tokens = 100, .scored_rows = 7});
  const auto result = divergence(*first, *second, kText, 20, 0);
  REQUIRE_MESSAGE(result, result.error().message());
  CHECK(result->mean() == 0);
  CHECK(result->percentile(100) == 0);
  CHECK(result->same_top() == result->rows.size());
  CHECK(result->rows.size() == result->windows * result->window);
  const auto alone = perplexity(*first, kText, 20);
  REQUIRE(alone);
  CHECK(result->nats == doctest::Approx(alone->nats).epsilon(1e-12));
  CHECK(result->against_nats == result->nats);
  CHECK(result->predicted == alone->predicted);
  CHECK(divergence(*first, *second, kText, 20, 21)->windows == 1);
  CHECK_FALSE(divergence(*first, *second, kText, 1, 0));
  CHECK_FALSE(divergence(*first, *second, kText, 101, 0));
  CHECK_FALSE(divergence(*first, *second, "", 20, 0));
}

TEST_CASE("kl: other weights are apart, and what cannot be compared is refused") {
  const TempDir folder, foreign_folder;
  TinyLlama foreign;
  foreign.vocab = 300;
  write_tiny_llama_folder(foreign, foreign_folder.path());
  const auto first = open_model(tiny_options(), {.sequence_tokens = 100});
  const auto second =
      open_model(tiny_options(turned_model(folder, "model.layers.1.mlp.down_proj.weight", 0)),
                 {.sequence_tokens = 100});
  const auto result = divergence(*first, *second, kText, 32, 0);
  REQUIRE_MESSAGE(result, result.error().message());
  CHECK(result->mean() > 0);
  CHECK(result->percentile(50) <= result->percentile(99));
  const std::vector<size_t> worst = result->worst(3);
  REQUIRE(worst.size() == 3);
  CHECK(result->rows[worst[0]].kl == result->percentile(100));
  CHECK(result->rows[worst[0]].kl >= result->rows[worst[1]].kl);
  CHECK(result->rows[worst[0]].share > 0);
  CHECK(result->rows[worst[0]].share <= 1);
  CHECK(result->worst(1u << 20).size() == result->rows.size());
  CHECK(result->nats != result->against_nats);
  const auto json = nlohmann::json::parse(result->json(*first, *second, 2));
  CHECK(json["kl_mean"].get<double>() == doctest::Approx(result->mean()));
  CHECK(json["positions"] == result->rows.size());
  REQUIRE(json["worst"].size() == 2);
  CHECK(json["worst"][0]["kl"].get<double>() == json["kl_largest"].get<double>());
  CHECK(json["worst"][0]["position"].get<uint64_t>() == worst[0] % result->window);
  CHECK(result->text(0).find("same top-1") != std::string::npos);
  CHECK(result->text(1).find("likeliest") != std::string::npos);
  const auto other = open_model(tiny_options(foreign_folder.path()), {.sequence_tokens = 100});
  CHECK(divergence(*first, *other, kText, 32, 0).error().message().find("cannot be compared") !=
        std::string::npos);
}

// ---- Dumps
// --------------------------------------------------------------------------------------

TEST_CASE("parts of a model, by the names of operations") {
  CHECK(part_of("embed") == "input");
  CHECK(part_of("layers.3.mixer.linear") == "layers.3");
  CHECK(part_of("layers.31") == "layers.31");
  CHECK(part_of("head.norm") == "head");
  CHECK(part_of("draft.0.begin") == "draft.0");
}

TEST_CASE("dump: every operation's output in order, and the last one is the logits") {
  const TempDir folder;
  const std::string out = folder.file("new/dump"), logits_file = folder.file("logits");
  std::vector<TokenId> ids;
  for (uint32_t i = 0; i < 41; ++i) ids.push_back((i * 31 + 5) % 96);
  tools::ModelOptions options = tiny_options(kQwen4);
  options.set.push_back("engine.drafts=0");
  const auto tracer = open_tracer(options, 41);
  const auto dump = write_dump(*tracer, ids, out, std::nullopt);
  REQUIRE_MESSAGE(dump, dump.error().message());
  const auto index = nlohmann::json::parse(*tools::read_text(out + "/index.json"));
  const auto& tensors = index["tensors"];
  REQUIRE(tensors.size() == dump->tensors);
  CHECK(tensors[0]["operation"] == "embed");
  CHECK(tensors[0]["columns"] == 32);
  CHECK(tensors[1]["activation"] == "streams");
  uint64_t bytes = 0;
  for (const auto& tensor : tensors) {
    CHECK(tensor["rows"] == 41);
    const auto values = read_floats(out + "/" + tensor["file"].get<std::string>());
    CHECK(values.size() == 41 * tensor["columns"].get<size_t>());
    bytes += values.size() * sizeof(float);
  }
  CHECK(bytes == dump->bytes);
  CHECK(tensors.back()["activation"] == "last logits");

  const auto model = open_model(options, {.sequence_tokens = 41, .scored_rows = 41});
  REQUIRE(write_logits(*model, ids, logits_file, 41).ok());
  CHECK(same_bits(read_floats(out + "/" + tensors.back()["file"].get<std::string>()),
                  read_floats(logits_file)));

  // A layer alone; the same tracer again, from an empty state.
  const std::string layer = folder.file("layer");
  const auto part = write_dump(*tracer, ids, layer, 3);
  REQUIRE_MESSAGE(part, part.error().message());
  CHECK(part->tensors < dump->tensors);
  const auto layer_index = nlohmann::json::parse(*tools::read_text(layer + "/index.json"));
  for (const auto& tensor : layer_index["tensors"]) {
    const auto name = tensor["file"].get<std::string>();
    CHECK(tensor["operation"].get<std::string>().find("layers.3.") == 0);
    CHECK(same_bits(read_floats(layer + "/" + name), read_floats(out + "/" + name)));
  }

  CHECK(write_dump(*tracer, ids, out, std::nullopt).error().message().find("is not empty") !=
        std::string::npos);
  CHECK(write_dump(*tracer, ids, folder.file("none"), 4).error().message() ==
        "'qwen4_base' has no layer 4");
  CHECK_FALSE(std::filesystem::exists(folder.file("none/index.json")));
  CHECK_FALSE(write_dump(*tracer, {96}, folder.file("beyond"), std::nullopt));
  CHECK_FALSE(write_dump(*tracer, some_ids(42), folder.file("long"), std::nullopt));
}

// ---- The first difference
// -----------------------------------------------------------------------

TEST_CASE("tensors: bits or a tolerance, the first place and the furthest one") {
  const Tensor zero = tensor_of(2, {0, 1, 2, 3}), other = tensor_of(2, {-0.0f, 1, 2.5f, 7});
  const TensorDifference bits = compare_tensors(zero, other, 0);
  CHECK(bits.different == 3);
  CHECK(bits.row == 0);
  CHECK(bits.column == 0);
  CHECK(bits.largest == 4);
  CHECK(bits.largest_row == 1);
  CHECK(bits.largest_column == 1);
  CHECK(bits.relative == doctest::Approx(std::sqrt(16.25 / 14)));
  const TensorDifference loose = compare_tensors(zero, other, 0.5);
  CHECK(loose.different == 1);
  CHECK(loose.row == 1);
  CHECK(loose.column == 1);
  CHECK(loose.value == 3);
  CHECK(loose.against == 7);
  CHECK(compare_tensors(zero, zero, 0).different == 0);
  // No number is equal to itself and infinitely far from every number.
  const Tensor broken = tensor_of(1, {kNan, 1});
  CHECK(compare_tensors(broken, broken, 0).different == 0);
  CHECK(compare_tensors(broken, broken, 1).different == 0);
  const TensorDifference apart = compare_tensors(broken, tensor_of(1, {1, 1}), 1e30);
  CHECK(apart.different == 1);
  CHECK(std::isinf(apart.largest));
}

TEST_CASE("first divergence: the threads change no bit of any operation") {
  std::vector<TokenId> ids;
  for (uint32_t i = 0; i < 50; ++i) ids.push_back((i * 17 + 3) % 96);
  tools::ModelOptions one = tiny_options(kQwen4), two = one;
  one.threads = 1;
  two.threads = 2;
  const auto first = open_tracer(one, 50), second = open_tracer(two, 50);
  const auto result = first_divergence(*first, *second, ids, 0);
  REQUIRE_MESSAGE(result, result.error().message());
  CHECK_MESSAGE(!result->first, result->text());
  CHECK(result->compared > 100);
  CHECK(result->text().find("identical: ") == 0);
  const auto& parts = result->parts;  // input, four layers, head, draft
  REQUIRE(parts.size() == 7);
  CHECK(parts[1].part == "layers.0");
  CHECK(parts[6].part == "draft.0");
}

TEST_CASE("first divergence: one weight of another sign is found where it is used first") {
  const TempDir plain_folder, folder;
  write_tiny_llama_folder({}, plain_folder.path());
  const auto first = open_tracer(tiny_options(plain_folder.path()), 20);
  // Output 5 of [64, 96]: only column 5 of the sum can differ.
  const auto second = open_tracer(
      tiny_options(turned_model(folder, "model.layers.0.mlp.down_proj.weight", 5 * 96)), 20);
  const auto result = first_divergence(*first, *second, some_ids(20), 0);
  REQUIRE_MESSAGE(result, result.error().message());
  REQUIRE(result->first);
  CHECK(result->first->operation == "layers.0.mlp.linear_add");
  CHECK(result->first->activation == "residual");
  CHECK(result->first->column == 5);
  CHECK(result->first->largest_column == 5);
  CHECK(result->first->different <= 20);
  REQUIRE(result->parts.size() == 4);
  CHECK(result->parts[0].different == 0);
  CHECK(result->parts[1].different == 1);
  CHECK(result->parts[1].largest == result->first->largest);
  CHECK(result->parts[2].different == result->parts[2].tensors);
  CHECK(result->parts[3].last_relative > 0);
  const auto json = nlohmann::json::parse(result->json(first->model(), second->model()));
  CHECK(json["identical"] == false);
  CHECK(json["first_difference"]["column"] == 5);
  CHECK(result->text().find("first difference: layers.0.mlp.linear_add, activation 'residual'") ==
        0);
  const auto loose = first_divergence(*first, *second, some_ids(20), 1e6);
  REQUIRE(loose);
  CHECK_FALSE(loose->first);
}

TEST_CASE("first divergence: drafts at the end are left over, other models are refused") {
  std::vector<TokenId> ids{5, 6, 7, 8, 9};
  tools::ModelOptions options = tiny_options(kQwen4), bare = options;
  bare.set.push_back("engine.drafts=0");
  const auto first = open_tracer(options, 5), second = open_tracer(bare, 5);
  const auto result = first_divergence(*first, *second, ids, 0);
  REQUIRE_MESSAGE(result, result.error().message());
  CHECK_FALSE(result->first);
  CHECK(result->first_only > 10);
  CHECK(result->second_only == 0);
  CHECK(result->text().find("tensors at the end are only in the first") != std::string::npos);
  const auto other = open_tracer(tiny_options(), 5);
  const auto refused = first_divergence(*first, *other, ids, 0);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message().find("not made of the same operations") != std::string::npos);
}

TEST_CASE("the second model: as the first, but for what is said of it") {
  tools::ModelOptions first;
  first.model = "a";
  first.config = "c";
  first.set = {"k=1"};
  tools::ModelOptions second = tools::against(first, {"b", "", {"k=2"}});
  CHECK(second.model == "b");
  CHECK(second.config == "c");
  CHECK(second.set == std::vector<std::string>{"k=1", "k=2"});
  second = tools::against(first, {"", "d", {"k=3"}});
  CHECK(second.model == "a");
  CHECK(second.config == "d");
  CHECK(second.set == std::vector<std::string>{"k=3"});
}

TEST_CASE("the programs: exit codes, and JSON is JSON") {
  const TempDir folder, turned;
  const std::string model = " --model " + tiny_gguf() + " --set engine.reserve_bytes=0 ";
  const std::string ids = write_file(folder, "ids.json", "[70, 71, 72]");
  const std::string text = write_file(folder, "text", kText);
  const std::string other = turned_model(turned, "model.layers.1.mlp.down_proj.weight", 0);
  for (const std::string verb : {"kl", "dump", "first-divergence"}) {
    CAPTURE(verb);
    const ProgramRun help = run_program("atlas-eval", verb + " --help");
    CHECK(help.code == 0);
    CHECK(help.out.find("--json") != std::string::npos);
  }
  CHECK(run_program("atlas-eval", "kl" + model + "--text " + text).code == 2);
  CHECK(run_program("atlas-eval", "first-divergence" + model + "--ids " + ids).code == 2);

  const ProgramRun kl = run_program(
      "atlas-eval", "kl" + model + "--json --window 16 --text " + text + " --against " + other);
  CHECK_MESSAGE(kl.code == 0, kl.out);
  CHECK(nlohmann::json::parse(kl.out)["kl_mean"].get<double>() > 0);
  const ProgramRun dump = run_program(
      "atlas-eval", "dump" + model + "--json --ids " + ids + " --out " + folder.file("dump"));
  CHECK_MESSAGE(dump.code == 0, dump.out);
  CHECK(nlohmann::json::parse(dump.out)["tensors"].get<int>() > 10);
  CHECK(run_program("atlas-eval", "dump" + model + "--ids " + ids + " --out " + ids).code == 1);
  const std::string threads = " --threads 1 --against-set 'platform.options={threads: 2}'";
  const ProgramRun same =
      run_program("atlas-eval", "first-divergence" + model + "--ids " + ids + threads);
  CHECK_MESSAGE(same.code == 0, same.out);
  const ProgramRun apart = run_program(
      "atlas-eval", "first-divergence" + model + "--ids " + ids + " --against " + other);
  CHECK(apart.code == 1);
  CHECK(apart.out.find("first difference: ") != std::string::npos);
}

TEST_SUITE_END();
