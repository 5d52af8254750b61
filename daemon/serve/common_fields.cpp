// Fields that completions and chat completions share, and the checks of prompts.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "daemon/serve/fields.h"
#include "daemon/serve/generate_request.h"
#include "daemon/serve/json_text.h"

namespace atlas::serve {
namespace {

constexpr int64_t kMaxN = 128;
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxBias = 1024;

// Clients written in JavaScript keep integers exactly up to 2^53.
constexpr uint64_t kSeedMask = (uint64_t{1} << 53) - 1;

uint64_t draw_seed() {
  thread_local std::mt19937_64 generator(std::random_device{}() ^
                                         (uint64_t{std::random_device{}()} << 32));
  return generator() & kSeedMask;
}

void read_logit_bias(FieldReader& reader, const engine::ModelInfo& model,
                     engine::SamplingParams& out) {
  const Json* value = reader.take("logit_bias");
  if (value == nullptr) return;
  if (!value->is_object()) {
    return reader.refuse_type("logit_bias", "an object of token ids and numbers", *value);
  }
  if (value->size() > kMaxBias) {
    return reader.refuse("logit_bias", fmt::format("`logit_bias` has {} entries, at most {} fit",
                                                   value->size(), kMaxBias));
  }
  for (const auto& [key, bias] : value->items()) {
    const bool digits =
        !key.empty() && key.size() <= 9 &&
        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || std::stoul(key) >= model.vocab) {
      return reader.refuse("logit_bias", fmt::format("`logit_bias`: \"{}\" is no token id below {}",
                                                     to_utf8(key.substr(0, 32)), model.vocab));
    }
    if (!bias.is_number() || !(bias.get<double>() >= -100 && bias.get<double>() <= 100)) {
      return reader.refuse(
          "logit_bias",
          fmt::format("`logit_bias`: the bias of {} must be a number in -100..100", key));
    }
    out.logit_bias.emplace_back(static_cast<engine::TokenId>(std::stoul(key)), bias.get<float>());
  }
}

void read_sampling(FieldReader& reader, const engine::ModelInfo& model,
                   engine::SamplingParams& out) {
  reader.number("temperature", 0, 100, out.temperature);
  reader.number("top_p", 0, 1, out.top_p);
  reader.number("min_p", 0, 1, out.min_p);
  reader.number("repetition_penalty", 0.01, 100, out.repetition_penalty);
  reader.number("presence_penalty", -2, 2, out.presence_penalty);
  reader.number("frequency_penalty", -2, 2, out.frequency_penalty);
  int64_t top_k = 0;
  // -1 is how some clients switch it off.
  if (reader.integer("top_k", -1, INT32_MAX, top_k)) {
    out.top_k = static_cast<uint32_t>(std::max<int64_t>(top_k, 0));
  }
  int64_t seed = 0;
  out.seed = reader.integer("seed", INT64_MIN, INT64_MAX, seed) ? static_cast<uint64_t>(seed)
                                                                : draw_seed();
  read_logit_bias(reader, model, out);
}

void read_stop(FieldReader& reader, const engine::ModelInfo& model, std::vector<std::string>& out) {
  const Json* value = reader.take("stop");
  if (value == nullptr) return;
  if (value->is_string()) {
    out.push_back(value->get<std::string>());
  } else if (value->is_array()) {
    for (const Json& entry : *value) {
      if (!entry.is_string()) return reader.refuse_type("stop", "strings", entry);
      out.push_back(entry.get<std::string>());
    }
  } else {
    return reader.refuse_type("stop", "a string or a list of strings", *value);
  }
  if (out.size() > kMaxStops) {
    return reader.refuse(
        "stop", fmt::format("`stop` has {} strings, at most {} fit", out.size(), kMaxStops));
  }
  for (const std::string& text : out) {
    if (text.empty() || text.size() > kMaxStopBytes) {
      return reader.refuse("stop", fmt::format("`stop`: every string must have 1..{} bytes, not {}",
                                               kMaxStopBytes, text.size()));
    }
  }
  if (!out.empty() && model.tokenizer == nullptr) {
    reader.refuse("stop", "`stop` needs text, and this model has no tokenizer");
  }
}

void read_streaming(FieldReader& reader, GenerateRequest& out) {
  reader.boolean("stream", out.stream);
  const Json* options = reader.take("stream_options");
  if (options == nullptr) return;
  if (!out.stream) {
    return reader.refuse("stream_options", "`stream_options` needs `stream`: true");
  }
  FieldReader inner(*options, reader.full_name("stream_options") + ".");
  inner.boolean("include_usage", out.include_usage);
  inner.neutral(
      "include_obfuscation", [](const Json& value) { return value == false; }, "false");
  if (Refusal refusal = inner.finish()) reader.refuse(std::move(*refusal));
}

bool is_text(const Json& value, std::initializer_list<std::string_view> texts) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

}  // namespace

