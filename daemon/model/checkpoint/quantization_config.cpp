#include "daemon/model/checkpoint/quantization_config.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <span>

#include "daemon/base/nearest_name.h"
#include "daemon/model/checkpoint/tensor_table.h"

namespace atlas::model {
namespace {

using nlohmann::json;
using plan::DeclaredFormats;
using plan::DeclaredModules;

constexpr const char* kRemedy =
    "the tensors decide what runs; where they are right, mend the configuration or remove its "
    "entry, or name the format in model.formats of the settings";

/// Words of Model Optimizer's quant_algo, and the format that they stand for.
struct Word {
  std::string_view word, format;
};
constexpr Word kAlgorithms[] = {{"NVFP4", "nvfp4"},
                                {"W4A16_NVFP4", "nvfp4"},
                                {"NVFP4_AWQ", "nvfp4"},
                                {"NVFP4_SVD", "nvfp4"},
                                {"W4A8_NVFP4_FP8", "nvfp4"},
                                {"FP8", "fp8"},
                                {"FP8_PER_CHANNEL_PER_TOKEN", "fp8"},
                                {"FP8_PB_WO", "fp8"},
                                {"FP8_BLOCK_SCALES", "fp8"},
                                {"MXFP8", "mxfp8"}};
constexpr Word kPackings[] = {{"nvfp4-pack-quantized", "nvfp4"},
                              {"float-quantized", "fp8"},
                              {"naive-quantized", "fp8"},
                              {"mxfp8-quantized", "mxfp8"}};

/// What stands for "see the layers", "see the groups", or floats.
constexpr std::string_view kNoFormat[] = {"", "MIXED_PRECISION", "mixed-precision", "dense"};

void add_unknown(DeclaredFormats* declared, const std::string& word) {
  std::vector<plan::UnknownWord>& unknown = declared->unknown;
  const bool noted = std::any_of(unknown.begin(), unknown.end(),
                                 [&](const auto& one) { return one.word == word; });
  if (!noted) unknown.push_back({declared->source, word});
}

/// The formats that a word stands for; none if it is not known, which `declared` then says.
std::vector<std::string> formats_of(std::span<const Word> words, const std::string& word,
                                    DeclaredFormats* declared) {
  for (const Word& known : words) {
    if (known.word == word) return {std::string(known.format)};
  }
  const auto exempt = std::find(std::begin(kNoFormat), std::end(kNoFormat), word);
  if (exempt == std::end(kNoFormat)) add_unknown(declared, word);
  return {};
}

void add_format(DeclaredFormats* declared, const std::vector<std::string>& formats) {
  for (const std::string& format : formats) {
    const auto& known = declared->formats;
    if (std::find(known.begin(), known.end(), format) == known.end()) {
      declared->formats.push_back(format);
    }
  }
}

/// A regular expression of module names as a pattern, if it has nothing but texts, dots and ".*".
std::optional<std::string> simple_regex(std::string_view regex) {
  std::string pattern;
  if (regex.starts_with('^')) regex.remove_prefix(1);
  const bool whole = regex.ends_with('$');
  if (whole) regex.remove_suffix(1);
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c == '\\' && i + 1 < regex.size() && regex[i + 1] == '.') {
      pattern += '.';
      ++i;
    } else if (c == '.' && i + 1 < regex.size() && regex[i + 1] == '*') {
      pattern += '*';
      ++i;
    } else if (c == '.') {
      pattern += '?';
    } else if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-') {
      pattern += c;
    } else {
      return std::nullopt;
    }
  }
  return whole ? pattern : pattern + "*";  // matched from the start on, not to the end
}

/// Modules that stay as they are. A regular expression that is more than a pattern is left out: its
/// modules are not compared.
void add_plain(const std::vector<std::string>& names, const std::string& key,
               DeclaredFormats* declared) {
  constexpr std::string_view kRegex = "re:";
  for (const std::string& name : names) {
    std::string pattern = name;
    if (name.starts_with(kRegex)) {
      const auto simple = simple_regex(std::string_view(name).substr(kRegex.size()));
      if (!simple) continue;
      pattern = *simple;
    }
    if (pattern.empty()) continue;
    declared->modules.push_back({pattern, key, plan::kFloatFormats});
    // A name without a place is that of any module that is called so.
    if (pattern.find_first_of(".*?") == std::string::npos) {
      declared->modules.push_back({"*." + pattern, key, plan::kFloatFormats});
    }
  }
}

/// The modules of a list of `reader`, if it has it.
void add_plain(ObjectReader& reader, const char* key, DeclaredFormats* declared) {
  if (const auto names = reader.texts(key)) add_plain(*names, key, declared);
}

/// {"model.layers.0.mlp": {"quant_algo": "NVFP4"}, ...}; they come before lists of exceptions.
Status add_layers(ObjectReader& reader, DeclaredFormats* declared) {
  const json* layers = reader.find("quantized_layers");
  if (layers == nullptr) return {};
  if (!layers->is_object()) reader.wrong("quantized_layers", "an object of modules");
  ATLAS_RETURN_IF_ERROR(reader.status());
  std::vector<DeclaredModules> modules;
  for (const auto& [name, layer] : layers->items()) {
    const std::string path = reader.path() + ": quantized_layers: " + printable(name);
    if (!layer.is_object()) return invalid_argument("{}: expected an object", path);
    ObjectReader one(layer, path);
    const std::string word = one.text("quant_algo", "");
    ATLAS_RETURN_IF_ERROR(one.status());
    if (name.empty() || word.empty()) continue;
    modules.push_back({name, word, formats_of(kAlgorithms, word, declared)});
  }
  declared->modules.insert(declared->modules.begin(), modules.begin(), modules.end());
  return {};
}

