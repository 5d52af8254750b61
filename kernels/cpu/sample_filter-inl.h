// top_k, top_p and min_p over z = (x - max x) / temperature, without sorting: what is dropped
// becomes -infinity. Per target.
//
// A cut is a value of z and how many tokens that have exactly this value stay. It is found digit by
// digit of the value's bits: histograms of 2,048, 1,024 and 1,024 bins, of counts or of weights.
#if defined(ATLAS_KERNELS_CPU_SAMPLE_FILTER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_KERNELS_CPU_SAMPLE_FILTER_INL_H_
#undef ATLAS_KERNELS_CPU_SAMPLE_FILTER_INL_H_
#else
#define ATLAS_KERNELS_CPU_SAMPLE_FILTER_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {

inline constexpr float kDropped = -std::numeric_limits<float>::infinity();

/// Order of z <= 0 as an integer: 0 is the largest.
HWY_INLINE uint32_t Key(float z) { return std::bit_cast<uint32_t>(z) & 0x7fffffffu; }
inline constexpr uint32_t kDroppedKey = 0x7f800000u;

struct Cut {
  uint32_t key;   // smaller keys stay
  uint64_t ties;  // and as many of those equal to it, lowest ids first
};

/// Every token that is left counts 1.
struct CountMass {
  static uint64_t of(float z) { return z == kDropped ? 0 : 1; }
  static void of16(const float* z, uint64_t* mass) {
    for (size_t i = 0; i < 16; ++i) mass[i] = of(z[i]);
  }
};

/// A token's weight, e^z * 2^44 cut to an integer: sums of 2^18 of them are exact.
struct WeightMass {
  static constexpr double kScale = 0x1p44;
  static uint64_t of(float z) {
    const hn::CappedTag<float, 1> d;
    return static_cast<uint64_t>(static_cast<double>(hn::GetLane(Exp(d, hn::Set(d, z)))) * kScale);
  }
  static void of16(const float* z, uint64_t* mass) {
    const F16 v = Load16(z);
    // e^-31 * 2^44 is below 1.
    if (NoneTrue(Ge(v, Set16(-31.0f)))) {
      std::fill_n(mass, 16, 0);
      return;
    }
    float w[16];
    Store16(Exp16(v), w);
    for (size_t i = 0; i < 16; ++i) {
      mass[i] = static_cast<uint64_t>(static_cast<int64_t>(static_cast<double>(w[i]) * kScale));
    }
  }
};

/// Histograms of one selection; on the stack of the thread.
struct Bins {
  static constexpr size_t kFirst = 2048, kOther = 1024;
  uint64_t mass[kFirst];

  /// Index of the bin with which the running sum reaches `target`; `target` loses the bins before.
  size_t reach(size_t bins, uint64_t& target) const {
    size_t bin = 0;
    while (bin + 1 < bins && mass[bin] < target) target -= mass[bin++];
    return bin;
  }
};

/// Masses by the upper 11 bits of the key; returns their sum.
template <class Mass>
uint64_t FillFirst(const float* z, size_t n, Bins& bins) {
  std::fill_n(bins.mass, Bins::kFirst, 0);
  uint64_t mass[16];
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    Mass::of16(z + i, mass);
    for (size_t j = 0; j < 16; ++j) bins.mass[Key(z[i + j]) >> 20] += mass[j];
  }
  for (; i < n; ++i) bins.mass[Key(z[i]) >> 20] += Mass::of(z[i]);
  uint64_t sum = 0;
  for (const uint64_t one : bins.mass) sum += one;
  return sum;
}

/// Masses by 10 bits of the key from `shift` on, of keys whose bits above them are `prefix`.
template <class Mass>
void FillOther(const float* z, size_t n, uint32_t prefix, uint32_t shift, Bins& bins) {
  std::fill_n(bins.mass, Bins::kOther, 0);
  // Keys with that prefix are an interval, and so are their values.
  const uint32_t lowest = prefix << (shift + 10), highest = lowest | ((1u << (shift + 10)) - 1);
  const F16 upper = Set16(-std::bit_cast<float>(lowest));
  const F16 lower = Set16(-std::bit_cast<float>(std::min(highest, kDroppedKey)));
  const auto take = [&](float one) {
    const uint32_t key = Key(one);
    if (key >> (shift + 10) == prefix) {
      bins.mass[(key >> shift) % Bins::kOther] += Mass::of(one);
    }
  };
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 v = Load16(z + i);
    if (NoneTrue(And(Ge(upper, v), Ge(v, lower)))) continue;
    for (size_t j = 0; j < 16; ++j) take(z[i + j]);
  }
  for (; i < n; ++i) take(z[i]);
}

/// The cut after which the masses, largest z first, reach `target` (at least 1). `bins` holds the
/// first histogram, and more than `target` in all.
template <class Mass>
Cut FindCut(const float* z, size_t n, uint64_t target, Bins& bins) {
  uint32_t prefix = static_cast<uint32_t>(bins.reach(Bins::kFirst, target));
  for (uint32_t shift : {10u, 0u}) {
    FillOther<Mass>(z, n, prefix, shift, bins);
    prefix = prefix << 10 | static_cast<uint32_t>(bins.reach(Bins::kOther, target));
  }
  const uint64_t one = std::max<uint64_t>(Mass::of(-std::bit_cast<float>(prefix)), 1);
  return {prefix, (target + one - 1) / one};
}

void ApplyCut(float* z, size_t n, Cut cut) {
  const float value = -std::bit_cast<float>(cut.key);
  const auto keep = [&](float one) {
    if (one > value) return one;
    if (one < value || cut.ties == 0) return kDropped;
    --cut.ties;
    return one;
  };
  const F16 values = Set16(value), dropped = Set16(kDropped);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 v = Load16(z + i);
    if (NoneTrue(Eq(v, values))) {
      Store16(Select(Lt(values, v), v, dropped), z + i);
    } else {
      for (size_t j = 0; j < 16; ++j) z[i + j] = keep(z[i + j]);
    }
  }
  for (; i < n; ++i) z[i] = keep(z[i]);
}

void KeepTopK(float* z, size_t n, uint32_t k) {
  Bins bins;
  if (FillFirst<CountMass>(z, n, bins) <= k) return;
  ApplyCut(z, n, FindCut<CountMass>(z, n, k, bins));
}

void KeepTopP(float* z, size_t n, float p) {
  Bins bins;
  const uint64_t all = FillFirst<WeightMass>(z, n, bins);
  const double share = p > 0.0f ? static_cast<double>(p) * static_cast<double>(all) : 0.0;
  const uint64_t target = std::max<uint64_t>(static_cast<uint64_t>(share), 1);
  if (target >= all) return;
  ApplyCut(z, n, FindCut<WeightMass>(z, n, target, bins));
}

void KeepMinP(float* z, size_t n, float p) {
  const F16 least = Set16(std::min(p, 1.0f)), dropped = Set16(kDropped);
  for (size_t i = 0; i < n; i += 16) {
    const size_t count = std::min<size_t>(16, n - i);
    const F16 v = count == 16 ? Load16(z + i) : LoadPart16(z + i, count, kDropped);
    StorePart16(Select(Ge(Exp16(v), least), v, dropped), z + i, count);
  }
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