void read_common_fields(FieldReader& reader, const Control& control, const ServeLimits& limits,
                        GenerateRequest& out) {
  const Json* name = reader.take("model");
  if (!reader.ok()) return;
  if (Refusal refusal = find_target(control, name, out.target)) {
    return reader.refuse(std::move(*refusal));
  }
  const engine::ModelInfo& model = *out.target.model;
  read_streaming(reader, out);
  read_sampling(reader, model, out.spec.sampling);
  read_stop(reader, model, out.spec.stop);
  int64_t n = 1;
  reader.integer("n", 1, std::min<int64_t>(kMaxN, limits.sequences), n);
  out.n = static_cast<uint32_t>(n);
  reader.boolean("ignore_eos", out.spec.ignore_end_of_generation);
  reader.boolean("skip_special_tokens", out.spec.skip_special);
  out.return_token_ids = model.tokenizer == nullptr;
  reader.boolean("return_token_ids", out.return_token_ids);

  reader.neutral(
      "best_of", [n](const Json& value) { return value == n; }, "the value of `n`");
  reader.neutral(
      "min_tokens", [](const Json& value) { return value == 0; }, "0");
  reader.neutral(
      "response_format",
      [](const Json& value) {
        return value.is_object() && value.size() == 1 && value.contains("type") &&
               is_text(value["type"], {"text"});
      },
      R"({"type": "text"})");
  reader.neutral(
      "service_tier",
      [](const Json& value) {
        return is_text(value, {"auto", "default"});
      },
      R"("auto" or "default")");
  reader.inert({"user", "metadata", "store", "parallel_tool_calls", "safety_identifier",
                "prompt_cache_key", "prompt_cache_retention"});
}

void read_token_ids(FieldReader& reader, const Json& list, std::string_view name,
                    const engine::ModelInfo& model, std::vector<engine::TokenId>& out) {
  out.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& id = list[i];
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= model.vocab) {
      return reader.refuse(
          name, fmt::format("`{}[{}]` must be a token id below {}", name, i, model.vocab));
    }
    out.push_back(id.get<engine::TokenId>());
  }
}

void check_prompt(FieldReader& reader, std::string_view name, size_t prompt_tokens, bool generates,
                  const engine::ModelInfo& model, const ServeLimits& limits) {
  if (prompt_tokens == 0) {
    return reader.refuse(name, fmt::format("`{}` is empty: there is nothing to go on from", name));
  }
  size_t most = model.context_tokens - (generates ? 1 : 0);
  std::string_view what = "the context of this model, with room for one token of answer,";
  if (!generates) what = "the context of this model";
  if (limits.prompt_tokens != 0 && limits.prompt_tokens < most) {
    most = limits.prompt_tokens;
    what = "the limit of this server";
  }
  if (prompt_tokens <= most) return;
  reader.refuse(ApiError{
      .message = fmt::format("`{}` has {} tokens, and {} is {}", name, prompt_tokens, what, most),
      .param = std::string(name),
      .code = "context_length_exceeded"});
}

}  // namespace atlas::serve
