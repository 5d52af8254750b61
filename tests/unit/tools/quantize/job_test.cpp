// Whole runs on tiny models: files that our own reader opens, values, resuming, refusals.
#include "tools/atlas-quantize/job.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "daemon/model/tokenizer/tokenizer.h"
#include "kernels/common/codecs.h"
#include "tests/support/tiny_llama.h"
#include "tools/atlas-quantize/export_files.h"
#include "tools/atlas-quantize/unfinished.h"
#include "tools/common/files.h"

namespace atlas::quantize {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;
using testing::TinyLlama;

JobOptions options_for(const std::string& model, const std::string& out, Format format) {
  JobOptions options;
  options.model = model;
  options.out = out;
  options.format = format;
  options.threads = 2;
  options.quiet = true;
  return options;
}

TinyLlama wide_llama() {
  TinyLlama model;
  model.hidden = 128;
  model.head_dim = 32;
  model.intermediate = 256;
  return model;
}

Report must_run(const JobOptions& options) {
  auto report = run_job(options);
  REQUIRE_MESSAGE(report, report.error().message());
  return *report;
}

const Entry& entry_of(const Report& report, const std::string& module) {
  for (const Entry& entry : report.entries) {
    if (entry.module == module) return entry;
  }
  FAIL(module);
  return report.entries.front();
}

std::vector<float> read_bf16(const model::Checkpoint& checkpoint, const std::string& name) {
  const model::TensorInfo* tensor = checkpoint.find(name);
  REQUIRE_MESSAGE(tensor != nullptr, name);
  REQUIRE(tensor->dtype == ATLAS_BF16);
  std::vector<uint16_t> bits(tensor->bytes / 2);
  REQUIRE(checkpoint.read(*tensor, 0, std::as_writable_bytes(std::span(bits))).ok());
  std::vector<float> values;
  for (const uint16_t b : bits) values.push_back(kernels::bf16_to_f32(b));
  return values;
}

std::string text_of(const std::string& path) {
  auto text = tools::read_text(path);
  REQUIRE_MESSAGE(text, text.error().message());
  return *text;
}

TEST_SUITE_BEGIN("quantize");

TEST_CASE("a GGUF becomes the folder that the same model has: weights, rows in order, tokenizer") {
  const TempDir folder;
  TinyLlama model;
  model.dtype = ATLAS_BF16;
  testing::write_tiny_llama_gguf(model, folder.file("tiny.gguf"));
  fs::create_directory(folder.file("hf"));
  testing::write_tiny_llama_folder(model, folder.file("hf"));
  must_run(options_for(folder.file("tiny.gguf"), folder.file("out"), Format::kBf16));

  const auto made = model::Checkpoint::open(folder.file("out"));
  REQUIRE_MESSAGE(made, made.error().message());
  const auto expected = model::Checkpoint::open(folder.file("hf"));
  REQUIRE(expected);
  CHECK(made->tensors().size() == expected->tensors().size());
  for (const model::TensorInfo& tensor : expected->tensors()) {
    if (tensor.dtype != ATLAS_BF16 || tensor.rank < 2) continue;
    CHECK_MESSAGE(read_bf16(*made, std::string(tensor.name)) ==
                      read_bf16(*expected, std::string(tensor.name)),
                  tensor.name);
  }
  CHECK(made->config().rms_eps == expected->config().rms_eps);
  CHECK(made->config().rope.inverse_frequencies == expected->config().rope.inverse_frequencies);
  CHECK_FALSE(made->config().rope.interleaved);
  CHECK(made->config().eos_ids == expected->config().eos_ids);
  CHECK(made->chat_template() == expected->chat_template());

  const auto source = std::get<model::HuggingfaceTokenizer>(*made->tokenizer_source());
  const auto tokenizer = model::Tokenizer::from_tokenizer_json(
      source.tokenizer_json, source.tokenizer_config_json, source.generation_config_json);
  REQUIRE_MESSAGE(tokenizer, tokenizer.error().message());
  const auto gguf = model::Checkpoint::open(folder.file("tiny.gguf"));
  REQUIRE(gguf);
  const auto original =
      model::Tokenizer::from_gguf(std::get<model::GgufVocabulary>(*gguf->tokenizer_source()));
  REQUIRE(original);
  for (const char* text : {"the cat sat on the mat", "<|im_start|>user\nin 123 rings<|im_end|>\n",
                           "\xe2\x82\xac \"merges\": {", ""}) {
    CHECK(tokenizer->encode(text) == original->encode(text));
  }
  CHECK(tokenizer->end_of_generation() == original->end_of_generation());
}

TEST_CASE("fp8 and nvfp4 leave what they should, and our reader opens what they write") {
  const TempDir folder;
  fs::create_directory(folder.file("hf"));
  testing::write_tiny_llama_folder(wide_llama(), folder.file("hf"));
  for (const Format format : {Format::kFp8, Format::kNvfp4}) {
    const std::string out = folder.file(format_name(format));
    const Report report = must_run(options_for(folder.file("hf"), out, format));
    const auto made = model::Checkpoint::open(out);
    REQUIRE_MESSAGE(made, made.error().message());
    const std::string module = "model.layers.1.mlp.down_proj";
    CHECK(made->find(module + ".weight")->dtype ==
          (format == Format::kFp8 ? ATLAS_F8_E4M3 : ATLAS_U8));
    CHECK(made->find("model.embed_tokens.weight")->dtype == ATLAS_BF16);
    CHECK(entry_of(report, module).quantized);
    CHECK(entry_of(report, module).relative_error > 0);
    CHECK(entry_of(report, "model.embed_tokens.weight").note == "embedding");
    CHECK(report.bits_per_quantized_weight() ==
          doctest::Approx(format == Format::kFp8 ? 8.0 : 4.5).epsilon(0.01));
    CHECK(text_of(out + "/config.json").find("quantization_config") != std::string::npos);
    CHECK_FALSE(fs::exists(out + "/unfinished"));
  }
}

TEST_CASE("several files have an index, and hold the same as one") {
  const TempDir folder;
  fs::create_directory(folder.file("hf"));
  testing::write_tiny_llama_folder(wide_llama(), folder.file("hf"));
  JobOptions options = options_for(folder.file("hf"), folder.file("many"), Format::kFp8);
  options.shard_bytes = 100000;
  must_run(options);
  must_run(options_for(folder.file("hf"), folder.file("one"), Format::kFp8));
  CHECK(fs::exists(folder.file("many") + "/model.safetensors.index.json"));
  const auto many = model::Checkpoint::open(folder.file("many"));
  REQUIRE_MESSAGE(many, many.error().message());
  const auto one = model::Checkpoint::open(folder.file("one"));
  REQUIRE(one);
  CHECK(many->files().size() > 1);
  REQUIRE(many->tensors().size() == one->tensors().size());
  for (size_t i = 0; i < one->tensors().size(); ++i) {
    const model::TensorInfo &a = many->tensors()[i], &b = one->tensors()[i];
    REQUIRE(a.name == b.name);
    REQUIRE(a.bytes == b.bytes);
    std::vector<std::byte> bytes_a(a.bytes), bytes_b(b.bytes);
    REQUIRE(many->read(a, 0, bytes_a).ok());
    REQUIRE(one->read(b, 0, bytes_b).ok());
    CHECK(bytes_a == bytes_b);
  }
}

TEST_CASE("a run that was cut goes on, and ends in the same bytes") {
  const TempDir folder;
  fs::create_directory(folder.file("hf"));
  testing::write_tiny_llama_folder(wide_llama(), folder.file("hf"));
  const JobOptions whole = options_for(folder.file("hf"), folder.file("whole"), Format::kNvfp4);
  must_run(whole);
  // As if a run had ended after its first linears: `job.json`, some parts, a line cut in the
  // middle.
  JobOptions again = options_for(folder.file("hf"), folder.file("again"), Format::kNvfp4);
  again.stop_after = 5;
  const auto cut = run_job(again);
  REQUIRE_FALSE(cut);
  CHECK(cut.error().code() == Code::kCancelled);
  const auto opened = model::Checkpoint::open(folder.file("again"));
  REQUIRE_FALSE(opened);
  CHECK(opened.error().message().find("atlas-quantize has not finished there") !=
        std::string::npos);
  CHECK(opened.error().message().find("again/unfinished/job.json") != std::string::npos);
  std::ofstream(folder.file("again") + "/unfinished/entries.jsonl", std::ios::app) << "\n{\"modu";
  again.stop_after = 0;
  const Report report = must_run(again);
  CHECK(report.resumed == 5);
  // Nothing was calibrated.
  CHECK_MESSAGE(report.text().find("          -\n") != std::string::npos, report.text());
  CHECK(report.text().find("0.000e+00") == std::string::npos);
  CHECK(text_of(folder.file("again") + "/model.safetensors") ==
        text_of(folder.file("whole") + "/model.safetensors"));
}

TEST_CASE("a folder with something else in it, or another job's work, is refused") {
  const TempDir folder;
  fs::create_directory(folder.file("hf"));
  testing::write_tiny_llama_folder(wide_llama(), folder.file("hf"));
  fs::create_directory(folder.file("full"));
  std::ofstream(folder.file("full") + "/letter.txt") << "dear";
  const auto full = run_job(options_for(folder.file("hf"), folder.file("full"), Format::kFp8));
  REQUIRE_FALSE(full);
  CHECK(full.error().message().find("not empty") != std::string::npos);

  JobOptions begun = options_for(folder.file("hf"), folder.file("begun"), Format::kNvfp4);
  begun.stop_after = 1;
  REQUIRE_FALSE(run_job(begun));
  const auto other = run_job(options_for(folder.file("hf"), folder.file("begun"), Format::kFp8));
  REQUIRE_FALSE(other);
  CHECK(other.error().message().find("another job") != std::string::npos);

  const std::string made = folder.file("made");
  must_run(options_for(folder.file("hf"), made, Format::kFp8));
  const auto twice = run_job(options_for(made, folder.file("twice"), Format::kFp8));
  REQUIRE_FALSE(twice);
  CHECK(twice.error().message().find("quantized already") != std::string::npos);
}

TEST_CASE("two runs never work in one folder at once") {
  const TempDir folder;
  fs::create_directory(folder.file("hf"));
  testing::write_tiny_llama_folder(wide_llama(), folder.file("hf"));
  JobOptions options = options_for(folder.file("hf"), folder.file("out"), Format::kNvfp4);
  options.stop_after = 1;
  REQUIRE_FALSE(run_job(options));
  options.stop_after = 0;
  {
    const std::string job = folder.file("out") + "/unfinished/job.json";
    const auto first = Unfinished::open(options.out, text_of(job));
    REQUIRE(first);
    const auto second = run_job(options);
    REQUIRE_FALSE(second);
    CHECK(second.error().code() == Code::kFailedPrecondition);
    CHECK(second.error().message().find("another run works in") != std::string::npos);
  }
  CHECK(must_run(options).resumed == 1);
}

TEST_CASE("a run does not go on with a model that has been written since") {
  const TempDir folder;
  fs::create_directory(folder.file("hf"));
  testing::write_tiny_llama_folder(wide_llama(), folder.file("hf"));
  JobOptions options = options_for(folder.file("hf"), folder.file("out"), Format::kNvfp4);
  options.stop_after = 1;
  REQUIRE_FALSE(run_job(options));
  options.stop_after = 0;
  const std::string weights = folder.file("hf") + "/model.safetensors";
  const auto written = fs::last_write_time(weights);
  fs::last_write_time(weights, written + std::chrono::seconds(1));
  const auto other = run_job(options);
  REQUIRE_FALSE(other);
  CHECK(other.error().message().find("have been written since") != std::string::npos);
  fs::last_write_time(weights, written);
  CHECK(must_run(options).resumed == 1);
}

TEST_CASE("a job that failed before its first linear keeps no other out of its folder") {
  const TempDir folder;
  fs::create_directory(folder.file("hf"));
  testing::write_tiny_llama_folder(wide_llama(), folder.file("hf"));
  JobOptions options = options_for(folder.file("hf"), folder.file("out"), Format::kNvfp4);
  options.calibration.text_file = folder.file("nowhere.txt");
  REQUIRE_FALSE(run_job(options));
  options.calibration.text_file.clear();
  must_run(options);
  CHECK_FALSE(fs::exists(folder.file("out") + "/unfinished"));
}

TEST_CASE("a folder has no config.json, and so is no model, before all else of it is there") {
  const TempDir folder;
  fs::create_directory(folder.file("hf"));
  testing::write_tiny_llama_folder(wide_llama(), folder.file("hf"));
  JobOptions options = options_for(folder.file("hf"), folder.file("out"), Format::kFp8);
  options.stop_after = 1;
  REQUIRE_FALSE(run_job(options));
  options.stop_after = 0;
  // As a full disk would, this stops the run at its last but one file.
  const std::string obstacle = options.out + "/tokenizer_config.json";
  fs::create_directories(obstacle + "/in the way");
  const auto cut = run_job(options);
  REQUIRE_FALSE(cut);
  CHECK(cut.error().message().find("tokenizer_config.json") != std::string::npos);
  CHECK(fs::exists(options.out + "/model.safetensors"));
  CHECK_FALSE(fs::exists(options.out + "/config.json"));
  CHECK_FALSE(model::Checkpoint::open(options.out));
  fs::remove_all(obstacle);
  must_run(options);
  CHECK(model::Checkpoint::open(options.out));
}

TEST_CASE("a model with experts in NVFP4 predicts nearly what its source does") {
  const TempDir folder;
  JobOptions options = options_for(std::string(ATLAS_SOURCE_DIR) + "/tests/data/flash-mini",
                                   folder.file("out"), Format::kNvfp4);
  options.nvfp4_scales = Nvfp4Scales::kMax;
  options.evaluation_text = options.model + "/eval/valid.txt";
  options.evaluation_tokens = 512;
  const Report report = must_run(options);
  for (const std::string& note : report.notes) CHECK_MESSAGE(note.empty(), note);
  REQUIRE(report.evaluated);
  CHECK(report.evaluation.kl_mean < 0.06);
  // What the documentation says stays in bf16, whatever the format.
  const std::pair<const char*, const char*> kept[] = {
      {"model.embed_tokens.weight", "embedding"},
      {"lm_head.weight", "output head"},
      {"model.layers.0.mlp.gate.weight", "router"},
      {"model.layers.0.mlp.shared_expert_gate.weight", "gate of the shared expert"},
      {"model.layers.0.linear_attn.in_proj_a.weight", "small"},
      {"model.layers.3.self_attn.indexer.index_qk_proj.weight", "indexer"},
      {"model.layers.0.mlp_hyper_connection.input_mix_weight_up.weight", "gated residual streams"},
  };
  for (const auto& [module, why] : kept) {
    CHECK_FALSE(entry_of(report, module).quantized);
    CHECK_MESSAGE(entry_of(report, module).note == why, module);
    CHECK(entry_of(report, module).bits_per_weight == 16);
  }
  uint32_t tables = 0;
  for (const Entry& entry : report.entries) {
    const bool table = entry.module.find("ngram_embedding") != std::string::npos ||
                       entry.module.find(".ple.") != std::string::npos;
    tables += table ? 1 : 0;
    if (table) CHECK_FALSE(entry.quantized);
    const bool expert = entry.module.find(".experts.") != std::string::npos;
    if (expert) CHECK_MESSAGE(entry.quantized, entry.module);
  }
  CHECK(tables > 0);
  CHECK(report.evaluation.top1_agreement > 0.85);
  CHECK(report.evaluation.perplexity < 1.1 * report.evaluation.source_perplexity);
}

TEST_CASE("exl3: calibrated with a text, a model predicts nearly what its source does") {
  const TempDir folder;
  fs::create_directory(folder.file("hf"));
  TinyLlama model = wide_llama();
  model.vocab = 384;  // no padding
  testing::write_tiny_llama_folder(model, folder.file("hf"));
  std::string text;
  for (int i = 0; i < 300; ++i) text += fmt::format("the {} rings in the {} cat ", i, i * i % 97);
  std::ofstream(folder.file("text.txt")) << text;
  JobOptions options = options_for(folder.file("hf"), folder.file("out"), Format::kExl3);
  options.bits.bits = 5;
  options.calibration.text_file = options.evaluation_text = folder.file("text.txt");
  options.calibration.tokens = 1024;
  options.calibration.window = 512;
  options.evaluation_tokens = 256;
  options.evaluation_window = 64;
  const Report report = must_run(options);
  for (const std::string& note : report.notes) CHECK_MESSAGE(note.empty(), note);
  const Entry& query = entry_of(report, "model.layers.0.self_attn.q_proj");
  CHECK(query.hessian == "full");
  CHECK(query.tokens == 1024);
  CHECK(query.proxy_error > 0);
  CHECK(query.proxy_error < query.relative_error * query.relative_error);
  CHECK(entry_of(report, "lm_head").hessian == "full");
  CHECK(entry_of(report, "lm_head").trellis_bits == 6);
  // The source's head is its embedding: here the head is quantized and the embedding stays.
  CHECK(entry_of(report, "model.embed_tokens.weight").note == "embedding");
  const auto made = model::Checkpoint::open(folder.file("out"));
  REQUIRE_MESSAGE(made, made.error().message());
  CHECK(made->find("model.embed_tokens.weight")->dtype == ATLAS_BF16);
  CHECK_FALSE(made->config().tie_embeddings);
  REQUIRE(report.evaluated);
  CHECK(report.evaluation.kl_mean < 0.01);
  CHECK(report.evaluation.top1_agreement > 0.8);
}

TEST_CASE("exl3: sizes that are no multiples of 128 are padded, and the daemon reads them") {
  const TempDir folder;
  fs::create_directory(folder.file("hf"));
  TinyLlama model;
  model.hidden = 192;
  model.head_dim = 48;  // 192 rows of q, 96 of k and v
  model.intermediate = 320;
  testing::write_tiny_llama_folder(model, folder.file("hf"));
  std::string text;
  for (int i = 0; i < 200; ++i) text += fmt::format("the {} rings in the {} cat ", i, i * i % 97);
  std::ofstream(folder.file("text.txt")) << text;
  JobOptions options = options_for(folder.file("hf"), folder.file("out"), Format::kExl3);
  options.bits.bits = 5;
  options.calibration.text_file = options.evaluation_text = folder.file("text.txt");
  options.calibration.tokens = 1024;
  options.calibration.window = 512;
  options.evaluation_tokens = 256;
  options.evaluation_window = 64;
  const Report report = must_run(options);
  for (const std::string& note : report.notes) CHECK_MESSAGE(note.empty(), note);

  const auto made = model::Checkpoint::open(folder.file("out"));
  REQUIRE_MESSAGE(made, made.error().message());
  const auto dims = [&](const std::string& name) {
    const model::TensorInfo* tensor = made->find(name);
    REQUIRE_MESSAGE(tensor != nullptr, name);
    return std::vector<uint64_t>(tensor->shape().begin(), tensor->shape().end());
  };
  using Dims = std::vector<uint64_t>;
  CHECK(dims("model.layers.0.mlp.up_proj.trellis") == Dims{256 / 16, 384 / 16, 16 * 5});
  CHECK(dims("model.layers.0.mlp.up_proj.suh") == Dims{256});
  CHECK(dims("model.layers.0.mlp.up_proj.svh") == Dims{384});
  CHECK(dims("lm_head.trellis") == Dims{256 / 16, 384 / 16, 16 * 6});
  // Less than a block stays as it is.
  CHECK(dims("model.layers.0.self_attn.k_proj.weight") == Dims{96, 192});
  CHECK(entry_of(report, "model.layers.0.self_attn.k_proj.weight").note == "smaller than 128");
  // Bits are counted over the weights that the model has.
  const Entry& up = entry_of(report, "model.layers.0.mlp.up_proj");
  CHECK(up.bits_per_weight ==
        doctest::Approx((5.0 * 256 * 384 + 16 * (256 + 384) + 32) / (192 * 320)));
  REQUIRE(report.evaluated);
  CHECK(report.evaluation.kl_mean < 0.01);
  CHECK(report.evaluation.top1_agreement > 0.8);
}

TEST_CASE("bits: a fraction goes to attention and to the ends of the model first") {
  std::vector<Item> items;
  const auto add = [&](uint32_t layer, const std::string& name, uint64_t weights) {
    Item item;
    item.module = fmt::format("model.layers.{}.{}", layer, name);
    item.layer = layer;
    item.n = weights;
    item.k = 1;
    item.quantized = true;
    items.push_back(item);
  };
  for (uint32_t layer = 0; layer < 4; ++layer) {
    add(layer, "self_attn.q_proj", 100);
    add(layer, "mlp.gate_proj", 200);
    add(layer, "mlp.up_proj", 200);
  }
  allocate_bits(items, 3.5);
  double spent = 0, weights = 0;
  for (const Item& item : items) {
    spent += item.bits * static_cast<double>(item.weights());
    weights += static_cast<double>(item.weights());
    if (item.module.find("attn") != std::string::npos) CHECK(item.bits == 4);
    const bool end = item.layer == 0 || item.layer == 3;
    if (item.module.find("mlp") != std::string::npos && item.layer == 0) CHECK(item.bits == 4);
    if (item.module.find("mlp") != std::string::npos && !end) CHECK(item.bits == 3);
  }
  CHECK(spent / weights <= 3.5);
  CHECK(spent / weights > 3.3);
  allocate_bits(items, 2);
  for (const Item& item : items) CHECK(item.bits == 2);
}

TEST_SUITE_END();

}  // namespace
}  // namespace atlas::quantize
