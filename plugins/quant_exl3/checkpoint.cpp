// Which tensors a module has, what is wrong with them, and the way from tiles to strips.
#include "plugins/quant_exl3/checkpoint.h"

#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "plugins/sdk/guard.h"
#include "plugins/sdk/module_tensors.h"

namespace atlas::quant_exl3 {
namespace {

using kernels::exl3_padded;
using kernels::Exl3Codebook;
using kernels::kExl3Block;
using kernels::kExl3Tile;

[[noreturn]] void refuse(std::string message) {
  throw sdk::Failure(ATLAS_INVALID_ARGUMENT, std::move(message));
}

std::string shape_of(const AtlasTensor& tensor) {
  std::string text;
  for (uint32_t i = 0; i < tensor.rank && i < 4; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.dims[i]);
  }
  return "[" + text + "]";
}

/// The module's tensor `.suffix`, or null.
const AtlasTensor* find(const AtlasWeightQuery& query, const char* suffix) {
  return sdk::ModuleTensors(query).find(suffix);
}

bool is_words(const AtlasTensor& tensor) {
  return tensor.dtype == ATLAS_I16 || tensor.dtype == ATLAS_U16;
}

/// Scales as float16, or the old form: a sign bit for each channel, sixteen in a word.
const AtlasTensor* find_scales(const AtlasWeightQuery& query, const char* scales, const char* signs,
                               uint64_t channels, const char* of) {
  const AtlasTensor* given = find(query, scales);
  const AtlasTensor* old = find(query, signs);
  const std::string module = query.module;
  if (given != nullptr && old != nullptr) {
    refuse(module + " has both ." + scales + " and ." + signs +
           ", which are two forms of the same scales");
  }
  if (given == nullptr && old == nullptr) {
    refuse(module + ".trellis has no ." + scales + " beside it: the scales of its " + of +
           " are missing");
  }
  const AtlasTensor& tensor = given != nullptr ? *given : *old;
  const uint64_t expected = given != nullptr ? channels : channels / 16;
  const bool type = given != nullptr ? tensor.dtype == ATLAS_F16 : is_words(tensor);
  if (!type || tensor.rank != 1 || tensor.dims[0] != expected || tensor.bytes != 2 * expected) {
    refuse(std::string(tensor.name) + " is " + shape_of(tensor) + " of " +
           std::to_string(tensor.bytes) + " bytes; for the " + std::to_string(channels) + " " + of +
           " of the trellis it must be " + (given != nullptr ? "f16 [" : "i16 [") +
           std::to_string(expected) + "]");
  }
  return &tensor;
}

void check_marker(const AtlasTensor* marker) {
  if (marker == nullptr) return;
  const bool word = marker->dtype == ATLAS_I32 || marker->dtype == ATLAS_U32;
  if (!word || marker->bytes != sizeof(uint32_t)) {
    refuse(std::string(marker->name) + " is " + shape_of(*marker) + " of " +
           std::to_string(marker->bytes) + " bytes; a codebook's marker is one i32");
  }
}

void store_f16(uint16_t bits, uint8_t* to) { std::memcpy(to, &bits, sizeof(bits)); }

const uint8_t* bytes_of(const AtlasTensor& tensor) {
  return static_cast<const uint8_t*>(tensor.data);
}

void write_scales(const AtlasTensor& tensor, uint64_t channels, uint8_t* out) {
  const uint8_t* from = bytes_of(tensor);
  if (tensor.dtype != ATLAS_F16) {
    for (uint64_t i = 0; i < channels; ++i) {
      const bool minus = (kernels::load_u16(from + 2 * (i / 16)) >> i % 16 & 1) != 0;
      store_f16(minus ? 0xbc00 : 0x3c00, out + 2 * i);
    }
    return;
  }
  for (uint64_t i = 0; i < channels; ++i) {
    const uint16_t bits = kernels::load_u16(from + 2 * i);
    if ((bits & 0x7c00) == 0x7c00) {
      refuse(std::string(tensor.name) + " has an infinity or a NaN at " + std::to_string(i) +
             ": the checkpoint is damaged");
    }
    store_f16(bits, out + 2 * i);
  }
}

constexpr const char* kCodebookNames[] = {"3inst", "mcg", "mul1"};

}  // namespace

const char* codebook_name(Exl3Codebook codebook) {
  return kCodebookNames[static_cast<uint32_t>(codebook)];
}

std::string Format::name() const {
  return "exl3_k" + std::to_string(units / 2) + (units % 2 != 0 ? ".5_" : "_") +
         codebook_name(codebook);
}

