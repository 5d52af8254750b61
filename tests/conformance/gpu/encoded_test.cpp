// Operations of the core that encode the rows they make, on every GPU platform: the float32 that
// they give without it, and of that the bits of encode_bf16_b32, on h200 of encode_bf16_w64, too;
// and those of f16 where they make rows in it.
#include <limits>
#include <vector>

#include "kernels/common/gpu_half.h"
#include "tests/support/gpu_twin.h"
#include "tests/support/numbers.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

constexpr uint32_t kRows = 3;

struct Shape {
  uint32_t groups, n;
};
const std::vector<Shape> kRowShapes = {{1, 1},    {1, 7},    {1, 31},  {1, 32},  {1, 100}, {1, 128},
                                       {1, 1028}, {1, 4096}, {2, 128}, {3, 640}, {2, 2560}};

/// The pointers of a kernel's parameters.
struct Encoded {
  uint8_t *bf16 = nullptr, *f16 = nullptr;
};

/// Memory of one kernel on one platform, and its checks.
class Encodes {
 public:
  Encodes(const char* platform, const Shape& shape, uint32_t pad)
      : twin_(platform),
        platform_(platform),
        k_(shape.groups * shape.n),
        stride_(k_ + pad),
        row_count_(twin_.machine().input("row_count", std::vector<uint32_t>{kRows})) {}

  GpuTwin& twin() { return twin_; }
  const uint32_t* row_count() const { return row_count_; }
  uint64_t stride() const { return stride_; }
  /// Rows of numbers; the last that counts has a NaN.
  float* values(const char* name, uint64_t width, uint32_t seed, uint32_t rows = kRows) {
    std::vector<float> x = normal_values(rows * width, seed, 3.0f);
    x[kRows * width - 1] = std::numeric_limits<float>::quiet_NaN();
    x[(kRows - 1) * width] = std::numeric_limits<float>::quiet_NaN();
    return twin_.machine().in_out(name, x);
  }

  /// Runs the kernel as it is and encoding, where `restore` puts back what it changes beside y, and
  /// compares. `fill(y, encoded)` makes the parameters; with an Encoded the kernel knows f16, too.
  template <typename Fill, typename Restore>
  void check(const char* kernel, uint64_t digest, const Fill& fill, const Restore& restore) {
    constexpr bool kF16 = std::is_invocable_v<Fill, float*, Encoded>;
    const auto made = [&](float* y, Encoded encoded) {
      if constexpr (kF16) {
        return fill(y, encoded);
      } else {
        return fill(y, static_cast<void*>(encoded.bf16));
      }
    };
    const std::vector<float> before(kRows * stride_, 9.0f);
    float* plain = twin_.machine().in_out("plain", before);
    twin_.run_gpu(kernel, digest, kRows + 1, made(plain, {}));
    for (const bool wgmma : {false, true}) {
      if (wgmma && platform_ != "h200") continue;
      CAPTURE(wgmma);
      float* y = twin_.machine().in_out("y", before);
      Encoded encoded{output("encoded", wgmma), kF16 ? output("encoded f16", wgmma) : nullptr};
      restore();
      // An odd address asks for the encoding of wgmma.
      const auto place = [&](uint8_t* at) { return at == nullptr || !wgmma ? at : at + 1; };
      twin_.run_gpu(kernel, digest, kRows + 1, made(y, {place(encoded.bf16), place(encoded.f16)}),
                    1);
      CHECK(same_numbers(twin_.machine().contents(y), twin_.machine().contents(plain)));
      check_rows(y, encoded.bf16, wgmma, wgmma ? kEncodeWgmma : kEncodeBf16);
      if (kF16) check_rows(y, encoded.f16, wgmma, wgmma ? kEncodeHalfWgmma : kEncodeHalf);
    }
  }
  template <typename Fill>
  void check(const char* kernel, uint64_t digest, const Fill& fill) {
    check(kernel, digest, fill, [] {});
  }

 private:
  /// `encoded` is what the kernel `encode` makes of y.
  void check_rows(float* y, const uint8_t* encoded, bool wgmma, const char* encode) {
    CAPTURE(encode);
    uint8_t* expected = output("expected", wgmma);
    const ProductLaunch launch =
        wgmma ? wgmma_encode_launch(k_, kRows + 1) : encode_launch(k_, kRows + 1);
    const EncodeParams params{y, expected, row_count_, stride_, row_bytes(wgmma), k_, 0};
    const auto report =
        twin_.machine().run(encode, params, kEncodeParamsDigest,
                            {.shape = {static_cast<uint32_t>(launch.x),
                                       static_cast<uint32_t>(launch.y), 1, launch.threads, 0}});
    INFO(report.text());
    REQUIRE(report.ok());
    constexpr uint8_t kUnwritten = 0xee;
    CHECK(twin_.machine().contents(encoded, kUnwritten) ==
          twin_.machine().contents(expected, kUnwritten));
  }
  uint64_t row_bytes(bool wgmma) const { return wgmma ? wgmma_row_bytes(k_) : bf16_row_bytes(k_); }
  uint8_t* output(const char* name, bool wgmma) {
    return twin_.machine().output<uint8_t>(
        name, (wgmma ? wgmma_places(kRows) : kRows) * row_bytes(wgmma));
  }
  GpuTwin twin_;
  std::string_view platform_;
  uint32_t k_;
  uint64_t stride_;
  const uint32_t* row_count_;
};

