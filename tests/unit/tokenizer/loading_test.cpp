// Files that are wrong, or ask for what Atlas does not know: one clear error each, never a crash.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "tests/unit/tokenizer/fixtures.h"

using namespace atlas;
using namespace atlas::model;
using namespace atlas::model::testing;

namespace {

// A complete small tokenizer.json, of which each test spoils one part.
const std::string kSmall = R"({
  "version": "1.0",
  "added_tokens": [{"id": 4, "content": "<end>", "special": true, "normalized": false}],
  "normalizer": {"type": "NFC"},
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
  "post_processor": null,
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"]}
})";

std::string with(std::string_view from, std::string_view to) {
  std::string text = kSmall;
  const size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

// The message of the error, or "" if the file loads.
std::string error_of(const std::string& json, std::string_view config = {},
                     std::string_view generation = {}) {
  const auto loaded = Tokenizer::from_tokenizer_json(json, config, generation);
  return loaded ? "" : loaded.error().to_string();
}

void check_error(const std::string& json, std::string_view reason, std::string_view config = {},
                 std::string_view generation = {}) {
  const std::string message = error_of(json, config, generation);
  CHECK_MESSAGE(message.find(reason) != std::string::npos, "wanted '", reason, "', got '", message,
                "'");
}

GgufVocabulary small_gguf() {
  GgufVocabulary file;
  file.model = "gpt2";
  file.pre = "gpt-2";
  file.tokens = {"a", "b", "ab", "<end>"};
  file.token_types = {1, 1, 1, 3};
  file.merges = {"a b"};
  file.eos = 3;
  return file;
}

void check_gguf_error(const GgufVocabulary& file, std::string_view reason) {
  const auto loaded = Tokenizer::from_gguf(file);
  REQUIRE_FALSE(loaded);
  CHECK_MESSAGE(loaded.error().message().find(reason) != std::string::npos,
                loaded.error().message());
}

}  // namespace

TEST_SUITE_BEGIN("tokenizer");

TEST_CASE("tokenizer.json: the small file of these tests works") {
  const auto loaded = Tokenizer::from_tokenizer_json(kSmall);
  REQUIRE_MESSAGE(loaded, loaded.error().to_string());
  CHECK(loaded->encode("ab a<end>") == std::vector<TokenId>{2, 3, 0, 4});
  CHECK(loaded->vocab_size() == 5);
}

TEST_CASE("tokenizer.json: what is not JSON says where") {
  check_error("", "not valid JSON");
  check_error("{", "not valid JSON");
  check_error("[]", "not a JSON object");
  check_error("{\"a\": \"\xFF\"}", "not valid JSON");
  check_error("{}", "no 'model'");
}

TEST_CASE("tokenizer.json: an unknown component is named") {
  check_error(with(R"({"type": "NFC"})", R"({"type": "Lowercase"})"), "normalizer 'Lowercase'");
  check_error(with(R"("normalizer": {"type": "NFC"})",
                   R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "Strip"}]})"),
              "normalizer 'Strip'");
  check_error(with(R"("type": "ByteLevel", "add_prefix)", R"("type": "Metaspace", "add_prefix)"),
              "pre-tokenizer 'Metaspace'");
  check_error(with(R"("decoder": {"type": "ByteLevel"})", R"("decoder": {"type": "Metaspace"})"),
              "decoder 'Metaspace'");
  check_error(with(R"("post_processor": null)", R"("post_processor": {"type": "BertProcessing"})"),
              "post-processor 'BertProcessing'");
  check_error(with(R"("type": "BPE")", R"("type": "Unigram")"), "model 'Unigram'");
  check_error(with(R"("type": "BPE")", R"("type": "BPE", "byte_fallback": true)"), "byte_fallback");
  check_error(with(R"("type": "BPE")", R"("type": "BPE", "dropout": 0.1)"), "dropout");
  check_error(with(R"("type": "BPE")", R"("type": "BPE", "end_of_word_suffix": "</w>")"),
              "end_of_word_suffix");
  check_error(with(R"("type": "BPE")", R"("type": "BPE", "unk_token": "?")"), "unk_token '?'");
}

