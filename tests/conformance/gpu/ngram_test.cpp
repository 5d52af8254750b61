// Kernels of the hashed n-gram embedding of every GPU pack: the keys, rows and bits of the CPU
// pack, and what they do while the host has not answered.
#include <algorithm>
#include <random>
#include <vector>

#include "tests/support/gpu_control.h"
#include "tests/support/numbers.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

/// Sequences of a few lengths in one step, with histories in which an end of text stands here and
/// there.
struct Step {
  explicit Step(uint32_t eos, uint64_t number = 1) : block(limits()) {
    std::mt19937 random(7);
    std::vector<Share> shares;
    uint32_t slot = 9;
    for (const uint32_t rows : {1u, 5u, 2u, 9u}) {
      Share share;
      share.slot = slot--;
      share.flags = kSequenceReset;
      share.reset_length = 16;
      for (uint32_t r = 0; r < rows; ++r) {
        share.ids.push_back(random() % 3 == 0 ? eos : random() % 50);
      }
      for (uint32_t i = 0; i < kHistoryIds; ++i) {
        share.history.push_back(random() % 4 == 0 ? eos
                                                  : (random() % 4 == 0 ? kNoToken : random() % 50));
      }
      shares.push_back(share);
    }
    block.control().next_step = number;
    block.submit(number, shares);
    block.fetch(CpuPack());
    REQUIRE(block.control().error == 0);
  }
  static ControlLimits limits() {
    ControlLimits limits = small_limits();
    limits.max_rows = 20;
    return limits;
  }
  ControlBlock block;
};
constexpr uint32_t kStepRows = 17;

/// What the host answers: [entries] answers, of which that of `step` is there if it is given.
constexpr uint32_t kWidth = 21;
std::vector<uint8_t> answers(uint32_t max_rows, uint32_t width, uint64_t step,
                             const std::vector<uint32_t>& status) {
  std::vector<uint8_t> bytes(3 * feed_answer_bytes(max_rows, width));
  uint8_t* at = bytes.data() + (step - 1) % 3 * feed_answer_bytes(max_rows, width);
  std::memcpy(at, &step, sizeof(step));
  std::memcpy(at + feed_status_offset(), status.data(), status.size() * sizeof(uint32_t));
  const std::vector<float> rows = normal_values(size_t{max_rows} * width, 3);
  std::memcpy(at + feed_rows_offset(max_rows), rows.data(), rows.size() * sizeof(float));
  return bytes;
}