/// quant_algo, layers and exceptions, as both of Model Optimizer's files have them.
Status read_modelopt(ObjectReader& reader, DeclaredFormats* declared) {
  const std::string word = reader.text("quant_algo", "");
  add_plain(reader, "ignore", declared);
  add_plain(reader, "exclude_modules", declared);
  ATLAS_RETURN_IF_ERROR(reader.status());
  if (declared->word.empty()) {
    declared->word = word;
    add_format(declared, formats_of(kAlgorithms, word, declared));
  }
  return add_layers(reader, declared);
}

Status read_compressed(ObjectReader& reader, DeclaredFormats* declared) {
  declared->word = reader.text("format", "");
  add_format(declared, formats_of(kPackings, declared->word, declared));
  const json* groups = reader.find("config_groups");
  if (groups != nullptr && !groups->is_object()) reader.wrong("config_groups", "an object");
  ATLAS_RETURN_IF_ERROR(reader.status());
  bool known = true;
  const json none = json::object();
  for (const auto& [name, group] : (groups == nullptr ? none : *groups).items()) {
    const std::string path = reader.path() + ": config_groups: " + printable(name);
    if (!group.is_object()) return invalid_argument("{}: expected an object", path);
    ObjectReader one(group, path);
    const std::string word = one.text("format", "");
    ATLAS_RETURN_IF_ERROR(one.status());
    if (word.empty()) continue;
    const std::vector<std::string> formats = formats_of(kPackings, word, declared);
    known = known && !formats.empty();
    add_format(declared, formats);
  }
  // A group in a format that is not known here may hold anything.
  if (!known) declared->formats.clear();
  add_plain(reader, "ignore", declared);
  return reader.status();
}

}  // namespace

Result<DeclaredFormats> read_quantization_config(const json& object, const std::string& path) {
  DeclaredFormats declared;
  declared.source = path + ": quantization_config";
  declared.remedy = kRemedy;
  ObjectReader reader(object, declared.source);
  const std::string method = reader.text("quant_method", "");
  ATLAS_RETURN_IF_ERROR(reader.status());
  declared.word = method;
  if (method == "exl3") {
    declared.formats = {"exl3"};
  } else if (method == "fp8" || method == "fbgemm_fp8") {
    declared.formats = {"fp8"};
    add_plain(reader, "modules_to_not_convert", &declared);
  } else if (method.starts_with("modelopt")) {
    declared.word.clear();
    ATLAS_RETURN_IF_ERROR(read_modelopt(reader, &declared));
  } else if (method == "compressed-tensors") {
    ATLAS_RETURN_IF_ERROR(read_compressed(reader, &declared));
  }
  ATLAS_RETURN_IF_ERROR(reader.status());
  if (declared.word.empty()) declared.word = method;
  return declared;
}

Status add_modelopt_config(std::string_view text, const std::string& path,
                           DeclaredFormats* declared) {
  ATLAS_ASSIGN_OR_RETURN(const json tree, parse_json_object(text, path));
  ObjectReader top(tree, path);
  const json* object = top.find("quantization");
  if (object == nullptr) return {};
  if (!object->is_object()) top.wrong("quantization", "an object");
  ATLAS_RETURN_IF_ERROR(top.status());
  ObjectReader reader(*object, path + ": quantization");
  DeclaredFormats more;
  more.source = reader.path();
  ATLAS_RETURN_IF_ERROR(read_modelopt(reader, &more));
  if (declared->source.empty()) {
    *declared = std::move(more);
    declared->remedy = kRemedy;
    return {};
  }
  declared->unknown.insert(declared->unknown.end(), more.unknown.begin(), more.unknown.end());
  // Layers with a format of their own stay before all exceptions.
  const auto plain = [](const DeclaredModules& one) { return one.formats == plan::kFloatFormats; };
  std::vector<DeclaredModules>& modules = declared->modules;
  modules.insert(modules.end(), more.modules.begin(), more.modules.end());
  std::stable_partition(modules.begin(), modules.end(),
                        [&](const DeclaredModules& one) { return !plain(one); });
  return {};
}

std::string unknown_format_note(const plan::UnknownWord& unknown) {
  std::vector<std::string_view> names;
  for (const Word& known : kAlgorithms) names.push_back(known.word);
  for (const Word& known : kPackings) names.push_back(known.word);
  const std::string_view nearest = nearest_name(unknown.word, names);
  // Two letters are a slip; more may be another tool's format.
  const bool slip = !nearest.empty() && edit_distance(unknown.word, nearest) <= 2;
  return fmt::format(
      "{} has '{}', which is not known here{}: where it stands the tensors alone say what weights "
      "are",
      unknown.source, printable(unknown.word),
      slip ? fmt::format(" (is '{}' meant?)", nearest) : "");
}

}  // namespace atlas::model
