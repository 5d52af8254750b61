// Rotary embedding settings of config.json, in the spellings of transformers 4 and 5.
#include "daemon/model/checkpoint/huggingface_parts.h"
#include "daemon/model/checkpoint/tensor_table.h"

namespace atlas::model {
namespace {

using nlohmann::json;

/// The keys of one rope variant, out of the object that names it.
Status read_scaling(ObjectReader& config, ObjectReader& rope, uint32_t max_positions,
                    RopeSettings* out) {
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  // "mrope" is an old name of the default with sections for images.
  if (type == "default" || type == "mrope" || !rope.status().ok()) return rope.status();
  const double original =
      rope.number("original_max_position_embeddings",
                  config.number("original_max_position_embeddings", double(max_positions)));
  if (type == "linear") {
    out->scaling = RopeScaling::kLinear;
    out->factor = rope.number("factor", std::nullopt);
  } else if (type == "llama3") {
    out->scaling = RopeScaling::kLlama3;
    out->factor = rope.number("factor", std::nullopt);
    out->original_positions = original;
    out->low_freq_factor = rope.number("low_freq_factor", std::nullopt);
    out->high_freq_factor = rope.number("high_freq_factor", std::nullopt);
  } else if (type == "yarn") {
    out->scaling = RopeScaling::kYarn;
    out->original_positions = original;
    out->factor = rope.number("factor", max_positions / original);
    out->attention_factor = rope.number("attention_factor", 0.0);
    out->mscale = rope.number("mscale", 0.0);
    out->mscale_all_dim = rope.number("mscale_all_dim", 0.0);
    out->beta_fast = rope.number("beta_fast", 32.0);
    out->beta_slow = rope.number("beta_slow", 1.0);
    out->truncate = rope.boolean("truncate", true);
  } else {
    return unimplemented("{}: rope_type is '{}'; Atlas computes default, linear, llama3 and yarn",
                         rope.path(), printable(type));
  }
  return rope.status();
}

/// mrope_section shares the frequencies out to time, height and width of a picture. The three
/// positions of text are equal, so that only the sum matters.
Status check_sections(ObjectReader& rope, uint32_t rotary_dim) {
  rope.boolean("mrope_interleaved", false);
  const json* sections = rope.find("mrope_section");
  if (sections == nullptr) return rope.status();
  const std::string expected =
      fmt::format("three whole numbers whose sum is {}, half of the {} elements that rotate",
                  rotary_dim / 2, rotary_dim);
  uint64_t sum = 0;
  bool good = sections->is_array() && sections->size() == 3;
  for (size_t i = 0; good && i < sections->size(); ++i) {
    const json& one = (*sections)[i];
    good = one.is_number_unsigned() && one.get<uint64_t>() <= rotary_dim;
    if (good) sum += one.get<uint64_t>();
  }
  if (!good || sum != rotary_dim / 2) rope.wrong("mrope_section", expected);
  return rope.status();
}

}  // namespace

Result<RopeSettings> read_huggingface_rope(ObjectReader& config, uint32_t head_dim,
                                           uint32_t max_positions, double partial_rotary) {
  const std::string_view key =
      config.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const json* found = config.find(key);
  const json empty = json::object();
  if (found != nullptr && !found->is_object()) config.wrong(key, "an object");
  ATLAS_RETURN_IF_ERROR(config.status());
  ObjectReader rope(found != nullptr ? *found : empty, fmt::format("{}: {}", config.path(), key));
  for (const auto& [name, value] : (found != nullptr ? *found : empty).items()) {
    if (value.is_object()) {
      return unimplemented(
          "{} has settings of its own for '{}'; Atlas runs one rope for all layers", rope.path(),
          printable(name));
    }
  }

  RopeSettings out;
  out.theta = rope.number("rope_theta", config.number("rope_theta", 10000.0));
  const double part =
      rope.number("partial_rotary_factor", config.number("partial_rotary_factor", partial_rotary));
  ATLAS_RETURN_IF_ERROR(rope.status());
  ATLAS_RETURN_IF_ERROR(read_scaling(config, rope, max_positions, &out));
  ATLAS_RETURN_IF_ERROR(config.status());
  if (!(part > 0 && part <= 1)) {
    return invalid_argument("{}: partial_rotary_factor is {}; expected more than 0, at most 1",
                            config.path(), part);
  }
  out.rotary_dim = static_cast<uint32_t>(head_dim * part);
  ATLAS_RETURN_IF_ERROR(check_sections(rope, out.rotary_dim));
  const Status status = check_rope_settings(out);
  if (!status.ok()) return status.with_context(found != nullptr ? rope.path() : config.path());
  return out;
}

}  // namespace atlas::model
