// The core's kernels of the hashed n-gram embedding: keys against published and derived ones,
// waiting for the host, and a convolution that gives the same bits however a sequence is cut into
// steps.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "kernels/common/core.h"
#include "tests/conformance/core_suite.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

/// A running step: its rows, its slots, and a ring of three entries.
class Step {
 public:
  explicit Step(uint32_t slots = 4) : slots_(slots) {
    for (SlotState& slot : slots_) {
      for (uint32_t& id : slot.history) id = kNoToken;
    }
    control_.limits.ring_entries = 3;
    control_.limits.max_rows = 256;
    control_.limits.max_slots = slots;
    control_.next_step = 1;
    control_.slots = slots_.data();
  }

  StepControl& control() { return control_; }
  SlotState& slot(uint32_t i) { return slots_[i]; }
  RowSet& rows() { return control_.step; }
  uint64_t place() const { return (control_.next_step - 1) % control_.limits.ring_entries; }

  /// Begins a step without rows.
  void begin(uint64_t number) {
    control_.next_step = number;
    control_.error = 0;
    rows_.clear();
    spans_.clear();
    point();
  }
  /// Adds a sequence's rows.
  RowSpan& add(uint32_t slot, uint32_t index, const std::vector<uint32_t>& ids) {
    RowSpan span{};
    span.sequence = static_cast<uint32_t>(spans_.size());
    span.slot = slot;
    span.first_row = static_cast<uint32_t>(rows_.size());
    span.row_count = static_cast<uint32_t>(ids.size());
    span.index = index;
    span.anchor = span.next_anchor = kNoAnchor;
    for (uint32_t i = 0; i < ids.size(); ++i) {
      RowInput row{};
      row.sequence = span.sequence;
      row.slot = slot;
      row.token = ids[i];
      row.index = index + i;
      rows_.push_back(row);
    }
    spans_.push_back(span);
    point();
    return spans_.back();
  }
  /// The slot's history after `ids` have been committed.
  void commit(uint32_t slot, const std::vector<uint32_t>& ids) {
    for (const uint32_t id : ids) {
      uint32_t* history = slots_[slot].history;
      std::memmove(history + 1, history, (kHistoryIds - 1) * sizeof(uint32_t));
      history[0] = id;
    }
  }

 private:
  void point() {
    control_.step = {rows_.data(), spans_.data(), static_cast<uint32_t>(rows_.size()),
                     static_cast<uint32_t>(spans_.size())};
  }

  std::vector<SlotState> slots_;
  std::vector<RowInput> rows_;
  std::vector<RowSpan> spans_;
  StepControl control_{};
};

/// An n-gram table's hash.
struct Hash {
  uint32_t ngram, eos;
  std::vector<uint64_t> multipliers, sizes, offsets;
  uint32_t heads() const { return static_cast<uint32_t>(sizes.size()); }
};

std::vector<uint64_t> running_sums(const std::vector<uint64_t>& sizes) {
  std::vector<uint64_t> sums(sizes.size());
  for (size_t i = 1; i < sizes.size(); ++i) sums[i] = sums[i - 1] + sizes[i - 1];
  return sums;
}

/// That of Qwen3.8-Flash-Next: vocabulary 248,320, seed 1234, 20,000,000 rows a head or more.
Hash flash_hash() {
  Hash hash;
  hash.ngram = 3;
  hash.eos = 248044;
  hash.multipliers = {23703573157769, 20109073645365, 8052911324071};
  hash.sizes = {20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
                20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171};
  hash.offsets = running_sums(hash.sizes);
  return hash;
}

/// The same derivation for a vocabulary of 256 and two heads a size.
Hash tiny_hash() {
  Hash hash;
  hash.ngram = 3;
  hash.eos = 2;
  hash.multipliers = {4295158889762567, 35454616657218897, 19285316470915801};
  hash.sizes = {97, 101, 103, 107};
  hash.offsets = running_sums(hash.sizes);
  return hash;
}