TEST_CASE("tokenizer.json: pre-tokenizers must end in ByteLevel and make sense") {
  const std::string_view whole =
      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";
  check_error(with(whole, "null"), "no ByteLevel");
  check_error(with(whole, R"({"type": "Sequence"})"), "'pretokenizers'");
  check_error(with(whole, R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"},
                             {"type": "Digits"}]})"),
              "follows ByteLevel");
  check_error(with(whole, R"({"type": "Sequence", "pretokenizers": [{"type": "Split",
                             "pattern": {"Regex": "[a"}, "behavior": "Isolated"},
                             {"type": "ByteLevel"}]})"),
              "unfinished character class");
  check_error(with(whole, R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Torn"})"),
              "Split behavior 'Torn'");
  check_error(with(whole, R"({"type": "Split", "behavior": "Isolated"})"), "'Regex'");
  check_error(with(whole, R"({"kind": "ByteLevel"})"), "'type'");
}

TEST_CASE("tokenizer.json: ids are numbers, small enough, and each belongs to one token") {
  check_error(with(R"("b": 1)", R"("b": 0)"), "the same id 0");
  check_error(with(R"("b": 1)", R"("b": -1)"), "model.vocab");
  check_error(with(R"("b": 1)", R"("b": 1.5)"), "model.vocab");
  check_error(with(R"("b": 1)", R"("b": "1")"), "model.vocab");
  check_error(with(R"("b": 1)", R"("b": {"c": 1})"), "model.vocab");
  check_error(with(R"("b": 1)", R"("b": 4194304)"), "less than 4194304");
  check_error(with(R"("b": 1)", R"("b": 18446744073709551615)"), "less than 4194304");
  check_error(with(R"("b": 1)", R"("b": 1e30)"), "model.vocab");
  check_error(with(R"("b": 1)", R"("b": 1, "b": 7)"), "two ids, 1 and 7");
  check_error(with(R"({"a": 0, "b": 1, "ab": 2, "Ġ": 3})", "[0, 1]"), "model.vocab");
  check_error(with(R"({"a": 0, "b": 1, "ab": 2, "Ġ": 3})", "{}"), "empty or missing");
  check_error(with(R"("id": 4)", R"("id": 2)"), "the same id 2");
  check_error(with(R"("content": "<end>")", R"("content": "ab")"), "two ids, 2 and 4");
  check_error(with(R"("id": 4)", R"("id": 99999999)"), "added_tokens.id");
  check_error(with(R"("id": 4, )", ""), "added_tokens.id");
  check_error(with(R"("content": "<end>", )", ""), "'content'");
  check_error(with(R"("special": true)", R"("special": 1)"), "'special'");
}

