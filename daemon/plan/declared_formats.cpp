#include "daemon/plan/declared_formats.h"

#include <algorithm>
#include <array>

namespace atlas::plan {

namespace {

std::string_view without_prefix(std::string_view name) {
  constexpr std::array<std::string_view, 3> kPrefixes = {"model.language_model.", "language_model.",
                                                         "model."};
  for (const std::string_view prefix : kPrefixes) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

/// Linear in the text for each `*`: on a mismatch only the last one takes a character more.
bool glob(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool has_wildcard(std::string_view pattern) {
  return pattern.find_first_of("*?") != std::string_view::npos;
}

bool is_any_of(std::string_view format, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return format_is(format, name); });
}

}  // namespace

bool format_is(std::string_view format, std::string_view name) {
  return format.starts_with(name) && (format.size() == name.size() || format[name.size()] == '_');
}

bool matches_module(std::string_view pattern, std::string_view module) {
  if (pattern.empty()) return false;
  pattern = without_prefix(pattern);
  module = without_prefix(module);
  if (has_wildcard(pattern)) {
    return glob(pattern, module) || glob(std::string(pattern) + ".*", module);
  }
  return module.starts_with(pattern) &&
         (module.size() == pattern.size() || module[pattern.size()] == '.');
}

bool DeclaredFormat::allows(std::string_view format) const {
  if (entry) {
    const std::vector<std::string>& formats = source->modules[*entry].formats;
    return formats.empty() || is_any_of(format, formats);
  }
  return is_any_of(format, source->formats) || is_any_of(format, kFloatFormats);
}

DeclarationIndex::DeclarationIndex(std::span<const DeclaredFormats> declared)
    : declared_(declared), indices_(declared.size()) {
  for (size_t d = 0; d < declared.size(); ++d) {
    for (size_t i = 0; i < declared[d].modules.size(); ++i) {
      const std::string& pattern = declared[d].modules[i].pattern;
      if (has_wildcard(pattern)) {
        indices_[d].patterns.push_back(i);
      } else {
        indices_[d].names.try_emplace(std::string(without_prefix(pattern)), i);
      }
    }
  }
}

std::optional<DeclaredFormat> DeclarationIndex::find(std::string_view module) const {
  for (size_t d = 0; d < declared_.size(); ++d) {
    const DeclaredFormats& one = declared_[d];
    std::optional<size_t> first;
    // The module's own name, and those of the modules around it.
    for (std::string_view name = without_prefix(module); !name.empty();) {
      const auto known = indices_[d].names.find(std::string(name));
      if (known != indices_[d].names.end())
        first = std::min(first.value_or(~size_t{0}), known->second);
      const size_t dot = name.rfind('.');
      name = name.substr(0, dot == name.npos ? 0 : dot);
    }
    for (const size_t i : indices_[d].patterns) {
      if (first && *first < i) break;
      if (!matches_module(one.modules[i].pattern, module)) continue;
      first = i;
      break;
    }
    if (first) return DeclaredFormat{&one, first, one.modules[*first].word};
    if (!one.formats.empty()) return DeclaredFormat{&one, std::nullopt, one.word};
  }
  return std::nullopt;
}

}  // namespace atlas::plan
