// Opening whole checkpoints: folders, shards, split files, tokenizer sources, lookups.
#include "daemon/model/checkpoint/checkpoint.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/tiny_llama.h"
#include "tests/unit/checkpoint/gguf_bytes.h"
#include "tests/unit/checkpoint/support.h"

using namespace atlas;
using namespace atlas::model;
using namespace atlas::testing;
using nlohmann::json;
namespace fs = std::filesystem;

TEST_SUITE_BEGIN("checkpoint");

namespace {

/// A tiny sharded folder, ready to be damaged.
class Folder {
 public:
  explicit Folder(uint32_t shards) {
    TinyLlama model;
    model.shards = shards;
    model.layers = 1;
    write_tiny_llama_folder(model, dir_.path());
  }
  const std::string& path() const { return dir_.path(); }
  std::string file(const std::string& name) const { return dir_.file(name); }
  Result<Checkpoint> open() const { return Checkpoint::open(path()); }
  /// Changes a JSON file of the folder.
  void change(const std::string& name, const std::function<void(json&)>& edit) const {
    json tree = json::parse(read_text(file(name)));
    edit(tree);
    write_text(file(name), tree.dump());
  }

 private:
  TempDir dir_;
};

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kQ = "model.layers.0.self_attn.q_proj.weight";

}  // namespace

TEST_CASE("checkpoint: a module's tensors are found, its namesakes are not") {
  const Folder folder(1);
  const auto checkpoint = folder.open();
  REQUIRE_MESSAGE(checkpoint, checkpoint.error().to_string());
  const auto q = checkpoint->with_prefix("model.layers.0.self_attn.q_proj");
  REQUIRE(q.size() == 1);
  CHECK(q[0].name == kQ);
  CHECK(checkpoint->find(kQ) == &q[0]);
  CHECK(checkpoint->with_prefix("model.layers.0.self_attn").size() == 4);
  CHECK(checkpoint->with_prefix("model").size() == checkpoint->tensors().size());
  for (const char* name :
       {"model.layers.0.self_attn.q_pro", "model.", "", "zzz", "model.layers.0."}) {
    CAPTURE(name);
    CHECK(checkpoint->with_prefix(name).empty());
    CHECK(checkpoint->find(name) == nullptr);
  }
}

TEST_CASE("checkpoint: prefixes stop at the dot whatever follows the module's name") {
  TensorTable table;
  for (const char* name :
       {"a.b", "a", "a-b", "a.b.c", "a/b", "a.", "ab", "a.b-c", "b", "a\xff", ""}) {
    TensorInfo tensor;
    tensor.name = table.intern(name);
    table.add(tensor);
  }
  REQUIRE(table.seal(std::vector<std::string>{"f"}).ok());
  std::vector<std::string> found;
  for (const TensorInfo& tensor : table.with_prefix("a")) found.emplace_back(tensor.name);
  CHECK(found == std::vector<std::string>{"a.", "a.b", "a.b-c", "a.b.c"});
  CHECK(table.with_prefix("a.b").size() == 1);
}

TEST_CASE("checkpoint: bytes of a tensor are those that were written, also after a move") {
  const Folder folder(2);
  auto opened = folder.open();
  REQUIRE(opened);
  const Checkpoint checkpoint = std::move(*opened);
  const TensorInfo* tensor = checkpoint.find(kQ);
  REQUIRE(tensor != nullptr);
  const auto expected = tiny_llama_weight(TinyLlama(), kQ, 64, 64);
  const auto data = data_of(checkpoint, *tensor);
  REQUIRE(data.size() == expected.size() * 2);
  for (size_t i = 0; i < expected.size(); ++i) {
    uint16_t half = 0;
    std::memcpy(&half, data.data() + 2 * i, 2);
    const uint32_t bits = uint32_t{half} << 16;
    float value = 0;
    std::memcpy(&value, &bits, 4);
    CHECK(std::abs(value - expected[i]) <= std::abs(expected[i]) / 256);
  }
  checkpoint.drop_cache(*tensor);
  CHECK(data_of(checkpoint, *tensor) == data);
}