/// The keys of position p, from the whole sequence, in 128 bits.
std::vector<uint64_t> expected_keys(const Hash& hash, const std::vector<uint32_t>& ids, size_t p) {
  std::vector<uint64_t> keys;
  const uint32_t heads = hash.heads() / (hash.ngram - 1);
  for (uint32_t size = 2; size <= hash.ngram; ++size) {
    unsigned __int128 mix = static_cast<unsigned __int128>(ids[p]) * hash.multipliers[0];
    for (uint32_t back = 1; back < size; ++back) {
      bool cut = back > p;
      for (uint32_t i = 1; i <= back && !cut; ++i) cut = ids[p - i] == hash.eos;
      const uint32_t id = cut ? hash.eos : ids[p - back];
      mix ^= static_cast<unsigned __int128>(id) * hash.multipliers[back];
    }
    for (uint32_t h = 0; h < heads; ++h) {
      const size_t head = keys.size();
      keys.push_back(hash.offsets[head] + static_cast<uint64_t>(mix % hash.sizes[head]));
    }
  }
  return keys;
}

class Requests {
 public:
  Requests(const Hash& hash, uint32_t max_rows)
      : hash_(hash), bytes_(feed_request_bytes(max_rows, hash.heads())), memory_(3 * bytes_) {
    std::fill_n(memory_.data(), memory_.size(), std::byte{0x5a});
  }

  void run(const CpuPack& pack, Step& step) {
    const NgramKeysParams params{&step.control(),
                                 memory_.as<unsigned char>(),
                                 hash_.multipliers.data(),
                                 hash_.sizes.data(),
                                 hash_.offsets.data(),
                                 bytes_,
                                 hash_.ngram,
                                 hash_.heads(),
                                 hash_.eos,
                                 0};
    pack.run("ngram_keys", params, 1);
    place_ = step.place() * bytes_;
  }
  const FeedRequest& head() { return *reinterpret_cast<FeedRequest*>(memory_.data() + place_); }
  std::vector<uint64_t> keys(uint32_t row) {
    std::vector<uint64_t> keys(hash_.heads());
    std::memcpy(keys.data(),
                memory_.data() + place_ + feed_keys_offset() + row * keys.size() * sizeof(uint64_t),
                keys.size() * sizeof(uint64_t));
    return keys;
  }

 private:
  Hash hash_;
  uint64_t bytes_;
  Aligned memory_;
  uint64_t place_ = 0;
};

/// Gives the keys of `ids` in steps of these sizes (the last one takes the rest).
std::vector<std::vector<uint64_t>> keys_in_steps(const Hash& hash, const std::vector<uint32_t>& ids,
                                                 const std::vector<uint32_t>& sizes) {
  const CpuPack pack;
  Step step;
  Requests requests(hash, 64);
  std::vector<std::vector<uint64_t>> keys;
  for (uint64_t number = 1; keys.size() < ids.size(); ++number) {
    const size_t first = keys.size();
    const size_t size = number <= sizes.size() ? sizes[number - 1] : ids.size() - first;
    const std::vector<uint32_t> part(ids.begin() + first, ids.begin() + first + size);
    step.begin(number);
    step.add(1, static_cast<uint32_t>(first), part);
    requests.run(pack, step);
    CHECK(requests.head().step == number);
    CHECK(requests.head().row_count == size);
    CHECK(requests.head().heads == hash.heads());
    for (uint32_t r = 0; r < size; ++r) keys.push_back(requests.keys(r));
    step.commit(1, part);
  }
  return keys;
}

/// The host's side of feed_take.
class Answers {
 public:
  Answers(uint32_t max_rows, uint32_t width)
      : max_rows_(max_rows), width_(width), memory_(3 * feed_answer_bytes(max_rows, width)) {}

  uint64_t bytes() const { return memory_.size() / 3; }
  const unsigned char* data() { return memory_.as<unsigned char>(); }
  uint32_t* status(uint64_t step) {
    return reinterpret_cast<uint32_t*>(at(step) + feed_status_offset());
  }
  float* rows(uint64_t step) {
    return reinterpret_cast<float*>(at(step) + feed_rows_offset(max_rows_));
  }
  /// Fills in every row's own number and column, then the step.
  void give(uint64_t step) {
    for (uint32_t r = 0; r < max_rows_; ++r) {
      for (uint32_t i = 0; i < width_; ++i) rows(step)[r * width_ + i] = value(step, r, i);
    }
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at(step)))
        .store(step, std::memory_order_release);
  }
  static float value(uint64_t step, uint32_t row, uint32_t i) {
    return static_cast<float>(step * 1000 + row * 100 + i);
  }

 private:
  std::byte* at(uint64_t step) { return memory_.data() + (step - 1) % 3 * bytes(); }
  uint32_t max_rows_, width_;
  Aligned memory_;
};

