// Layout of the generated character tables; unicode.cpp searches them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace atlas::model::jinja {

/// Code points first..last, both included.
struct CodePointRange {
  uint32_t first;
  uint32_t last;
};

/// Every `stride`-th code point of first..last changes by `delta`.
struct CaseRange {
  uint32_t first;
  uint32_t last;
  uint32_t stride;
  int32_t delta;
};

/// A code point that becomes two or three; unused places are 0.
struct CaseSpecial {
  uint32_t code_point;
  uint32_t result[3];
};

extern const CodePointRange kUnprintable[];
extern const size_t kUnprintableCount;
extern const CodePointRange kAlpha[];
extern const size_t kAlphaCount;
extern const CodePointRange kDigit[];
extern const size_t kDigitCount;
extern const CaseRange kUpper[];
extern const size_t kUpperCount;
extern const CaseSpecial kUpperSpecial[];
extern const size_t kUpperSpecialCount;
extern const CaseRange kLower[];
extern const size_t kLowerCount;
extern const CaseSpecial kLowerSpecial[];
extern const size_t kLowerSpecialCount;
extern const CaseRange kTitle[];
extern const size_t kTitleCount;
extern const CaseSpecial kTitleSpecial[];
extern const size_t kTitleSpecialCount;

}  // namespace atlas::model::jinja