TEST_CASE("checkpoint: the log's figures add up") {
  const TempDir dir;
  TinyLlama model;
  model.dtype = ATLAS_Q4_1;
  model.embedding_dtype = ATLAS_Q8_0;
  write_tiny_llama_gguf(model, dir.file("a.gguf"));
  const auto checkpoint = Checkpoint::open(dir.file("a.gguf"));
  REQUIRE_MESSAGE(checkpoint, checkpoint.error().to_string());
  CHECK(checkpoint->format_name() == "gguf v3");
  const auto types = checkpoint->type_histogram();
  REQUIRE(types.size() == 3);
  CHECK(types[0].dtype == ATLAS_Q4_1);
  CHECK(types[0].tensors == 14);
  CHECK(types[1].dtype == ATLAS_Q8_0);
  CHECK(types[2].dtype == ATLAS_F32);
  CHECK(types[0].bytes + types[1].bytes + types[2].bytes == checkpoint->total_bytes());
}

TEST_CASE("checkpoint: progress is told after each file") {
  const Folder folder(3);
  std::vector<std::pair<uint32_t, uint32_t>> seen;
  REQUIRE(Checkpoint::open(folder.path(),
                           [&](uint32_t done, uint32_t all) { seen.emplace_back(done, all); }));
  CHECK(seen == std::vector<std::pair<uint32_t, uint32_t>>{{1, 3}, {2, 3}, {3, 3}});
}

TEST_CASE("checkpoint: one safetensors file is opened beside its config, and wins over an index") {
  const Folder folder(1);
  const auto file = Checkpoint::open(folder.file("model.safetensors"));
  REQUIRE_MESSAGE(file, file.error().to_string());
  CHECK(file->tensors().size() == folder.open()->tensors().size());
  write_text(folder.file(kIndex), "not looked at");
  const auto both = folder.open();
  REQUIRE(both);
  REQUIRE(both->notes().size() == 1);
  CHECK(both->notes()[0].find("is not") != std::string::npos);
}

TEST_CASE("checkpoint: paths that are no model are refused with what is there") {
  const TempDir dir;
  check_error(Checkpoint::open(dir.file("absent")), Code::kNotFound, {"absent"});
  check_error(Checkpoint::open(dir.file("absent.gguf")), Code::kNotFound, {"absent.gguf"});
  check_error(Checkpoint::open(dir.path()), Code::kNotFound, {"config.json"});
  write_text(dir.file("notes.txt"), "x");
  check_error(Checkpoint::open(dir.file("notes.txt")), Code::kInvalidArgument,
              {"neither a folder nor"});
  const Folder folder(1);
  fs::rename(folder.file("model.safetensors"), folder.file("pytorch_model.bin"));
  check_error(folder.open(), Code::kNotFound,
              {"model.safetensors.index.json", "'pytorch_model.bin'"});
  fs::remove(folder.file("pytorch_model.bin"));
  check_error(folder.open(), Code::kNotFound, {"holds neither"});
  write_text(folder.file("model.safetensors"), "");
  check_error(folder.open(), Code::kInvalidArgument, {"model.safetensors", "empty"});
  fs::remove(folder.file("model.safetensors"));
  fs::create_directory(folder.file("model.safetensors"));
  check_error(folder.open(), Code::kInvalidArgument, {"not a regular file"});
}