constexpr uint32_t kFeedRows = 8, kFeedWidth = 19, kFeedStride = 21;
constexpr uint64_t kMillisecond = 1'000'000;

FeedTakeParams feed_params(Step& step, Answers& answers, std::vector<float>& y,
                           uint64_t timeout_ns) {
  FeedTakeParams params{};
  params.control = &step.control();
  params.answers = answers.data();
  params.y = y.data();
  params.answer_bytes = answers.bytes();
  params.max_rows = kFeedRows;
  params.y_stride = kFeedStride;
  params.timeout_ns = timeout_ns;
  params.width = kFeedWidth;
  return params;
}

double seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// ---- ngram_conv ----

struct ConvShape {
  uint32_t channels, taps, dilation;
  uint32_t reach() const { return dilation * (taps - 1); }
};
const std::vector<ConvShape> kConvShapes = {{300, 4, 3}, {17, 2, 2}, {256, 8, 1}, {40, 1, 3}};

constexpr uint32_t kAnchorTokens = 32, kAnchors = 6, kSlots = 3;

/// What a sequence is made of: input, gated and X of every position.
struct ConvSequence {
  ConvSequence(const ConvShape& shape, uint32_t positions, uint32_t seed)
      : channels(shape.channels),
        in(normal_values(size_t{positions} * channels, seed)),
        gated(normal_values(size_t{positions} * channels, seed + 1)),
        x(normal_values(size_t{positions} * channels, seed + 2)) {}
  uint32_t channels;
  std::vector<float> in, gated, x;
};

/// Some positions of a sequence, to be run in one step.
struct ConvPart {
  const ConvSequence* sequence;
  uint32_t slot, index, count;
};

/// A convolution with the state of its slots and anchors, and the host's bookkeeping.
class Conv {
 public:
  explicit Conv(const ConvShape& shape)
      : shape_(shape),
        weight_(normal_values(size_t{shape.channels} * shape.taps, 99)),
        slot_stride_((size_t{conv_ring_rows(shape.reach())} * shape.channels + 8) * 4),
        anchor_stride_((size_t{shape.reach()} * shape.channels + 8) * 4),
        slots_(kSlots * slot_stride_),
        anchors_(kAnchors * anchor_stride_) {
    // Nothing may count on what a slot or an anchor held before.
    std::fill_n(slots_.data(), slots_.size(), std::byte{0xff});
    std::fill_n(anchors_.data(), anchors_.size(), std::byte{0xff});
  }

  /// Begins a slot anew at the state of an anchor.
  void reset(uint32_t slot, uint32_t anchor, uint32_t index) {
    anchor_[slot] = anchor;
    anchor_index_[slot] = index;
  }
  uint32_t anchor(uint32_t slot) const { return anchor_[slot]; }
  uint32_t anchor_index(uint32_t slot) const { return anchor_index_[slot]; }
  const std::vector<float>& weight() const { return weight_; }

