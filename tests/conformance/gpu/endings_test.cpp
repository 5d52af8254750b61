// Products of few rows that end in an operation of the core, on every GPU platform: the bits of the
// product and of that operation behind it, and of what it encodes.
#include <doctest/doctest.h>

#include "kernels/common/core.h"
#include "kernels/common/gpu_ends.h"
#include "tests/conformance/gpu/float_product.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

/// What is in memory before: encoded rows have gaps that nothing writes.
constexpr uint8_t kUnwritten = 0xee;
constexpr float kBefore = 9.0f;

enum class Encoding { kNone, kBf16, kWgmma, kHalf, kHalfWgmma };
bool is_half(Encoding encoding) { return encoding >= Encoding::kHalf; }

struct Made {
  std::vector<float> y;
  std::vector<uint8_t> encoded;
};

/// A product with `weights` of some rows, which are encoded already.
class Ending {
 public:
  Ending(const char* platform, const GpuWeights& weights, uint32_t rows)
      : gpu_(*gpu_traits(platform)), weights_(weights), rows_(rows), machine_(platform) {
    row_count_ = machine_.input("rows", std::vector<uint32_t>{rows});
    EncodeParams params{};
    params.x = machine_.input("x", normal_values(size_t{rows} * weights.k, rows + weights.k));
    params.out = machine_.output<uint8_t>("x encoded", rows * bf16_row_bytes(weights.k));
    params.row_count = row_count_;
    params.x_stride = params.k = weights.k;
    params.out_row_bytes = bf16_row_bytes(weights.k);
    run(weights.f16_rows ? kEncodeHalf : kEncodeBf16, params, kEncodeParamsDigest,
        encode_launch(weights.k, rows));
    x_ = params.out;
  }

  /// The product and, behind it, SiLU of its first columns.
  Made silu_behind(uint32_t columns, float scale, uint64_t stride, Encoding encoding) {
    float* y = product(stride);
    void* encoded = room(columns, encoding);
    const SiluParams params{y, y, row_count_, stride, stride, columns, scale, encoded};
    run("silu", params, kSiluParamsDigest, rows_shape(gpu_shape(params, rows_)));
    return made(y, encoded);
  }
  Made silu(uint32_t columns, float scale, uint64_t stride, uint32_t parts, Encoding encoding,
            uint64_t seed) {
    LinearSiluParams params{};
    ProductLaunch launch = silu_launch(gpu_, weights_.n, weights_.k, bucket(),
                                       weights_.of(gpu_).size() / tiles_of(weights_.n));
    if (parts != 0) launch.z = parts;
    params.linear = linear(stride);
    params.linear.weight = machine_.in_out("weight", weights_.of(gpu_));  // with counters
    params.linear.values = machine_.output<float>("values", launch.workspace_bytes / 4);
    params.end = {room(columns, encoding), columns, scale};
    run("linear_" + weights_.format + "_silu", params, kLinearSiluParamsDigest, launch, seed);
    const auto* weight = static_cast<const uint8_t*>(params.linear.weight);
    CHECK(machine_.contents(weight, uint8_t{0xc3}) == weights_.of(gpu_));
    return made(params.linear.y, params.end.encoded);
  }

  /// The mean over streams, whose gates the product is.
  Made mix_behind(uint32_t columns, uint64_t stride, Encoding encoding) {
    const uint32_t streams = weights_.n / columns;
    float* u = output(stride);
    void* encoded = room(columns, encoding);
    const StreamMixParams params{product(weights_.n),
                                 streams_(),
                                 u,
                                 row_count_,
                                 weights_.n,
                                 weights_.n + 3,
                                 stride,
                                 streams,
                                 columns,
                                 is_half(encoding) ? nullptr : encoded,
                                 is_half(encoding) ? encoded : nullptr};
    run("stream_mix", params, kStreamMixParamsDigest, rows_shape(gpu_shape(params, rows_)));
    return made(u, encoded);
  }
  Made mean(uint32_t columns, uint64_t stride, Encoding encoding, uint64_t seed) {
    LinearMeanParams params{};
    params.linear = linear(stride);
    void* encoded = room(columns, encoding);
    params.end = {streams_(),
                  is_half(encoding) ? nullptr : encoded,
                  is_half(encoding) ? encoded : nullptr,
                  weights_.n + 3,
                  columns,
                  0};
    REQUIRE(takes_mean(gpu_, weights_.n, weights_.k, columns));
    run("linear_bf16_mean", params, kLinearMeanParamsDigest,
        mean_launch(gpu_, weights_.n, columns, bucket()), seed);
    return made(params.linear.y, encoded);
  }