TEST_CASE("checkpoint: an index and its shards must agree") {
  {
    const Folder folder(2);
    fs::remove(folder.file("model-00002-of-00002.safetensors"));
    check_error(folder.open(), Code::kNotFound, {kIndex, "'model-00002-of-00002.safetensors'"});
  }
  {
    const Folder folder(2);
    folder.change(kIndex, [](json& index) {
      index["weight_map"]["phantom"] = "model-00001-of-00002.safetensors";
    });
    check_error(folder.open(), Code::kInvalidArgument,
                {"'phantom'", "model-00001-of-00002.safetensors", "in no shard"});
  }
  {
    const Folder folder(2);
    folder.change(kIndex, [](json& index) {
      index["weight_map"]["model.norm.weight"] = "model-00001-of-00002.safetensors";
    });
    check_error(folder.open(), Code::kInvalidArgument,
                {"'model.norm.weight'", "in 'model-00002-of-00002.safetensors'"});
  }
  {
    const Folder folder(2);
    folder.change(kIndex, [](json& index) { index["weight_map"].erase("model.norm.weight"); });
    const auto checkpoint = folder.open();
    REQUIRE(checkpoint);
    CHECK(checkpoint->find("model.norm.weight") != nullptr);
    REQUIRE(checkpoint->notes().size() == 1);
    CHECK(checkpoint->notes()[0].find("1 tensors of the shards are not listed") !=
          std::string::npos);
  }
  {
    const Folder folder(2);
    fs::copy_file(folder.file("model-00001-of-00002.safetensors"), folder.file("copy.safetensors"));
    folder.change(kIndex, [](json& index) { index["weight_map"]["x"] = "copy.safetensors"; });
    check_error(folder.open(), Code::kInvalidArgument, {"is defined twice", "copy.safetensors"});
  }
  {
    const Folder folder(2);
    folder.change(kIndex, [](json& index) { index["weight_map"]["x"] = "../x.safetensors"; });
    check_error(folder.open(), Code::kInvalidArgument, {"'../x.safetensors'", "not inside"});
  }
}

TEST_CASE("checkpoint: a folder gives its tokenizer's texts, special tokens and chat template") {
  const Folder folder(1);
  const auto checkpoint = folder.open();
  REQUIRE(checkpoint);
  const auto source = checkpoint->tokenizer_source();
  REQUIRE(source);
  const auto* texts = std::get_if<HuggingfaceTokenizer>(&*source);
  REQUIRE(texts != nullptr);
  CHECK(texts->tokenizer_json == read_text(folder.file("tokenizer.json")));
  CHECK(texts->tokenizer_config_json == read_text(folder.file("tokenizer_config.json")));
  CHECK(texts->generation_config_json == read_text(folder.file("generation_config.json")));
  CHECK(checkpoint->special_tokens().bos == "<|im_start|>");
  CHECK(checkpoint->special_tokens().eos == "<|im_end|>");
  CHECK(checkpoint->special_tokens().unknown == "<|endoftext|>");
  CHECK(checkpoint->special_tokens().padding == "<|im_end|>");
  CHECK(checkpoint->chat_template() == tiny_llama_chat_template());
}

TEST_CASE("checkpoint: special tokens may be objects or stand in special_tokens_map.json") {
  const Folder folder(1);
  folder.change("tokenizer_config.json", [](json& config) {
    config["bos_token"] = {{"content", "<s>"}, {"lstrip", false}};
    config["eos_token"] = nullptr;
    config.erase("unk_token");
  });
  write_text(folder.file("special_tokens_map.json"),
             R"({"bos_token": "<other>", "eos_token": {"content": "</s>"}, "unk_token": 7})");
  const auto checkpoint = folder.open();
  REQUIRE_MESSAGE(checkpoint, checkpoint.error().to_string());
  CHECK(checkpoint->special_tokens().bos == "<s>");
  CHECK(checkpoint->special_tokens().eos == "</s>");
  CHECK_FALSE(checkpoint->special_tokens().unknown);
}

TEST_CASE("checkpoint: a chat template is a text, a named list's default, or a file that wins") {
  const Folder folder(1);
  const auto set = [&](const json& value) {
    folder.change("tokenizer_config.json", [&](json& config) { config["chat_template"] = value; });
    return folder.open();
  };
  CHECK(set("one")->chat_template() == "one");
  CHECK(set({{{"name", "tool_use"}, {"template", "T"}}, {{"name", "default"}, {"template", "D"}}})
            ->chat_template() == "D");
  CHECK_FALSE(set({{{"name", "tool_use"}, {"template", "T"}}})->chat_template());
  CHECK_FALSE(set(nullptr)->chat_template());
  check_error(set(7), Code::kInvalidArgument, {"tokenizer_config.json", "chat_template"});
  check_error(set({{{"name", "default"}}}), Code::kInvalidArgument, {"without name and template"});
  write_text(folder.file("chat_template.jinja"), "from the file");
  CHECK(set("one")->chat_template() == "from the file");
  write_text(folder.file("tokenizer_config.json"), "{");
  check_error(folder.open(), Code::kInvalidArgument, {"tokenizer_config.json", "not valid JSON"});
}

