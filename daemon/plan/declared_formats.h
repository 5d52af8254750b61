// What somebody beside the tensors says about the formats of weights: a checkpoint's config, or the
// settings. The tensors decide what a weight is; a declaration is compared with them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace atlas::plan {

/// What configs call unquantized.
inline const std::vector<std::string> kFloatFormats = {"bf16", "f16", "f32"};

/// Modules whose names a pattern matches.
struct DeclaredModules {
  std::string pattern;               ///< see matches_module
  std::string word;                  ///< what the declaration says, in its own words, for messages
  std::vector<std::string> formats;  ///< any of these; empty: not known here, so not compared
};

/// A word for a format that is not known here, and which part of which file has it.
struct UnknownWord {
  std::string source;
  std::string word;
};

struct DeclaredFormats {
  std::string source;  ///< "/m/config.json: quantization_config", for messages
  std::string remedy;  ///< what to change if the tensors are right
  std::string word;    ///< of all modules that none of `modules` matches: "NVFP4"; may be empty
  std::vector<std::string> formats;      ///< theirs, or plain floats; empty: not compared
  std::vector<DeclaredModules> modules;  ///< the first that matches decides
  std::vector<UnknownWord> unknown;      ///< each once
  /// A pattern that matches no weight is an error (a config also names parts that are not run).
  bool all_match = false;

  bool empty() const { return formats.empty() && modules.empty(); }
};

/// Whether a claim's format is the one that is called `name`: "exl3_k4_mul1" is "exl3" and
/// "exl3_k4", "fp8_b128" is "fp8".
bool format_is(std::string_view format, std::string_view name);

/// Whether `pattern` names `module` or a module around it; `*` stands for any text, `?` for one
/// character. Both are compared without the prefixes that checkpoints of one model differ in:
/// "model.language_model.", "language_model.", "model.".
bool matches_module(std::string_view pattern, std::string_view module);

/// What a declaration says about one module.
struct DeclaredFormat {
  const DeclaredFormats* source = nullptr;
  std::optional<size_t> entry;  ///< of source->modules
  std::string word;

  bool allows(std::string_view format) const;
};

/// Declarations, ready to be asked about many modules: names without `*` and `?` are looked up, for
/// a config may list each of 73,728 experts. They must outlive it.
class DeclarationIndex {
 public:
  explicit DeclarationIndex(std::span<const DeclaredFormats> declared);
  /// What the first declaration, in order, that says something about `module` says.
  std::optional<DeclaredFormat> find(std::string_view module) const;

 private:
  struct One {
    std::unordered_map<std::string, size_t> names;  // without prefix, to entries
    std::vector<size_t> patterns;                   // entries with `*` or `?`
  };
  std::span<const DeclaredFormats> declared_;
  std::vector<One> indices_;
};

}  // namespace atlas::plan