  /// Runs the parts in one step; gives the rows of X, one part after another.
  std::vector<float> run(const CpuPack& pack, const std::vector<ConvPart>& parts,
                         Split split = {}) {
    Step step(kSlots);
    step.begin(1);
    const size_t channels = shape_.channels;
    const size_t in_stride = channels + 1, gated_stride = channels + 2, x_stride = channels + 3;
    std::vector<float> in, gated, x;
    const auto append = [channels](std::vector<float>& to, const std::vector<float>& from,
                                   size_t row, size_t stride) {
      to.insert(to.end(), from.begin() + row * channels, from.begin() + (row + 1) * channels);
      to.insert(to.end(), stride - channels, 9.0f);
    };
    std::vector<uint32_t> next(parts.size(), kNoAnchor), next_index(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      const ConvPart& part = parts[i];
      for (uint32_t r = part.index; r < part.index + part.count; ++r) {
        append(in, part.sequence->in, r, in_stride);
        append(gated, part.sequence->gated, r, gated_stride);
        append(x, part.sequence->x, r, x_stride);
      }
      RowSpan& span = step.add(part.slot, part.index, std::vector<uint32_t>(part.count, 1));
      span.anchor = anchor_[part.slot];
      span.anchor_index = anchor_index_[part.slot];
      next_index[i] = (part.index + part.count - 1) / kAnchorTokens * kAnchorTokens;
      if (next_index[i] > span.anchor_index) next[i] = spare_++ % kAnchors;
      span.next_anchor = next[i];
      span.next_index = next_index[i];
    }
    const NgramConvParams params{in.data(),
                                 gated.data(),
                                 weight_.data(),
                                 x.data(),
                                 &step.rows(),
                                 slots_.as<unsigned char>(),
                                 anchors_.as<unsigned char>(),
                                 slot_stride_,
                                 anchor_stride_,
                                 in_stride,
                                 gated_stride,
                                 x_stride,
                                 shape_.channels,
                                 shape_.taps,
                                 shape_.dilation,
                                 0};
    pack.run("ngram_conv", params, (shape_.channels + kConvChannels - 1) / kConvChannels + 1,
             split);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (next[i] != kNoAnchor) reset(parts[i].slot, next[i], next_index[i]);
    }
    std::vector<float> rows;
    for (size_t r = 0; r < x.size() / x_stride; ++r) {
      const auto row = x.begin() + r * x_stride;
      rows.insert(rows.end(), row, row + channels);
      CHECK(row[channels] == 9.0f);
    }
    return rows;
  }

  /// Runs positions [first, end) of a sequence in steps of `size` rows.
  std::vector<float> run_steps(const CpuPack& pack, const ConvSequence& sequence, uint32_t slot,
                               uint32_t first, uint32_t end, uint32_t size) {
    std::vector<float> rows;
    for (uint32_t at = first; at < end; at += size) {
      const auto part = run(pack, {{&sequence, slot, at, std::min(size, end - at)}});
      rows.insert(rows.end(), part.begin(), part.end());
    }
    return rows;
  }

 private:
  ConvShape shape_;
  std::vector<float> weight_;
  size_t slot_stride_, anchor_stride_;
  Aligned slots_, anchors_;
  uint32_t anchor_[kSlots] = {kNoAnchor, kNoAnchor, kNoAnchor};
  uint32_t anchor_index_[kSlots] = {};
  uint32_t spare_ = 0;
};

