#include "tools/atlas-quantize/exl3.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/common/codecs.h"
#include "tools/atlas-quantize/hadamard.h"
#include "tools/atlas-quantize/ldlq.h"
#include "tools/atlas-quantize/number_codes.h"
#include "tools/atlas-quantize/products.h"

namespace atlas::quantize {

namespace {

uint64_t padded(uint64_t size) { return (size + kHadamard - 1) / kHadamard * kHadamard; }

/// splitmix64: signs that depend on the seed, the module's name and the place alone.
class Signs {
 public:
  Signs(uint64_t seed, const std::string& name) : state_(seed) {
    for (const char c : name) state_ = (state_ ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  }
  float next() {
    state_ += 0x9e3779b97f4a7c15ull;
    uint64_t x = state_;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return ((x ^ x >> 31) & 1) != 0 ? 1.0f : -1.0f;
  }

 private:
  uint64_t state_;
};

double rms(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

/// Signed scales of inputs and outputs as they are stored.
struct Scales {
  std::vector<float> inputs, outputs;  // values of float16
};

/// [k, n] with zeros around.
Matrix transposed(const Matrix& weight) {
  Matrix out(padded(weight.columns), padded(weight.rows));
  for (uint64_t r = 0; r < weight.rows; ++r) {
    for (uint64_t c = 0; c < weight.columns; ++c) out.at(c, r) = weight.at(r, c);
  }
  return out;
}

/// W without its scales, rotated: diag(1/su), diag(1/sv), then both transforms. Outputs whose scale
/// is 0 stay 0.
Matrix rotated(const Matrix& w, const std::vector<float>& su, const std::vector<float>& sv,
               uint32_t threads) {
  Matrix out = w;
  for (uint64_t k = 0; k < out.rows; ++k) {
    for (uint64_t n = 0; n < out.columns; ++n) {
      out.at(k, n) = sv[n] == 0 ? 0.0f : out.at(k, n) / (su[k] * sv[n]);
    }
  }
  hadamard_rows(out, threads);
  hadamard_columns(out, threads);
  return out;
}

/// Scales after which every output, and then every input, has the same energy, and every block of
/// 128 of the rotated weight too (blocks with padding have less). exllamav3's regularization, but
/// for the blocks.
Scales equalize(const Matrix& w, Signs& signs, uint32_t threads) {
  Scales out;
  std::vector<double> energy(w.columns);
  for (uint64_t k = 0; k < w.rows; ++k) {
    for (uint64_t n = 0; n < w.columns; ++n) energy[n] += double{w.at(k, n)} * w.at(k, n);
  }
  double mean = 0;
  uint64_t used = 0;
  for (double& e : energy) {
    e = std::sqrt(e);
    mean += e;
    used += e > 0 ? 1 : 0;
  }
  mean = used == 0 ? 1 : mean / static_cast<double>(used);
  for (const double e : energy) {
    const float sign = signs.next();
    out.outputs.push_back(e > 0 ? sign * static_cast<float>(e / mean) : 0.0f);
  }
  const std::vector<float> ones(w.rows, 1.0f);
  Matrix scaled = w;
  for (uint64_t k = 0; k < w.rows; ++k) {
    for (uint64_t n = 0; n < w.columns; ++n) {
      scaled.at(k, n) = out.outputs[n] == 0 ? 0.0f : w.at(k, n) / out.outputs[n];
    }
  }
  for (uint64_t begin = 0; begin < w.columns; begin += kHadamard) {
    const auto block = std::span(out.outputs).subspan(begin, kHadamard);
    const auto full = static_cast<double>(
        std::count_if(block.begin(), block.end(), [](float s) { return s != 0; }));
    if (full == 0 || full == kHadamard) continue;
    const auto factor = static_cast<float>(std::sqrt(full / static_cast<double>(kHadamard)));
    for (float& s : block) s *= factor;
    for (uint64_t k = 0; k < w.rows; ++k) {
      for (float& value : scaled.row(k).subspan(begin, kHadamard)) value /= factor;
    }
  }
  hadamard_rows(scaled, threads);
  for (uint64_t begin = 0; begin < w.rows; begin += kHadamard) {
    double full = 0;
    for (uint64_t k = begin; k < begin + kHadamard; ++k) full += rms(scaled.row(k)) > 0 ? 1 : 0;
    const double factor = full == 0 ? 1 : std::sqrt(full / static_cast<double>(kHadamard));
    for (uint64_t k = begin; k < begin + kHadamard; ++k) {
      const double size = rms(scaled.row(k));
      out.inputs.push_back(signs.next() * static_cast<float>(size > 0 ? size * factor : 0.1));
    }
  }
  return out;
}

/// Where a Gaussian of variance 1 is rounded best, by bits: the format's description, 6.4, found
/// with our own search.
double usual_scale(Codebook codebook, uint32_t bits) {
  constexpr double kMul1[] = {1.12, 1.02, 0.97, 0.92, 0.87, 0.87, 0.87, 0.87};
  constexpr double kOthers[] = {1.45, 1.22, 1.19, 1.13, 1.07, 1.01, 1.01, 1.01};
  return (codebook == Codebook::kMul1 ? kMul1 : kOthers)[bits - 1];
}

/// The factor with the smallest error on a sample, from a parabola through three.
double search_scale(const Matrix& rotated_weight, const Exl3Options& o, const SearchTable& table) {
  const uint64_t tiles = rotated_weight.values.size() / kTileWeights;
  const uint64_t sample = std::max<uint64_t>(8, tiles / 48);
  double centre = usual_scale(o.codebook, o.bits);
  constexpr double kStep = 1.08;
  double errors[3];
  for (int i = 0; i < 3; ++i) {
    errors[i] =
        sample_error(rotated_weight, centre * std::pow(kStep, i - 1), table, sample, o.threads);
  }
  const double bend = errors[0] - 2 * errors[1] + errors[2];
  const double shift = bend > 0 ? 0.5 * (errors[0] - errors[2]) / bend : 0;
  return centre * std::pow(kStep, std::clamp(shift, -1.0, 1.0));
}

/// Moments in the rotated basis: Hk diag(su) H diag(su) Hk, padded with zeros.
Matrix rotated_moments(const Matrix& mean, const std::vector<float>& su, uint32_t threads) {
  Matrix h(su.size(), su.size());
  for (uint64_t i = 0; i < mean.rows; ++i) {
    for (uint64_t j = 0; j < mean.columns; ++j) h.at(i, j) = su[i] * mean.at(i, j) * su[j];
  }
  hadamard_rows(h, threads);
  hadamard_columns(h, threads);
  return h;
}

std::vector<uint16_t> round_to_half(std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (float& value : values) {
    bits.push_back(f16_from_float(value));
    value = kernels::f16_to_f32(bits.back());
  }
  return bits;
}

void add_marker(const std::string& module, Codebook codebook, EncodedLinear& out) {
  if (codebook == Codebook::k3Inst) return;
  const bool mul1 = codebook == Codebook::kMul1;
  const uint32_t multiplier = mul1 ? 0x83DCD12Du : 0xCBAC1FEDu;
  out.tensors.push_back(
      {module + (mul1 ? ".mul1" : ".mcg"), ATLAS_I32, {}, bytes_of(std::span(&multiplier, 1))});
}

/// What a reader of the tensors gets, [n, k] without padding.
Matrix reconstruct(const Matrix& what, const Scales& scales, uint64_t n, uint64_t k,
                   uint32_t threads) {
  Matrix w = what;
  hadamard_columns(w, threads);
  hadamard_rows(w, threads);
  Matrix out(n, k);
  for (uint64_t r = 0; r < n; ++r) {
    for (uint64_t c = 0; c < k; ++c) {
      out.at(r, c) = scales.inputs[c] * w.at(c, r) * scales.outputs[r];
    }
  }
  return out;
}

}  // namespace

EncodedLinear encode_exl3(const std::string& module, const Matrix& weight, const Moments& moments,
                          const Exl3Options& o) {
  const SearchTable table(codebook_values(o.codebook), o.bits);
  const Matrix w = transposed(weight);
  Signs signs(o.seed, module);
  Scales scales = equalize(w, signs, o.threads);
  const double g = search_scale(rotated(w, scales.inputs, scales.outputs, o.threads), o, table);
  for (float& s : scales.inputs) s = static_cast<float>(s / g);
  const std::vector<uint16_t> suh = round_to_half(scales.inputs);
  const std::vector<uint16_t> svh = round_to_half(scales.outputs);

  EncodedLinear out;
  std::optional<Matrix> factor;
  if (o.error_feedback && moments.mean != nullptr) {
    auto made = block_ldl(rotated_moments(*moments.mean, scales.inputs, o.threads), kDamping);
    if (made) {
      factor = std::move(*made);
    } else {
      out.note = "rounded without a Hessian: " + made.error().message();
    }
  }
  // With the scales as they are stored, so that their rounding costs nothing.
  const TrellisWeight trellis = ldlq(rotated(w, scales.inputs, scales.outputs, o.threads),
                                     factor ? &*factor : nullptr, table, o.threads, o.on_part);
  out.decoded = reconstruct(trellis.decoded, scales, weight.rows, weight.columns, o.threads);
  if (moments.mean != nullptr) {
    out.proxy_error = proxy_error(weight, out.decoded, *moments.mean, o.threads);
  }
  out.tensors.push_back({module + ".trellis",
                         ATLAS_I16,
                         {w.rows / kTileSide, w.columns / kTileSide, uint64_t{16} * o.bits},
                         bytes_of<uint32_t>(trellis.packed)});
  out.tensors.push_back({module + ".suh", ATLAS_F16, {w.rows}, bytes_of<uint16_t>(suh)});
  out.tensors.push_back({module + ".svh", ATLAS_F16, {w.columns}, bytes_of<uint16_t>(svh)});
  add_marker(module, o.codebook, out);
  for (const EncodedTensor& tensor : out.tensors) {
    out.bits += 8.0 * static_cast<double>(tensor.bytes.size());
  }
  out.bits /= static_cast<double>(weight.values.size());
  return out;
}

}  // namespace atlas::quantize
