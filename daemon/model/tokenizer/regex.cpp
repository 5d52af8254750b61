// PCRE2 behind regex.h.
#include "daemon/model/tokenizer/regex.h"

#include "daemon/base/log.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace atlas::model {

namespace {

// The longest published split pattern (deepseek-llm's, all letters spelled out) has 2 KB.
constexpr size_t kMaxPatternBytes = 64 * 1024;
// The library would allow 20 GB; published patterns need none of it.
constexpr uint32_t kMaxHeapKilobytes = 256 * 1024;

PCRE2_SPTR bytes_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string error_text(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof buffer) < 0) return "unknown error";
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

// One pair of offsets is all that is ever read.
Regex::Scratch::Scratch()
    : data_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)) {
  if (data_ == nullptr || context_ == nullptr) {
    free();
    throw std::bad_alloc();
  }
  pcre2_set_heap_limit(context_, kMaxHeapKilobytes);
}

Regex::Scratch::~Scratch() { free(); }

void Regex::Scratch::free() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
}

Result<Regex> Regex::compile_pcre(std::string_view pattern, uint32_t options) {
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (context == nullptr) return resource_exhausted("no memory to compile a split pattern");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code = pcre2_compile(bytes_of(pattern), pattern.size(), PCRE2_UTF | options, &error,
                                   &at, context.get());
  if (code == nullptr) {
    return invalid_argument("split pattern does not compile: {} at byte {} of '{}'",
                            error_text(error), at, pattern.substr(0, 200));
  }
  // Where the system forbids memory that is written and run (MemoryDenyWriteExecute), this fails,
  // and matching falls back to the interpreter: same matches, a third of the speed (English
  // with SmolLM2: 12 MB/s instead of 37).
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return Regex(std::shared_ptr<const pcre2_code>(
      code, [](const pcre2_code* c) { pcre2_code_free(const_cast<pcre2_code*>(c)); }));
}

Result<Regex> Regex::compile(std::string_view oniguruma) {
  if (oniguruma.size() > kMaxPatternBytes) {
    return invalid_argument("split pattern has {} bytes, more than {}", oniguruma.size(),
                            kMaxPatternBytes);
  }
  ATLAS_ASSIGN_OR_RETURN(const std::string pattern, translate_pattern(oniguruma));
  return compile_pcre(pattern, PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
}

Result<Regex> Regex::compile_literal(std::string_view text) {
  if (text.empty() || text.size() > kMaxPatternBytes) {
    return invalid_argument("split string has {} bytes; it must have 1 to {}", text.size(),
                            kMaxPatternBytes);
  }
  return compile_pcre(text, PCRE2_LITERAL);
}

std::optional<TextRange> Regex::find(std::string_view text, size_t from, Scratch& scratch) const {
  int found = pcre2_match(code_.get(), bytes_of(text), text.size(), from, PCRE2_NO_UTF_CHECK,
                          scratch.data_, scratch.context_);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    // Machine code has 32 KB of stack, the interpreter takes what it needs from the heap.
    found = pcre2_match(code_.get(), bytes_of(text), text.size(), from,
                        PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch.data_, scratch.context_);
  }
  if (found < 0) {
    if (found != PCRE2_ERROR_NOMATCH) {
      log_warning("tokenizer: a split pattern gave up ({}); {} bytes of text stay in one piece",
                  error_text(found), text.size() - from);
    }
    return std::nullopt;
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(scratch.data_);
  // \K could place the beginning behind the end; translate_pattern refuses it.
  return TextRange{offsets[0], offsets[1]};
}

}  // namespace atlas::model