Format format_of(const char* name) {
  const std::string_view wanted = name == nullptr ? "" : name;
  for (uint32_t codebook = 0; codebook < kernels::kExl3Codebooks; ++codebook) {
    for (uint32_t units = 2; units <= 16; ++units) {
      const Format format{static_cast<Exl3Codebook>(codebook), units};
      if (exl3_has(format.codebook, units) && wanted == format.name()) return format;
    }
  }
  throw sdk::Failure(ATLAS_UNIMPLEMENTED,
                     "format '" + std::string(wanted) +
                         "' is not one of this plugin's (exl3_k<1 to 8>_<3inst, mcg or mul1>, "
                         "exl3_k<1.5, 2.5 or 3.5>_mul1)");
}

bool Tensors::present(const AtlasWeightQuery& query) {
  for (const char* suffix : {"trellis", "suh", "svh"}) {
    if (find(query, suffix) != nullptr) return true;
  }
  return false;
}

Tensors::Tensors(const AtlasWeightQuery& query) {
  const std::string module = query.module;
  trellis_ = find(query, "trellis");
  if (trellis_ == nullptr) {
    refuse(module + " has scales of a trellis (.suh or .svh) and no .trellis");
  }
  const std::string name = trellis_->name;
  sdk::ModuleTensors(query).refuse_beside(
      *trellis_, {"weight", "weight_packed", "weight_scale", "weight_scale_inv"});
  if (!is_words(*trellis_) || trellis_->rank != 3) {
    refuse(name + " is " + shape_of(*trellis_) +
           "; a trellis is i16 [inputs / 16, outputs / 16, 16 * bits]");
  }
  constexpr uint64_t kMost = std::numeric_limits<int32_t>::max() / kExl3Tile;
  if (trellis_->dims[0] == 0 || trellis_->dims[1] == 0 || trellis_->dims[0] > kMost ||
      trellis_->dims[1] > kMost) {
    refuse(name + " is " + shape_of(*trellis_) + "; inputs and outputs must be 16 to 2^31 - 1");
  }
  check_sizes(query);
  const AtlasTensor* mcg = find(query, "mcg");
  const AtlasTensor* mul1 = find(query, "mul1");
  if (mcg != nullptr && mul1 != nullptr) {
    refuse(module + " has both markers, .mcg and .mul1: a trellis has one codebook");
  }
  marker_ = mcg != nullptr ? mcg : mul1;
  check_marker(marker_);
  format_.codebook = mcg != nullptr    ? Exl3Codebook::kMcg
                     : mul1 != nullptr ? Exl3Codebook::kMul1
                                       : Exl3Codebook::k3Inst;
  const uint64_t words = trellis_->dims[2];
  format_.units = words <= 128 && words % 8 == 0 ? static_cast<uint32_t>(words / 8) : 0;
  if (!exl3_has(format_.codebook, format_.units)) {
    refuse(name + " is " + shape_of(*trellis_) + ": " + std::to_string(words) +
           " words a tile are " + std::to_string(static_cast<double>(words) / 16) +
           " bits a weight; codebook " + codebook_name(format_.codebook) + " has 1 to 8" +
           (format_.codebook == Exl3Codebook::kMul1 ? ", 1.5, 2.5 and 3.5" : ""));
  }
  // The first two factors are below 2^27, the last is at most 2^7: no overflow.
  if (trellis_->bytes != 2 * trellis_->dims[0] * trellis_->dims[1] * words) {
    refuse(name + " of " + shape_of(*trellis_) + " has " + std::to_string(trellis_->bytes) +
           " bytes, not " + std::to_string(2 * trellis_->dims[0] * trellis_->dims[1] * words));
  }
  inputs_ = find_scales(query, "suh", "su", exl3_padded(k_), "inputs");
  outputs_ = find_scales(query, "svh", "sv", exl3_padded(n_), "outputs");
}

void Tensors::check_sizes(const AtlasWeightQuery& query) {
  const uint64_t k = trellis_->dims[0] * kExl3Tile, n = trellis_->dims[1] * kExl3Tile;
  const std::string matrix = std::string(trellis_->name) + " is " + shape_of(*trellis_) +
                             ", a matrix of " + std::to_string(n) + " x " + std::to_string(k);
  if (n % kExl3Block != 0 || k % kExl3Block != 0) {
    refuse(matrix + "; both must be multiples of " + std::to_string(kExl3Block));
  }
  n_ = query.n == 0 ? n : query.n;
  k_ = query.k == 0 ? k : query.k;
  // Compared before they are padded, which may overflow for a size that is not true.
  if (n_ > n || k_ > k || exl3_padded(n_) != n || exl3_padded(k_) != k) {
    refuse(matrix + "; the model's configuration makes it " + std::to_string(n_) + " x " +
           std::to_string(k_) + ", and a trellis has that padded up to multiples of " +
           std::to_string(kExl3Block));
  }
}