template <typename Body>
void for_all(const Body& body) {
  for (const char* platform : kGpuPlatforms) {
    for (const Shape& shape : kRowShapes) {
      for (const uint32_t pad : {0u, 3u}) {
        CAPTURE(platform);
        CAPTURE(shape.groups);
        CAPTURE(shape.n);
        CAPTURE(pad);
        Encodes encodes(platform, shape, pad);
        body(encodes, shape, pad);
      }
    }
  }
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: silu and silu_mul encode what they make") {
    for_all([](Encodes& run, const Shape& shape, uint32_t pad) {
      const uint32_t k = shape.groups * shape.n;
      const uint64_t x_stride = 2 * k + pad;
      const float* x = run.values("x", x_stride, k);
      run.check("silu", kSiluParamsDigest, [&](float* y, void* encoded) {
        return SiluParams{x, y, run.row_count(), x_stride, run.stride(), k, 0.25f, encoded};
      });
    });
    for_all([](Encodes& run, const Shape& shape, uint32_t pad) {
      const uint32_t k = shape.groups * shape.n;
      const uint64_t x_stride = 2 * k + pad;
      const float* x = run.values("x", x_stride, k);
      run.check("silu_mul", kSiluMulParamsDigest, [&](float* y, void* encoded) {
        return SiluMulParams{x, y, run.row_count(), x_stride, run.stride(), k, 0, encoded};
      });
    });
  }

  TEST_CASE("gpu: gate_mul encodes what it makes") {
    for_all([](Encodes& run, const Shape& shape, uint32_t pad) {
      const uint32_t n = shape.n, group = n + pad;
      const uint64_t x_stride = shape.groups * group;
      const float* x = run.values("x", x_stride, n);
      const float* gate = run.values("gate", x_stride, n + 1);
      run.check("gate_mul", kGateMulParamsDigest, [&](float* y, void* encoded) {
        return GateMulParams{x,
                             gate,
                             y,
                             run.row_count(),
                             x_stride,
                             x_stride,
                             run.stride(),
                             shape.groups,
                             n,
                             group,
                             group,
                             n,
                             1,
                             encoded};
      });
    });
  }

  TEST_CASE("gpu: stream_mix encodes what it makes") {
    for_all([](Encodes& run, const Shape& shape, uint32_t pad) {
      constexpr uint32_t kStreams = 5;
      const uint32_t n = shape.groups * shape.n;
      const uint64_t x_stride = kStreams * n + pad;
      const float* gate = run.values("gate", x_stride, n);
      const float* x = run.values("x", x_stride, n + 1);
      run.check("stream_mix", kStreamMixParamsDigest, [&](float* y, Encoded encoded) {
        return StreamMixParams{gate,         x,        y, run.row_count(), x_stride,   x_stride,
                               run.stride(), kStreams, n, encoded.bf16,    encoded.f16};
      });
    });
  }

  TEST_CASE("gpu: rms_norm encodes what it makes") {
    for_all([](Encodes& run, const Shape& shape, uint32_t pad) {
      const uint32_t n = shape.n, group = n + pad;
      if (n <= kNormNarrow) return;
      const uint64_t x_stride = shape.groups * group;
      const float* x = run.values("x", x_stride, n);
      const float* weight = run.twin().machine().input("weight", normal_values(n, 5));
      run.check("rms_norm", kRmsNormParamsDigest, [&](float* y, Encoded encoded) {
        return RmsNormParams{
            x,     weight, y, run.row_count(), x_stride,     run.stride(), shape.groups, n,
            group, n,      0, 1e-6f,           encoded.bf16, encoded.f16};
      });
    });
  }

  TEST_CASE("gpu: norm_gate encodes what it makes") {
    for (const char* platform : kGpuPlatforms) {
      for (const Shape& shape : {Shape{1, 128}, Shape{4, 32}, Shape{48, 128}, Shape{5, 256}}) {
        CAPTURE(platform);
        CAPTURE(shape.groups);
        const auto [groups, n] = shape;
        Encodes run(platform, shape, 4);
        const float* x = run.values("x", run.stride(), n);
        const float* gate = run.values("gate", run.stride(), n + 1);
        const float* weight = run.twin().machine().input("weight", normal_values(n, 5));
        run.check("norm_gate", kNormGateParamsDigest, [&](float* y, void* encoded) {
          NormGateParams params{};
          params.norm = {x, weight, y, run.row_count(), run.stride(), run.stride(), groups, n,
                         n, n,      0, 1e-6f,           nullptr,      nullptr};
          params.gate = {
              y, gate, y, run.row_count(), run.stride(), run.stride(), run.stride(), groups, n, n,
              n, n,    1, encoded};
          return params;
        });
      }
    }
  }

  TEST_CASE("gpu: inject_norm encodes what it makes") {
    for_all([](Encodes& run, const Shape& shape, uint32_t pad) {
      const uint32_t n = shape.n, streams = shape.groups;
      const uint64_t x_stride = streams * n + pad;
      // The grid's rows: of few, those behind the count are read as well.
      const std::vector<float> streams_before = normal_values((kRows + 1) * x_stride, n);
      float* x = run.twin().machine().in_out("x", streams_before);
      const float* added = run.values("added", n + pad, n + 1, kRows + 1);
      const float* c = run.twin().machine().input("c", normal_values((kRows + 1) * streams, n + 2));
      const float* weight = run.twin().machine().input("weight", normal_values(streams * n, 5));
      run.check(
          "inject_norm", kInjectNormParamsDigest,
          [&](float* y, Encoded encoded) {
            return InjectNormParams{c,
                                    added,
                                    x,
                                    weight,
                                    y,
                                    run.row_count(),
                                    streams,
                                    n + pad,
                                    x_stride,
                                    run.stride(),
                                    streams,
                                    n,
                                    n,
                                    n,
                                    1e-6f,
                                    0,
                                    encoded.bf16,
                                    encoded.f16};
          },
          [&] { run.twin().machine().write(x, streams_before); });
    });
  }
}

}  // namespace atlas::test