TEST_CASE("tokenizer.json: merges name tokens that exist") {
  check_error(with(R"(["a b"])", R"(["a c"])"), "names 'c'");
  check_error(with(R"(["a b"])", R"([["b", "a"]])"), "names 'ba'");
  for (const char* bad : {R"(["a"])", R"(["a b c"])", R"([["a"]])", R"([["a", "b", "c"]])",
                          R"([[["a", "b"]]])", R"([1])", R"([{"a": "b"}])", R"([["a", 1]])"}) {
    check_error(with(R"(["a b"])", bad), "model.merges");
  }
  CHECK(error_of(with(R"(["a b"])", R"(["#version: 0.2", "a b"])")).empty());
}

TEST_CASE("tokenizer.json: size is bounded everywhere") {
  check_error(with(R"("b": 1)", "\"" + std::string(70'000, 'b') + "\": 1"), "more than 65536");
  check_error(with("<end>", std::string(2'000, '<')), "more than 1024");
  check_error(with(R"("version": "1.0")", R"("version": )" + std::string(1'000'000, '[')),
              "nested more than 64");
  std::string zeros = "[0";
  for (int i = 0; i < 1'000'001; ++i) zeros += ",0";
  check_error(with(R"("version": "1.0")", "\"version\": " + zeros + "]"), "more than 1000000");
  check_error(std::string(300'000'000, ' '), "300000000 bytes");
}

TEST_CASE("tokenizer.json: cut off anywhere it is an error, spoiled anywhere it is no crash") {
  const std::string file = golden_file("flags.json");
  for (size_t size = 0; size < file.size() - 2; size += 61) {
    CHECK_FALSE(Tokenizer::from_tokenizer_json(file.substr(0, size)));
  }
  std::mt19937 random(41);
  int loads = 0;
  for (int round = 0; round < 300; ++round) {
    std::string spoiled = round % 2 ? kSmall : file;
    for (int i = 0; i < 3; ++i) spoiled[random() % spoiled.size()] = static_cast<char>(random());
    const auto loaded = Tokenizer::from_tokenizer_json(spoiled);
    if (!loaded) continue;
    ++loads;
    CHECK(loaded->encode("ab 12 <end>").size() < 12);
  }
  CHECK(loads < 300);
}

TEST_CASE("companions: bos, eos and the ends of answers come from them") {
  const auto loaded = Tokenizer::from_tokenizer_json(
      kSmall,
      R"({"bos_token": {"content": "ab"}, "eos_token": "<end>", "add_bos_token": true,
          "added_tokens_decoder": {"4": {"content": "<end>"},
                                   "9": {"content": "<new>", "special": true}}})",
      R"({"eos_token_id": [4, 1]})");
  REQUIRE_MESSAGE(loaded, loaded.error().to_string());
  CHECK(loaded->bos() == 2);
  CHECK(loaded->eos() == 4);
  CHECK(loaded->end_of_generation() == std::vector<TokenId>{1, 4});
  CHECK(loaded->encode("b<new>", {.add_bos_as_model_says = true}) == std::vector<TokenId>{2, 1, 9});
  CHECK(loaded->vocab_size() == 10);
  CHECK(loaded->token_bytes(7).empty());
  const auto alone =
      Tokenizer::from_tokenizer_json(kSmall, {}, R"({"eos_token_id": 4, "bos_token_id": 0})");
  REQUIRE(alone);
  CHECK(alone->bos() == 0);
  CHECK(alone->eos() == 4);
}

TEST_CASE("companions: their errors name the file") {
  check_error(kSmall, "tokenizer_config.json: 'eos_token' is 'x'", R"({"eos_token": "x"})");
  check_error(kSmall, "tokenizer_config.json", R"({"bos_token": 1})");
  check_error(kSmall, "tokenizer_config.json", R"({"add_bos_token": "yes"})");
  check_error(kSmall, "no token id", R"({"added_tokens_decoder": {"x": {"content": "y"}}})");
  check_error(kSmall, "the same id 0", R"({"added_tokens_decoder": {"0": {"content": "y"}}})");
  check_error(kSmall, "tokenizer_config.json: the file is not valid JSON", "{");
  check_error(kSmall, "generation_config.json", {}, R"({"eos_token_id": -1})");
  check_error(kSmall, "generation_config.json", {}, R"({"eos_token_id": [1, "2"]})");
}

TEST_CASE("companions: add_bos_token decides against the template") {
  const std::string file = with(R"("post_processor": null)",
                                R"("post_processor": {"type": "TemplateProcessing",
              "single": [{"SpecialToken": {"id": "<end>", "type_id": 0}}, {"Sequence": {"id": "A"}}],
              "special_tokens": {"<end>": {"id": "<end>", "ids": [4], "tokens": ["<end>"]}}})");
  const auto with_bos = [&](std::string_view config) {
    const auto loaded = Tokenizer::from_tokenizer_json(file, config);
    REQUIRE_MESSAGE(loaded, loaded.error().to_string());
    return loaded->encode("a", {.add_bos_as_model_says = true});
  };
  CHECK(with_bos("") == std::vector<TokenId>{4, 0});
  CHECK(with_bos(R"({"add_bos_token": true, "bos_token": "ab"})") == std::vector<TokenId>{4, 0});
  CHECK(with_bos(R"({"add_bos_token": false})") == std::vector<TokenId>{0});
  std::string stranger = file;
  stranger.replace(stranger.find("[4]"), 3, "[8]");
  check_error(stranger, "id 8, which has no token");
}

TEST_CASE("added tokens: a letter of the byte alphabet decodes as itself") {
  const auto loaded = Tokenizer::from_tokenizer_json(with("<end>", "é"));
  REQUIRE(loaded);
  CHECK(loaded->decode(loaded->encode("aéb"), false) == "aéb");
}

TEST_CASE("gguf: the same vocabulary gives the same ids as tokenizer.json") {
  const auto loaded = Tokenizer::from_gguf(small_gguf());
  REQUIRE_MESSAGE(loaded, loaded.error().to_string());
  CHECK(loaded->encode("ab<end>") == std::vector<TokenId>{2, 3});
  CHECK(loaded->end_of_generation() == std::vector<TokenId>{3});
  CHECK(loaded->vocab_size() == 4);
}

TEST_CASE("gguf: each pre-tokenizer family cuts as its models do") {
  // 256 single bytes and nothing to merge, but " 12" and "s12" where a family keeps them whole.
  const auto tokens_of = [](const char* pre, std::string_view text) {
    GgufVocabulary file = small_gguf();
    file.pre = pre;
    file.tokens = {"1", "2", "Ġ", "12", "Ġ12", "3", "123", "s", "'", "S", "'S"};
    file.token_types.clear();
    file.merges = {"1 2", "Ġ 12", "12 3", "' S"};
    file.eos.reset();
    file.bos = 0;
    const auto loaded = Tokenizer::from_gguf(file);
    REQUIRE_MESSAGE(loaded, pre << ": " << loaded.error().to_string());
    return loaded->encode(text, {.add_bos_as_model_says = true});
  };
  using Ids = std::vector<TokenId>;
  for (const char* pre : {"gpt-2", "phi-2"}) CHECK(tokens_of(pre, " 12's12") == Ids{4, 8, 7, 3});
  for (const char* pre :
       {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}) {
    CHECK(tokens_of(pre, " 12") == Ids{2, 0, 1});
  }
  for (const char* pre : {"llama-bpe", "llama3", "llama-v3"}) {
    CHECK(tokens_of(pre, " 1231'S") == Ids{0, 2, 6, 0, 10});
  }
  for (const char* pre : {"qwen2", "deepseek-r1-qwen", "qwen35"}) {
    CHECK(tokens_of(pre, " 12'S") == Ids{2, 0, 1, 10});
  }
  for (const char* pre : {"default", ""}) CHECK(tokens_of(pre, " 123") == Ids{2, 6});
}

TEST_CASE("gguf: an unknown pre-tokenizer is named, and the known ones are listed") {
  GgufVocabulary file = small_gguf();
  file.pre = "viking";
  check_gguf_error(file, "'viking'");
  check_gguf_error(file, "smollm, starcoder");
  check_gguf_error(file, "qwen35");
}

TEST_CASE("gguf: metadata that contradicts itself is an error") {
  const auto spoiled = [](auto&& spoil) {
    GgufVocabulary file = small_gguf();
    spoil(file);
    return file;
  };
  using File = GgufVocabulary;
  check_gguf_error(spoiled([](File& f) { f.model = "llama"; }), "'llama'");
  check_gguf_error(spoiled([](File& f) { f.tokens.clear(); }), "0 tokens");
  check_gguf_error(spoiled([](File& f) { f.token_types.pop_back(); }), "3 entries for 4 tokens");
  check_gguf_error(spoiled([](File& f) { f.token_types[1] = 9; }), "type 9");
  check_gguf_error(spoiled([](File& f) { f.tokens[1] = "a"; }), "two ids, 0 and 1");
  check_gguf_error(spoiled([](File& f) { f.merges = {"a c"}; }), "names 'c'");
  check_gguf_error(spoiled([](File& f) { f.merges = {"ab"}; }), "merge 'ab'");
  check_gguf_error(spoiled([](File& f) { f.merges = {"a "}; }), "merge 'a '");
  check_gguf_error(spoiled([](File& f) { f.merges = {""}; }), "merge ''");
  check_gguf_error(spoiled([](File& f) { f.eos = 4; }), "eos_token_id is 4");
  check_gguf_error(spoiled([](File& f) { f.padding = 4'000'000'000; }), "padding_token_id");
  check_gguf_error(spoiled([](File& f) { f.tokens[3] = std::string(5'000, 'x'); }),
                   "more than 1024");
}

TEST_CASE("gguf: fillers of a padded vocabulary may repeat") {
  GgufVocabulary file = small_gguf();
  file.tokens.insert(file.tokens.end(), {"<pad>", "<pad>", ""});
  file.token_types.insert(file.token_types.end(), {5, 5, 5});
  const auto loaded = Tokenizer::from_gguf(file);
  REQUIRE_MESSAGE(loaded, loaded.error().to_string());
  CHECK(loaded->vocab_size() == 7);
}

TEST_SUITE_END();