void Tensors::check_markers() const {
  if (marker_ == nullptr) return;
  const uint32_t expected =
      format_.codebook == Exl3Codebook::kMcg ? kernels::kExl3Mcg : kernels::kExl3Mul1;
  const uint32_t found = kernels::load_u32(bytes_of(*marker_));
  if (found != expected) {
    refuse(std::string(marker_->name) + " says multiplier " + std::to_string(found) +
           "; only the codebook with " + std::to_string(expected) + " is read");
  }
}

void Tensors::write_head(uint8_t* out) const {
  for (const AtlasTensor* tensor : {inputs_, outputs_, marker_}) {
    if (tensor != nullptr && tensor->data == nullptr) {
      refuse(std::string(tensor->name) + " is there without its data");
    }
  }
  check_markers();
  write_scales(*inputs_, exl3_padded(k_), out);
  write_scales(*outputs_, exl3_padded(n_), out + 2 * exl3_padded(k_));
}

void Tensors::write_group(uint64_t group, uint8_t* out) const {
  if (trellis_->data == nullptr) refuse(std::string(trellis_->name) + " is there without its data");
  const uint32_t units = format_.units;
  const uint64_t tile_bytes = 16 * uint64_t{units};
  const uint64_t columns = trellis_->dims[1], rows = trellis_->dims[0];
  constexpr uint64_t kStrips = kExl3Block / kernels::kExl3Strip;
  const uint64_t strip_bytes = kernels::exl3_strip_bytes(units, k_);
  for (uint64_t strip = 0; strip < kStrips; ++strip) {
    uint8_t* to = out + strip * strip_bytes;
    for (uint64_t tile = 0; tile < rows; ++tile) {
      // Two neighbouring tiles lie behind each other.
      const uint8_t* from =
          bytes_of(*trellis_) + (tile * columns + (group * kStrips + strip) * 2) * tile_bytes;
      for (uint32_t lane = 0; lane < 16; ++lane) {
        for (uint32_t unit = 0; unit < units; ++unit) {
          // Of the two units of a word the first is its high half.
          const uint32_t at = (lane * units + unit) ^ 1;
          std::memcpy(to + kernels::exl3_unit_offset(units, tile, lane, unit), from + 2 * at, 2);
        }
      }
    }
  }
}

void Tensors::write_gpu_group(kernels::Exl3Lanes lanes, uint64_t group, uint8_t* out) const {
  if (trellis_->data == nullptr) refuse(std::string(trellis_->name) + " is there without its data");
  const uint32_t units = format_.units;
  const uint64_t tile_bytes = 16 * uint64_t{units};
  constexpr uint32_t kColumns = kExl3Block / kExl3Tile;
  // Where units go depends on a tile's place only by a multiple of a period of rows: looked up.
  constexpr uint32_t kPeriod = 8;
  const uint64_t k = exl3_padded(k_);
  const auto place_of = [&](uint32_t row, uint32_t column, uint32_t unit) {
    return kernels::exl3_gpu_unit_offset(lanes, units, k, row, column, unit / units, unit % units);
  };
  const uint64_t period_bytes = place_of(kPeriod, 0, 0) - place_of(0, 0, 0);
  const uint32_t tile_units = 8 * units;
  std::vector<uint64_t> places;
  for (uint32_t tile = 0; tile < kPeriod * kColumns; ++tile) {
    for (uint32_t unit = 0; unit < tile_units; ++unit) {
      // Of the two units of a word the first is its high half.
      places.push_back(place_of(tile / kColumns, tile % kColumns, unit ^ 1));
    }
  }
  for (uint64_t row = 0; row < trellis_->dims[0]; ++row) {
    uint8_t* to = out + row / kPeriod * period_bytes;
    for (uint32_t column = 0; column < kColumns; ++column) {
      const uint8_t* from =
          bytes_of(*trellis_) + (row * trellis_->dims[1] + group * kColumns + column) * tile_bytes;
      const uint64_t* place = places.data() + (row % kPeriod * kColumns + column) * tile_units;
      for (uint32_t unit = 0; unit < tile_units; ++unit) {
        std::memcpy(to + place[unit], from + 2 * unit, 2);
      }
    }
  }
}

}  // namespace atlas::quant_exl3