TEST_CASE("checkpoint: without a tokenizer the source is nothing, and a note says so") {
  TinyLlama model;
  model.tokenizer = false;
  const TempDir a, b;
  write_tiny_llama_folder(model, a.path());
  write_tiny_llama_gguf(model, b.file("a.gguf"));
  for (const std::string& path : {a.path(), b.file("a.gguf")}) {
    CAPTURE(path);
    const auto checkpoint = Checkpoint::open(path);
    REQUIRE_MESSAGE(checkpoint, checkpoint.error().to_string());
    const auto source = checkpoint->tokenizer_source();
    REQUIRE(source);
    CHECK(std::holds_alternative<std::monostate>(*source));
    CHECK_FALSE(checkpoint->chat_template());
    REQUIRE(checkpoint->notes().size() == 1);
    CHECK(checkpoint->notes()[0].find("token ids") != std::string::npos);
  }
}

TEST_CASE("checkpoint: a GGUF file of the Python package gives config, vocabulary and template") {
  const auto checkpoint = Checkpoint::open(golden_path("types.gguf"));
  REQUIRE_MESSAGE(checkpoint, checkpoint.error().to_string());
  const ModelConfig& config = checkpoint->config();
  CHECK(config.hidden == 256);
  CHECK(config.heads == 8);
  CHECK(config.vocab == 8);
  CHECK_FALSE(config.tie_embeddings);
  CHECK(config.rope.theta == 500000);
  CHECK(config.bos_id == 4u);
  CHECK(config.eos_ids == std::vector<uint32_t>{5, 6});
  CHECK(config.rope.inverse_frequencies.size() == 16);
  CHECK(checkpoint->find("blk.0.unheard_of.weight") != nullptr);
  CHECK(checkpoint->with_prefix("model.layers.0.mlp").size() == 3);
  const auto source = checkpoint->tokenizer_source();
  REQUIRE(source);
  const auto* vocabulary = std::get_if<GgufVocabulary>(&*source);
  REQUIRE(vocabulary != nullptr);
  CHECK(vocabulary->model == "gpt2");
  CHECK(vocabulary->pre == "llama-bpe");
  CHECK(vocabulary->tokens.size() == 8);
  CHECK(vocabulary->tokens[3] == "\u0120");
  CHECK(vocabulary->token_types == std::vector<int32_t>{1, 1, 1, 1, 3, 3, 3, 1});
  CHECK(vocabulary->merges == std::vector<std::string>{"a b"});
  CHECK(vocabulary->bos == 4u);
  CHECK(vocabulary->eos == 6u);
  CHECK_FALSE(vocabulary->eot);
  CHECK(vocabulary->add_bos == true);
  CHECK(checkpoint->special_tokens().bos == "<|begin_of_text|>");
  CHECK(checkpoint->special_tokens().eos == "<|end_of_text|>");
  CHECK(checkpoint->chat_template() == "{{ messages }}");
}

TEST_CASE("checkpoint: a GGUF vocabulary with keys of wrong kinds is refused") {
  const TempDir dir;
  const auto open = [&](const GgufBytes& file) {
    write_text(dir.file("a.gguf"), file.build());
    return Checkpoint::open(dir.file("a.gguf"));
  };
  {
    GgufBytes file = small_llama();
    std::erase_if(file.pairs, [](const std::string& pair) {
      return pair.find("tokenizer.ggml.token_type") != std::string::npos;
    });
    file.i32s("tokenizer.ggml.token_type", {1});
    const auto checkpoint = open(file);
    REQUIRE_MESSAGE(checkpoint, checkpoint.error().to_string());
    check_error(checkpoint->tokenizer_source(), Code::kInvalidArgument,
                {"3 tokens beside 1 token types"});
  }
  {
    GgufBytes file = small_llama();
    file.u32("tokenizer.ggml.unknown_token_id", 3);
    check_error(open(file), Code::kInvalidArgument, {"unknown_token_id", "is 3", "3 tokens"});
  }
  {
    GgufBytes file = small_llama();
    file.u32("tokenizer.chat_template", 3);
    check_error(open(file), Code::kInvalidArgument, {"tokenizer.chat_template", "a string"});
  }
}

