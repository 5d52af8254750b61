// The allocations of a device by address: what copies are checked against.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "plugins/abi/atlas_plugin.h"
#include "plugins/sdk/guard.h"

namespace atlas::sdk {

/// Not thread safe: the device that owns it guards it.
class Allocations {
 public:
  struct Entry {
    uint64_t bytes;
    AtlasMemoryKind kind;
  };

  void add(AtlasAddress address, const Entry& entry) { entries_.emplace(address, entry); }

  /// Forgets an allocation and answers what it was. Throws Failure (ATLAS_INVALID_ARGUMENT).
  Entry remove(AtlasMemoryKind kind, AtlasAddress address) {
    const auto found = entries_.find(address);
    if (found == entries_.end() || found->second.kind != kind) {
      throw Failure(ATLAS_INVALID_ARGUMENT,
                    "address " + std::to_string(address) + " is no allocation of this kind");
    }
    const Entry entry = found->second;
    entries_.erase(found);
    return entry;
  }

  /// The allocation that holds all of [address, address + bytes), or null.
  const Entry* find(AtlasAddress address, uint64_t bytes) const {
    auto after = entries_.upper_bound(address);
    if (after == entries_.begin()) return nullptr;
    const auto& [begin, entry] = *--after;
    const uint64_t offset = address - begin;
    return offset <= entry.bytes && bytes <= entry.bytes - offset ? &entry : nullptr;
  }

  /// Throws Failure (ATLAS_OUT_OF_RANGE) for a range that is not inside one allocation.
  void check(const char* what, AtlasAddress address, uint64_t bytes) const {
    if (find(address, bytes) != nullptr) return;
    throw Failure(ATLAS_OUT_OF_RANGE, std::string(what) + ": " + std::to_string(bytes) +
                                          " bytes at address " + std::to_string(address) +
                                          " are not inside one allocation of this device");
  }

  /// Whether a copy's host side is pinned memory of this device, so that it may go in stream order.
  bool is_pinned(const void* address, uint64_t bytes) const {
    const Entry* entry = find(reinterpret_cast<AtlasAddress>(address), bytes);
    return entry != nullptr && entry->kind == ATLAS_MEMORY_PINNED;
  }

  const std::map<AtlasAddress, Entry>& entries() const { return entries_; }

 private:
  std::map<AtlasAddress, Entry> entries_;
};

}  // namespace atlas::sdk
