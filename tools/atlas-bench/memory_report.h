// What a model would take of a platform's memory, line by line, planned without a device.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "daemon/settings/settings.h"
#include "tools/atlas-bench/figures.h"

namespace atlas::bench {

struct MemoryReport {
  std::string model, platform;
  uint32_t sequences = 0, context_tokens = 0;  // live at once; positions of the longest
  uint32_t asked_tokens = 0;                   // of the longest, if the model was made for fewer
  uint64_t cache_tokens = 0;                   // positions of all sequences together
  std::map<std::string, uint64_t> weights;     // packed bytes by format; "vectors": the core's own
  std::map<std::string, uint64_t> ledger;      // bytes by line
  uint64_t total = 0;                          // of all lines
  uint64_t on_device = 0;                      // of those that lie in a card's own memory
  double bytes_a_position = 0;                 // of pages, all layers
  uint64_t bytes_a_slot = 0, bytes_an_anchor = 0;
  uint32_t anchors = 0;
};

/// Plans and audits `settings`' model for its platform, whose packs and plugins are there. Reads no
/// weight, opens no device.
Result<MemoryReport> report_memory(const settings::Settings& settings);

std::string memory_text(const MemoryReport& report);
std::string memory_json(const MemoryReport& report, const Machine& machine);

}  // namespace atlas::bench
