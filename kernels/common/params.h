// Parameter structs: declared once, read by host code and by every platform's kernels.
// A struct's digest is computed from its very text, so a caller and a kernel that were built from
// different declarations are told apart before anything runs.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace atlas::kernels {

/// 64-bit FNV-1a of a declaration's text. Source: Fowler, Noll, Vo; draft-eastlake-fnv.
constexpr uint64_t declaration_digest(const char* text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (; *text != '\0'; ++text) {
    hash ^= static_cast<unsigned char>(*text);
    hash *= 0x100000001b3ull;
  }
  return hash;
}

/// One digest of several, in their order.
constexpr uint64_t combined_digest(std::initializer_list<uint64_t> digests) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const uint64_t digest : digests) hash = (hash ^ digest) * 0x100000001b3ull;
  return hash;
}

}  // namespace atlas::kernels

/// `ATLAS_PARAMS(Name, members...)` declares `struct Name` and `kNameDigest`. Members are written
/// as in any struct; comments do not count (the preprocessor drops them), everything else does.
/// Members are pointers, 4-byte and 8-byte numbers, in an order without padding.
#define ATLAS_PARAMS(Name, ...)               \
  struct Name {                               \
    __VA_ARGS__                               \
  };                                          \
  inline constexpr uint64_t k##Name##Digest = \
      ::atlas::kernels::declaration_digest(#Name "{" #__VA_ARGS__ "}") ^ sizeof(Name)