 private:
  /// A bucket may have more rows than there are.
  uint32_t bucket() const { return rows_ < kFewRows ? rows_ + 1 : rows_; }
  float* output(uint64_t stride) {
    return machine_.in_out("y", std::vector<float>(rows_ * stride, kBefore));
  }
  /// An odd address asks for the encoding of wgmma.
  void* room(uint32_t columns, Encoding encoding) {
    if (encoding == Encoding::kNone) return nullptr;
    if (encoding == Encoding::kBf16 || encoding == Encoding::kHalf) {
      return machine_.output<uint8_t>("encoded", rows_ * bf16_row_bytes(columns));
    }
    return machine_.output<uint8_t>("encoded", wgmma_places(rows_) * wgmma_row_bytes(columns)) + 1;
  }
  const float* streams_() {
    return machine_.input("streams", normal_values(rows_ * (size_t{weights_.n} + 3), 77));
  }
  LinearParams linear(uint64_t stride) {
    LinearParams params{};
    params.x = x_;
    params.weight = machine_.input("weight", weights_.of(gpu_));
    params.y = output(stride);
    params.row_count = row_count_;
    params.x_row_bytes = bf16_row_bytes(weights_.k);
    params.y_stride = stride;
    params.n = weights_.n;
    params.k = weights_.k;
    return params;
  }
  float* product(uint64_t stride) {
    LinearParams params = linear(stride);
    const ProductLaunch launch = linear_launch(gpu_, false, weights_.n, weights_.k, bucket());
    params.tiles = launch.tiles;
    run("linear_" + weights_.format, params, kLinearParamsDigest, launch);
    return params.y;
  }
  static ProductLaunch rows_shape(const LaunchShape& shape) {
    ProductLaunch launch{shape.x, shape.y, shape.threads, shape.shared_bytes};
    launch.z = shape.z;
    return launch;
  }
  template <typename Params>
  void run(const std::string& kernel, const Params& params, uint64_t digest,
           const ProductLaunch& launch, uint64_t seed = 0) {
    const auto report =
        machine_.run(kernel, params, digest,
                     {.shape = {static_cast<uint32_t>(launch.x), static_cast<uint32_t>(launch.y),
                                launch.z, launch.threads, launch.shared_bytes},
                      .seed = seed});
    INFO(report.text());
    REQUIRE(report.ok());
  }
  Made made(const float* y, const void* encoded) {
    Made made{machine_.contents(y), {}};
    if (encoded != nullptr) {
      const auto* begin = static_cast<const uint8_t*>(encoded);
      begin -= reinterpret_cast<uint64_t>(begin) & 1;
      made.encoded = machine_.contents(begin, kUnwritten);
    }
    return made;
  }

  const GpuTraits& gpu_;
  const GpuWeights& weights_;
  uint32_t rows_;
  GpuMachine machine_;
  const uint32_t* row_count_ = nullptr;
  const void* x_ = nullptr;
};

struct Size {
  uint32_t n, columns, k;
};

std::vector<Encoding> encodings(std::string_view platform) {
  if (platform == "h200") return {Encoding::kBf16, Encoding::kWgmma, Encoding::kNone};
  return {Encoding::kBf16, Encoding::kNone};
}

/// Calls use(ending, size, rows, encoding) on every platform, for some numbers of rows, with every
/// encoding of the results; `make` gives the weights.
template <typename Make, typename Use>
void each_ending(std::initializer_list<Size> sizes, const Make& make, const Use& use) {
  for (const Size& size : sizes) {
    const GpuWeights weights = make(size);
    for (const char* platform : kGpuPlatforms) {
      for (const uint32_t rows : {1u, 3u, 8u, 16u}) {
        CAPTURE(platform);
        CAPTURE(size.n);
        CAPTURE(rows);
        Ending ending(platform, weights, rows);
        for (const Encoding encoding : encodings(platform)) use(ending, size, rows, encoding);
      }
    }
  }
}

GpuWeights bf16_weights(const Size& size) {
  return float_weights(FloatLayout::kBF16, size.n, size.k);
}
GpuWeights bf16_as_halves(const Size& size) {
  return half_weights(FloatLayout::kBF16, size.n, size.k);
}

void check_silu(Ending& ending, const Size& size, uint32_t rows, Encoding encoding) {
  const uint64_t stride = size.n + rows % 5;
  const Made expected = ending.silu_behind(size.columns, 0.25f, stride, encoding);
  const auto runs = static_cast<uint32_t>(whole_units(size.k, 256));
  for (const uint32_t parts : {0u, 1u, runs}) {
    CAPTURE(parts);
    const Made made = ending.silu(size.columns, 0.25f, stride, parts, encoding, parts + rows);
    CHECK(same_bits(made.y, expected.y));
    CHECK(made.encoded == expected.encoded);
  }
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: products end in SiLU with the bits of both, however k is divided") {
    each_ending({{1, 1, 1}, {20, 16, 77}, {33, 33, 300}, {84, 80, 2600}, {70, 6, 1030}},
                bf16_weights, check_silu);
    each_ending({{20, 16, 77}, {33, 33, 300}, {84, 80, 2600}}, bf16_as_halves, check_silu);
  }

  TEST_CASE("gpu: products end in the gated mean of streams with the bits of both") {
    each_ending({{32, 32, 1}, {128, 32, 77}, {256, 64, 320}, {288, 96, 512}, {640, 160, 300}},
                bf16_weights,
                [](Ending& ending, const Size& size, uint32_t rows, Encoding encoding) {
                  const auto check = [&](Encoding each) {
                    const uint64_t stride = size.columns + rows % 5;
                    const Made expected = ending.mix_behind(size.columns, stride, each);
                    const Made made = ending.mean(size.columns, stride, each, rows);
                    CHECK(same_bits(made.y, expected.y));
                    CHECK(made.encoded == expected.encoded);
                  };
                  check(encoding);
                  if (encoding == Encoding::kBf16) check(Encoding::kHalf);
                  if (encoding == Encoding::kWgmma) check(Encoding::kHalfWgmma);
                });
  }
}

}  // namespace atlas::test