/// Positions [first, end) of what `run` gives for the whole of a sequence.
std::vector<float> positions(const std::vector<float>& rows, const ConvShape& shape, uint32_t first,
                             uint32_t end) {
  return {rows.begin() + size_t{first} * shape.channels,
          rows.begin() + size_t{end} * shape.channels};
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("core: ngram_keys gives the published rows of Qwen3.8-Flash-Next") {
    const std::vector<std::vector<uint64_t>> golden = {
        {13981229, 30076798, 49239434, 61315716, 98540601, 111186732, 120378863, 146384625,
         173637879, 184336749, 217808755, 222173721, 249579227, 277180543, 299757935, 312970430},
        {4908448, 36872991, 46611251, 64451521, 83649409, 110850044, 122402102, 159207155,
         170314019, 195445770, 214314282, 239389039, 254862662, 271565595, 284073139, 308659387},
        {4582007, 37691206, 44255274, 65455601, 89351473, 103985474, 135938409, 145212418,
         163775156, 199680439, 200044921, 228961047, 240669798, 272736434, 296838250, 317942745}};
    CHECK(keys_in_steps(flash_hash(), {248045, 846, 198}, {3}) == golden);
    CHECK(keys_in_steps(flash_hash(), {248045, 846, 198}, {1, 1, 1}) == golden);
    CHECK(keys_in_steps(flash_hash(), {248045, 846, 198}, {2, 1}) == golden);
  }

  TEST_CASE("core: ngram_keys cuts at an end of text, and goes on over steps") {
    Hash wide = tiny_hash();  // 4-grams reach as far as a slot remembers
    wide.ngram = 4;
    wide.multipliers.push_back(8052911324071);
    wide.sizes = {31, 37, 41, 43, 47, 53};
    wide.offsets = running_sums(wide.sizes);
    Hash bigrams = tiny_hash();
    bigrams.ngram = 2;
    for (const Hash& hash : {tiny_hash(), wide, bigrams, flash_hash()}) {
      std::mt19937 random(hash.ngram);
      std::vector<uint32_t> ids(50);
      for (uint32_t& id : ids) id = random() % 4 == 0 ? hash.eos : random() % 256;
      ids[20] = ids[21] = hash.eos;
      std::vector<std::vector<uint64_t>> expected;
      for (size_t p = 0; p < ids.size(); ++p) expected.push_back(expected_keys(hash, ids, p));
      for (const auto& sizes : {std::vector<uint32_t>{50}, std::vector<uint32_t>(50, 1),
                                std::vector<uint32_t>(16, 3), std::vector<uint32_t>{20, 1, 1, 7}}) {
        CHECK(keys_in_steps(hash, ids, sizes) == expected);
      }
    }
  }

  TEST_CASE("core: ngram_keys keeps the sequences of a step apart") {
    const CpuPack pack;
    const Hash hash = tiny_hash();
    Step step;
    Requests requests(hash, 16);
    step.commit(3, {7, 9});
    step.begin(5);
    step.add(3, 2, {11, 12});
    step.add(0, 0, {13, 14, 15});
    requests.run(pack, step);
    CHECK(requests.head().step == 5);
    CHECK(requests.head().row_count == 5);
    for (uint32_t r = 0; r < 2; ++r) {
      CHECK(requests.keys(r) == expected_keys(hash, {7, 9, 11, 12}, 2 + r));
    }
    for (uint32_t r = 0; r < 3; ++r) {
      CHECK(requests.keys(2 + r) == expected_keys(hash, {13, 14, 15}, r));
    }
    step.begin(6);
    requests.run(pack, step);
    CHECK(requests.head().step == 6);
    CHECK(requests.head().row_count == 0);
  }

  TEST_CASE("core: feed_take copies the rows that the host has brought") {
    const CpuPack pack;
    Step step;
    Answers answers(kFeedRows, kFeedWidth);
    for (const uint64_t number : {1u, 2u, 3u, 4u}) {
      step.begin(number);
      step.add(0, 0, {1, 2, 3});
      step.add(2, 0, {1, 2});
      answers.give(number);
      std::vector<float> y(7 * kFeedStride, 9.0f);
      pack.run("feed_take", feed_params(step, answers, y, kMillisecond), 7, {3, 1});
      for (uint32_t r = 0; r < 7; ++r) {
        for (uint32_t i = 0; i < kFeedStride; ++i) {
          const bool inside = r < 5 && i < kFeedWidth;
          CHECK(y[r * kFeedStride + i] == (inside ? Answers::value(number, r, i) : 9.0f));
        }
      }
      CHECK(step.slot(0).error == 0);
      CHECK(step.control().error == 0);
    }
  }

  TEST_CASE("core: feed_take waits for an answer on its way") {
    const CpuPack pack;
    Step step;
    Answers answers(kFeedRows, kFeedWidth);
    answers.give(1);  // of the step that had this place in the ring before
    step.begin(4);
    step.add(0, 0, {1, 2, 3, 4});
    std::vector<float> y(4 * kFeedStride, 9.0f);
    std::jthread host([&answers] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      answers.give(4);
    });
    pack.run("feed_take", feed_params(step, answers, y, 60'000 * kMillisecond), 4, {2, 1});
    for (uint32_t r = 0; r < 4; ++r) CHECK(y[r * kFeedStride] == Answers::value(4, r, 0));
    CHECK(step.slot(0).error == 0);
  }

  TEST_CASE("core: feed_take gives zeros and an error where the answer is late") {
    const CpuPack pack;
    Step step;
    step.slot(1).error = kErrorNotFinite;
    Answers answers(kFeedRows, kFeedWidth);
    answers.give(1);
    step.begin(4);
    step.add(0, 0, {1, 2, 3});
    step.add(1, 0, {1, 2, 3, 4});
    std::vector<float> y(8 * kFeedStride, 9.0f);
    const double start = seconds();
    pack.run("feed_take", feed_params(step, answers, y, 200 * kMillisecond), 8, {1, 1});
    const double waited = seconds() - start;
    CHECK(waited >= 0.2);
    CHECK(waited < 1.0);  // once, not once a row
    for (uint32_t r = 0; r < 8; ++r) {
      for (uint32_t i = 0; i < kFeedStride; ++i) {
        CHECK(y[r * kFeedStride + i] == (r < 7 && i < kFeedWidth ? 0.0f : 9.0f));
      }
    }
    CHECK(step.slot(0).error == kErrorFeedLate);
    CHECK(step.slot(1).error == (kErrorNotFinite | kErrorFeedLate));
    CHECK(step.slot(2).error == 0);
    CHECK(step.control().error == kErrorFeedLate);
  }

  TEST_CASE("core: feed_take gives zeros for a row that the host could not read") {
    const CpuPack pack;
    Step step;
    Answers answers(kFeedRows, kFeedWidth);
    step.begin(2);
    step.add(0, 0, {1, 2, 3});
    step.add(1, 0, {1});
    answers.status(2)[1] = kErrorFeed;
    answers.status(2)[2] = kErrorFeedLate;
    answers.give(2);
    std::vector<float> y(4 * kFeedStride, 9.0f);
    pack.run("feed_take", feed_params(step, answers, y, kMillisecond), 4);
    for (uint32_t i = 0; i < kFeedWidth; ++i) {
      CHECK(y[i] == Answers::value(2, 0, i));
      CHECK(y[kFeedStride + i] == 0.0f);
      CHECK(y[2 * kFeedStride + i] == 0.0f);
      CHECK(y[3 * kFeedStride + i] == Answers::value(2, 3, i));
    }
    CHECK(step.slot(0).error == (kErrorFeed | kErrorFeedLate));
    CHECK(step.slot(1).error == 0);
  }

  TEST_CASE("core: feed_take takes no more rows than an answer has") {
    const CpuPack pack;
    Step step;
    Answers answers(kFeedRows, kFeedWidth);
    step.begin(1);
    step.add(0, 0, std::vector<uint32_t>(kFeedRows, 1));
    step.add(1, 0, {1});
    answers.give(1);
    std::vector<float> y((kFeedRows + 1) * kFeedStride, 9.0f);
    pack.run("feed_take", feed_params(step, answers, y, kMillisecond), kFeedRows + 1);
    CHECK(y[(kFeedRows - 1) * kFeedStride] == Answers::value(1, kFeedRows - 1, 0));
    CHECK(y[kFeedRows * kFeedStride] == 0.0f);
    CHECK(step.slot(0).error == 0);
    CHECK(step.slot(1).error == kErrorFeed);
  }

  TEST_CASE("core: ngram_conv against float64") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 20;
    for (const ConvShape& shape : kConvShapes) {
      CAPTURE(shape.channels);
      const ConvSequence sequence(shape, kPositions, shape.channels);
      std::vector<float> best;
      for (const CpuTarget& target : cpu_targets()) {
        CAPTURE(target.name);
        const ForcedTarget forced(target);
        Conv conv(shape), shared(shape);
        const auto y = conv.run(pack, {{&sequence, 0, 0, kPositions}});
        CHECK(same_bits(y, shared.run(pack, {{&sequence, 0, 0, kPositions}}, {3, 1})));
        if (best.empty()) best = y;
        if (target.name != "SCALAR") CHECK(same_bits(y, best));
        std::vector<double> expected(y.size());
        for (uint32_t t = 0; t < kPositions; ++t) {
          for (uint32_t c = 0; c < shape.channels; ++c) {
            double sum = 0;
            for (uint32_t k = 0; k < shape.taps; ++k) {
              const uint32_t back = shape.dilation * (shape.taps - 1 - k);
              if (back > t) continue;
              sum += double{conv.weight()[size_t{c} * shape.taps + k]} *
                     sequence.in[size_t{t - back} * shape.channels + c];
            }
            const size_t at = size_t{t} * shape.channels + c;
            expected[at] = double{sequence.x[at]} + sequence.gated[at] + sum * sigmoid(sum);
          }
        }
        CHECK(largest_difference(y, expected) < 4e-6);
      }
    }
  }

  TEST_CASE("core: ngram_conv gives the same bits however the rows are shared among steps") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 150;
    for (const ConvShape& shape : kConvShapes) {
      CAPTURE(shape.channels);
      const ConvSequence sequence(shape, kPositions, 1);
      Conv whole(shape);
      const auto y = whole.run(pack, {{&sequence, 0, 0, kPositions}});
      for (const uint32_t size : {1u, 3u, 7u, 20u, 33u, 100u}) {
        CAPTURE(size);
        Conv conv(shape);
        CHECK(same_bits(conv.run_steps(pack, sequence, 1, 0, kPositions, size), y));
      }
    }
  }

  TEST_CASE("core: ngram_conv forgets rows that were run and not committed") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 120;
    for (const ConvShape& shape : kConvShapes) {
      CAPTURE(shape.channels);
      const ConvSequence sequence(shape, kPositions, 1);
      Conv whole(shape);
      const auto y = whole.run(pack, {{&sequence, 0, 0, kPositions}});
      Conv conv(shape);
      std::mt19937 random(shape.channels);
      std::vector<float> rows = conv.run(pack, {{&sequence, 2, 0, 13}});
      for (uint32_t at = 13, round = 0; at < kPositions; ++round) {
        // Rows of which only the first ones are the sequence's, cut where an anchor stands.
        uint32_t run = std::min({kMaxVerifyRows, kPositions - at});
        run = std::min(run, kAnchorTokens - at % kAnchorTokens);
        const uint32_t kept = 1 + random() % run;
        ConvSequence drafted = sequence;
        const ConvSequence wrong(shape, kPositions, 100 + round);
        const size_t from = size_t{at + kept} * shape.channels;
        std::copy(wrong.in.begin() + from, wrong.in.end(), drafted.in.begin() + from);
        const auto part = conv.run(pack, {{&drafted, 2, at, run}});
        rows.insert(rows.end(), part.begin(), part.begin() + size_t{kept} * shape.channels);
        at += kept;
      }
      CHECK(same_bits(rows, y));
    }
  }

  TEST_CASE("core: ngram_conv goes on from an anchor in another slot") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 120;
    for (const ConvShape& shape : kConvShapes) {
      for (const uint32_t size : {1u, 7u, 20u, 75u}) {
        CAPTURE(shape.channels);
        CAPTURE(size);
        const ConvSequence sequence(shape, kPositions, 1), other(shape, kPositions, 2);
        Conv whole(shape);
        const auto y = whole.run(pack, {{&sequence, 0, 0, kPositions}});
        Conv conv(shape);
        conv.run_steps(pack, other, 1, 0, 50, 50);  // what the other slot held before
        conv.run_steps(pack, sequence, 0, 0, 40, size);
        const uint32_t first = conv.anchor(0);
        CHECK(conv.anchor_index(0) == 32);
        conv.run_steps(pack, sequence, 0, 40, 75, size);
        const uint32_t second = conv.anchor(0);
        CHECK(conv.anchor_index(0) == 64);
        conv.reset(1, second, 64);
        CHECK(same_bits(conv.run_steps(pack, sequence, 1, 64, kPositions, size),
                        positions(y, shape, 64, kPositions)));
        conv.reset(2, first, 32);
        CHECK(same_bits(conv.run_steps(pack, sequence, 2, 32, kPositions, 5),
                        positions(y, shape, 32, kPositions)));
        conv.reset(2, kNoAnchor, 0);
        CHECK(
            same_bits(conv.run_steps(pack, sequence, 2, 0, 30, size), positions(y, shape, 0, 30)));
      }
    }
  }

  TEST_CASE("core: ngram_conv runs sequences of one step side by side") {
    const CpuPack pack;
    constexpr uint32_t kPositions = 60;
    const ConvShape shape = kConvShapes[0];
    const ConvSequence a(shape, kPositions, 1), b(shape, kPositions, 2);
    Conv whole(shape);
    const auto y_a = whole.run(pack, {{&a, 0, 0, kPositions}});
    const auto y_b = whole.run(pack, {{&b, 1, 0, kPositions}});
    Conv conv(shape);
    std::vector<float> rows_a = conv.run(pack, {{&a, 2, 0, 29}});
    std::vector<float> rows_b;
    for (uint32_t at_a = 29, at_b = 0; at_a < kPositions || at_b < kPositions;) {
      const uint32_t run_a = std::min(2u, kPositions - at_a),
                     run_b = std::min(5u, kPositions - at_b);
      const auto rows = conv.run(pack, {{&b, 0, at_b, run_b}, {&a, 2, at_a, run_a}}, {2, 1});
      const auto border = rows.begin() + size_t{run_b} * shape.channels;
      rows_b.insert(rows_b.end(), rows.begin(), border);
      rows_a.insert(rows_a.end(), border, rows.end());
      at_a += run_a;
      at_b += run_b;
    }
    CHECK(same_bits(rows_a, y_a));
    CHECK(same_bits(rows_b, y_b));
  }
}

}  // namespace atlas::test