FeedTakeParams feed_params(StepControl* control, const uint8_t* answers, float* y,
                           uint32_t max_rows, uint32_t width, uint64_t y_stride,
                           uint64_t timeout_ns) {
  FeedTakeParams params{};
  params.control = control;
  params.answers = answers;
  params.y = y;
  params.answer_bytes = feed_answer_bytes(max_rows, width);
  params.max_rows = max_rows;
  params.y_stride = y_stride;
  params.timeout_ns = timeout_ns;
  params.width = width;
  return params;
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: ngram_keys asks for the CPU's rows") {
    constexpr uint32_t kEos = 2;
    struct Hash {
      uint32_t ngram;
      std::vector<uint64_t> sizes;
    };
    for (const char* platform : kGpuPlatforms) {
      for (const Hash& hash : {Hash{2, {97, 101}}, Hash{3, {20000003, 20000023, 103, 107}},
                               Hash{4, {31, 37, 41, 43, 47, 53}}}) {
        CAPTURE(platform);
        CAPTURE(hash.ngram);
        const auto heads = static_cast<uint32_t>(hash.sizes.size());
        Step step(kEos, 5);
        GpuTwin twin(platform);
        GpuControl gpu(twin.machine(), step.block);
        const uint64_t bytes = feed_request_bytes(step.block.limits().max_rows, heads);
        const auto requests = twin.in_out("requests", std::vector<uint8_t>(3 * bytes, 0x5a));
        const auto multipliers =
            twin.input("multipliers", std::vector<uint64_t>{4295158889762567, 35454616657218897,
                                                            19285316470915801, 8052911324071});
        const auto sizes = twin.input("sizes", hash.sizes);
        std::vector<uint64_t> sums(heads);
        for (uint32_t i = 1; i < heads; ++i) sums[i] = sums[i - 1] + hash.sizes[i - 1];
        const auto offsets = twin.input("offsets", sums);
        twin.run<NgramKeysParams>(
            "ngram_keys", kNgramKeysParamsDigest, 1, 1,
            [&](bool on_gpu) {
              return NgramKeysParams{on_gpu ? gpu.control() : &step.block.control(),
                                     requests.at(on_gpu),
                                     multipliers.at(on_gpu),
                                     sizes.at(on_gpu),
                                     offsets.at(on_gpu),
                                     bytes,
                                     hash.ngram,
                                     heads,
                                     kEos,
                                     0};
            },
            hash.ngram);
        CHECK(twin.same(requests));
      }
    }
  }

  TEST_CASE("gpu: feed_take copies what the host has brought, and zeros what it could not read") {
    for (const char* platform : kGpuPlatforms) {
      for (const uint32_t width : {kWidth, 32u, 1040u}) {
        CAPTURE(platform);
        CAPTURE(width);
        Step step(2, 5);
        GpuTwin twin(platform);
        GpuControl gpu(twin.machine(), step.block);
        // The answer has fewer rows than the step: those past it cannot be read either.
        const uint32_t max_rows = kStepRows - 1;
        std::vector<uint32_t> status(max_rows);
        status[2] = kErrorFeed;
        status[8] = kErrorFeedLate;
        const auto feed = twin.input("answers", answers(max_rows, width, 5, status));
        const uint64_t y_stride = width == kWidth ? width + 1 : width;
        const auto y = twin.in_out("y", std::vector<float>(20 * y_stride, 9.0f));
        twin.run<FeedTakeParams>(
            "feed_take", kFeedTakeParamsDigest, 20, 20,
            [&](bool on_gpu) {
              return feed_params(on_gpu ? gpu.control() : &step.block.control(), feed.at(on_gpu),
                                 y.at(on_gpu), max_rows, width, y_stride, 1'000'000);
            },
            width);
        CHECK(twin.same(y));
        CHECK(gpu.differences() == "");
        CHECK(step.block.control().slots[8].error == kErrorFeed);
      }
    }
  }

  TEST_CASE("gpu: feed_take gives zeros and an error where the answer is late") {
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      Step step(2, 5);
      step.block.control().slots[8].error = kErrorNotFinite;
      GpuTwin twin(platform);
      GpuControl gpu(twin.machine(), step.block);
      // What is there is the answer to the step that had this place in the ring before.
      const auto feed = twin.input("answers", answers(20, kWidth, 2, {}));
      const auto y = twin.in_out("y", std::vector<float>(20 * kWidth, 9.0f));
      twin.run<FeedTakeParams>("feed_take", kFeedTakeParamsDigest, 20, 20, [&](bool on_gpu) {
        return feed_params(on_gpu ? gpu.control() : &step.block.control(), feed.at(on_gpu),
                           y.at(on_gpu), 20, kWidth, kWidth, 20'000);
      });
      CHECK(twin.same(y));
      CHECK(gpu.differences() == "");
      CHECK(step.block.control().error == kErrorFeedLate);
    }
  }

  TEST_CASE("gpu: feed_take waits for an answer on its way") {
    for (const char* platform : kGpuPlatforms) {
      for (const uint64_t seed : {0, 1}) {
        CAPTURE(platform);
        Step step(2, 5);
        GpuTwin twin(platform);
        GpuControl gpu(twin.machine(), step.block);
        std::vector<uint8_t> there = answers(20, kWidth, 5, std::vector<uint32_t>(20));
        const auto feed = twin.in_out("answers", std::vector<uint8_t>(there.size()));
        const auto y = twin.in_out("y", std::vector<float>(20 * kWidth, 9.0f));
        uint32_t polls = 0;
        const auto host = [&] {
          if (++polls != 20) return polls < 20;
          twin.machine().write(feed.gpu, there);
          return true;
        };
        twin.run_gpu(
            "feed_take", kFeedTakeParamsDigest, 20,
            feed_params(gpu.control(), feed.gpu, y.gpu, 20, kWidth, kWidth, 600'000'000'000), seed,
            host);
        CHECK(polls >= 20);
        *feed.host = there;
        twin.pack().run("feed_take",
                        feed_params(&step.block.control(), feed.host->data(), y.host->data(), 20,
                                    kWidth, kWidth, 0),
                        20);
        CHECK(twin.same(y));
        CHECK(gpu.differences() == "");
      }
    }
  }

  TEST_CASE("gpu: ngram_gate has the CPU's bits") {
    if (!cpu_has_fma()) return;
    constexpr uint32_t kRows = 3;
    struct Shape {
      uint32_t streams, n, pad;
    };
    for (const char* platform : kGpuPlatforms) {
      for (const Shape& shape : {Shape{1, 1, 0}, Shape{3, 17, 1}, Shape{4, 128, 0},
                                 Shape{2, 2560, 4}, Shape{1, 4100, 3}}) {
        const auto [streams, n, pad] = shape;
        CAPTURE(platform);
        CAPTURE(n);
        const uint64_t stride = uint64_t{streams} * n + pad, value_stride = n + pad;
        GpuTwin twin(platform);
        std::vector<float> keys = normal_values(kRows * stride, n);
        // A stream without agreement, one with next to none, and one that is not a number.
        for (uint32_t i = 0; i < n; ++i) keys[i] = 0.0f;
        for (uint32_t i = 0; i < n; ++i) keys[stride + i] *= -1e-9f;
        keys[2 * stride] = 0.0f / 0.0f;
        const auto key = twin.input("key", keys);
        const auto query = twin.input("query", normal_values(kRows * stride, n + 1));
        const auto value = twin.input("value", normal_values(kRows * value_stride, n + 2));
        const auto row_count = twin.input("row_count", std::vector<uint32_t>{kRows});
        const auto y = twin.in_out("y", std::vector<float>(kRows * stride, 9.0f));
        twin.run<NgramGateParams>(
            "ngram_gate", kNgramGateParamsDigest, kRows + 1, kRows + 1,
            [&](bool gpu) {
              return NgramGateParams{key.at(gpu),
                                     query.at(gpu),
                                     value.at(gpu),
                                     y.at(gpu),
                                     row_count.at(gpu),
                                     stride,
                                     stride,
                                     value_stride,
                                     stride,
                                     streams,
                                     n};
            },
            n);
        CHECK(twin.same(y));
      }
    }
  }

  TEST_CASE("gpu: ngram_conv has the CPU's bits, rings and anchors over many steps") {
    if (!cpu_has_fma()) return;
    struct Shape {
      uint32_t channels, taps, dilation;
    };
    constexpr uint32_t kSlots = 4, kAnchors = 12, kAnchorTokens = 32, kMaxRows = 120;
    for (const char* platform : kGpuPlatforms) {
      for (const Shape& shape :
           {Shape{300, 4, 3}, Shape{17, 2, 2}, Shape{70, 8, 1}, Shape{40, 1, 3}}) {
        CAPTURE(platform);
        CAPTURE(shape.taps);
        const uint32_t channels = shape.channels, reach = shape.dilation * (shape.taps - 1);
        const uint64_t slot_bytes = (uint64_t{conv_ring_rows(reach)} * channels + 8) * 4;
        const uint64_t anchor_bytes = (uint64_t{reach} * channels + 8) * 4;
        const uint64_t in_stride = channels + 1, gated_stride = channels + 2,
                       x_stride = channels + 3;
        GpuTwin twin(platform);
        const auto weight = twin.input("weight", normal_values(channels * shape.taps, 99));
        const auto in = twin.in_out("in", normal_values(kMaxRows * in_stride, 1));
        const auto gated = twin.input("gated", normal_values(kMaxRows * gated_stride, 2));
        const auto x = twin.in_out("x", normal_values(kMaxRows * x_stride, 3));
        const auto slots = twin.in_out("slots", std::vector<uint8_t>(kSlots * slot_bytes, 0x3f));
        const auto anchors =
            twin.in_out("anchors", std::vector<uint8_t>(kAnchors * anchor_bytes, 0x3f));
        const auto rows = twin.in_out("rows", std::vector<RowInput>(kMaxRows));
        const auto spans = twin.in_out("spans", std::vector<RowSpan>(kSlots));
        const auto set = twin.in_out("set", std::vector<RowSet>(1));
        uint32_t length[kSlots] = {}, anchor[kSlots], anchor_index[kSlots] = {}, next = 0;
        std::fill_n(anchor, kSlots, kNoAnchor);
        // Rows of each slot, step by step: slots without rows, drafts that are rejected, long
        // chunks, and a slot that begins anew from another's anchor.
        const std::vector<std::vector<uint32_t>> steps = {{3, 0, 1, 45}, {30, 1, 0, 8},
                                                          {1, 2, 7, 1},  {55, 5, 16, 33},
                                                          {1, 8, 17, 3}, {30, 30, 9, 31}};
        for (size_t number = 0; number < steps.size(); ++number) {
          CAPTURE(number);
          std::vector<RowSpan> own(kSlots);
          uint32_t row_count = 0;
          for (uint32_t s = 0; s < kSlots; ++s) {
            if (number == 4 && s == 1) {
              length[1] = anchor_index[1] = anchor_index[3];
              anchor[1] = anchor[3];
            }
            RowSpan& span = own[s];
            span.sequence = span.slot = s;
            span.first_row = row_count;
            span.row_count = steps[number][s];
            row_count += span.row_count;
            span.index = length[s];
            span.anchor = anchor[s];
            span.anchor_index = anchor_index[s];
            span.next_anchor = kNoAnchor;
            span.next_index = anchor_index[s];
            if (span.row_count == 0) continue;
            const uint32_t begun = (length[s] + span.row_count - 1) / kAnchorTokens * kAnchorTokens;
            if (begun > span.anchor_index) {
              span.next_anchor = anchor[s] = next++;
              span.next_index = anchor_index[s] = begun;
            }
            // The last row is not counted where nothing hangs on it.
            length[s] += span.row_count - (span.row_count > 1 && begun < length[s] ? 1 : 0);
          }
          REQUIRE(next <= kAnchors);
          REQUIRE(row_count <= kMaxRows);
          *spans.host = own;
          twin.machine().write(spans.gpu, own);
          set.host->front() = {rows.at(false), spans.at(false), row_count, kSlots};
          twin.machine().write(
              set.gpu, std::vector<RowSet>{{rows.at(true), spans.at(true), row_count, kSlots}});
          *in.host = normal_values(kMaxRows * in_stride, 10 + static_cast<uint32_t>(number));
          twin.machine().write(in.gpu, *in.host);
          twin.run<NgramConvParams>(
              "ngram_conv", kNgramConvParamsDigest, blocks_of(channels, kConvChannels), kMaxRows,
              [&](bool gpu) {
                return NgramConvParams{in.at(gpu),   gated.at(gpu), weight.at(gpu),  x.at(gpu),
                                       set.at(gpu),  slots.at(gpu), anchors.at(gpu), slot_bytes,
                                       anchor_bytes, in_stride,     gated_stride,    x_stride,
                                       channels,     shape.taps,    shape.dilation,  0};
              },
              number);
          CHECK(twin.same(x));
          CHECK(twin.same(slots));
          CHECK(twin.same(anchors));
        }
      }
    }
  }
}

}  // namespace atlas::test