TEST_CASE("checkpoint: GGUF tensors that get one name are refused") {
  const TempDir dir;
  GgufBytes file = small_llama();
  file.append("model.embed_tokens.weight", {1}, 0, "1234");
  write_text(dir.file("a.gguf"), file.build());
  check_error(Checkpoint::open(dir.file("a.gguf")), Code::kInvalidArgument,
              {"'model.embed_tokens.weight' is defined twice"});
}

TEST_CASE("checkpoint: a split GGUF is opened by any of its parts, and only whole") {
  const TempDir dir;
  const auto part = [&](uint32_t number, GgufBytes file, uint32_t tensors = 3) {
    file.pair("split.no", 2, raw<uint16_t>(static_cast<uint16_t>(number)));
    file.pair("split.count", 2, raw<uint16_t>(2)).u32("split.tensors.count", tensors);
    write_text(dir.file(fmt::format("m-{:05}-of-00002.gguf", number + 1)), file.build());
  };
  GgufBytes first = small_llama();
  const GgufBytes embedding = first;
  first.tensors.clear();
  first.data.clear();
  first.append("output_norm.weight", {32}, 0, std::string(128, '\1'));
  GgufBytes second;
  second.tensors = embedding.tensors;
  second.data = embedding.data;
  second.append("output.weight", {32, 3}, 0, std::string(384, '\1'));
  part(0, first);
  part(1, second);
  for (const char* name : {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"}) {
    const auto checkpoint = Checkpoint::open(dir.file(name));
    REQUIRE_MESSAGE(checkpoint, checkpoint.error().to_string());
    CHECK(checkpoint->tensors().size() == 3);
    CHECK(checkpoint->files().size() == 2);
    CHECK(checkpoint->find("model.embed_tokens.weight")->file == 1);
    CHECK_FALSE(checkpoint->config().tie_embeddings);
  }
  part(1, second, 4);
  part(0, first, 4);
  check_error(Checkpoint::open(dir.file("m-00001-of-00002.gguf")), Code::kInvalidArgument,
              {"hold 3 tensors", "is 4"});
  fs::rename(dir.file("m-00001-of-00002.gguf"), dir.file("renamed.gguf"));
  check_error(Checkpoint::open(dir.file("renamed.gguf")), Code::kInvalidArgument,
              {"must be called NAME-00001-of-00002.gguf"});
  check_error(Checkpoint::open(dir.file("m-00002-of-00002.gguf")), Code::kNotFound,
              {"m-00001-of-00002.gguf"});
  GgufBytes odd = small_llama();
  odd.u32("split.count", 2).u32("split.no", 2);
  write_text(dir.file("odd.gguf"), odd.build());
  check_error(Checkpoint::open(dir.file("odd.gguf")), Code::kInvalidArgument, {"part 2 of 2"});
}

TEST_CASE("checkpoint: a tensor becomes the plugins' struct, up to four dimensions") {
  const Folder folder(1);
  const auto checkpoint = folder.open();
  REQUIRE(checkpoint);
  const TensorInfo& tensor = *checkpoint->find(kQ);
  const auto abi = to_abi_tensor(tensor);
  REQUIRE(abi);
  CHECK(std::string(abi->name) == kQ);
  CHECK(abi->struct_size == sizeof(AtlasTensor));
  CHECK(abi->dtype == ATLAS_BF16);
  CHECK(abi->rank == 2);
  CHECK(abi->dims[0] == 64);
  CHECK(abi->dims[1] == 64);
  CHECK(abi->bytes == 8192);
  CHECK(abi->data == nullptr);
  TensorInfo wide = tensor;
  wide.rank = 5;
  check_error(to_abi_tensor(wide), Code::kUnimplemented, {kQ, "5 dimensions"});
}

TEST_SUITE_END();
