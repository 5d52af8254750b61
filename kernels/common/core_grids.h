// Blocks and grids of the core's GPU kernels: what gpu_shapes.h and the kernels must agree on.
// Nothing here changes a result.
#pragma once

#include <cstdint>

namespace atlas::kernels {

constexpr uint32_t blocks_of(uint64_t items, uint32_t of_a_block) {
  return static_cast<uint32_t>((items + of_a_block - 1) / of_a_block);
}

/// Elementwise kernels: a thread does four neighbouring elements of a row (or of a group of it).
inline constexpr uint32_t kQuadThreads = 256;
constexpr uint32_t quads_of(uint32_t n) { return n / 4 + (n % 4 != 0 ? 1 : 0); }
constexpr uint32_t quad_blocks(uint32_t groups, uint32_t n) {
  return blocks_of(uint64_t{groups} * quads_of(n), kQuadThreads);
}

/// `control_fetch`, `control_commit`, `draft_begin`: one block.
inline constexpr uint32_t kControlThreads = 512;
inline constexpr uint32_t kControlSharedBytes = 32 * sizeof(uint32_t);

/// `rope`: a block makes the angles of up to kRopePairs pairs and turns about kRopeItems pairs of
/// its row's heads.
inline constexpr uint32_t kRopeThreads = 256;
inline constexpr uint32_t kRopePairs = 256;
inline constexpr uint32_t kRopeItems = 1024;
inline constexpr uint32_t kRopeSharedBytes = 2 * kRopePairs * sizeof(float);
/// Heads of one block.
constexpr uint32_t rope_heads(uint32_t rotary_dim) {
  const uint32_t pairs = rotary_dim / 2 < kRopePairs ? rotary_dim / 2 : kRopePairs;
  return pairs == 0 || pairs >= kRopeItems ? 1 : kRopeItems / pairs;
}

/// `inject_norm`, `combine_inject_norm`: a block a row and stream. Sixteen lanes sum a stream's
/// squares while the others wait: with many rows small blocks have more such chains at a time. The
/// second runs for few rows only, whose loads all have a thread of their own.
inline constexpr uint32_t kInjectNormThreads = 160;
inline constexpr uint32_t kCombineInjectNormThreads = 640;

/// `ngram_gate`: a block a row and stream; elements stand in shared memory kGateChunk at a time.
inline constexpr uint32_t kGateThreads = 128;
inline constexpr uint32_t kGateChunk = 2048;
inline constexpr uint32_t kGateSharedBytes = (2 * kGateChunk + 4) * sizeof(float);
inline constexpr uint32_t kKeysThreads = 1024;  // `ngram_keys`
/// `ngram_conv`: a thread does a channel of kConvRows rows.
inline constexpr uint32_t kConvThreads = 256;
inline constexpr uint32_t kConvRows = 16;

/// `route`: a warp a row. One warp a block: ptxas 13.0 spills a word in larger ones.
inline constexpr uint32_t kRouteThreads = 32;
/// `group_experts`: a block sorts the rows of kGroupedExperts experts; its warps share the rows.
inline constexpr uint32_t kGroupThreads = 1024;
inline constexpr uint32_t kGroupedExperts = 32;
inline constexpr uint32_t kGroupSharedBytes =
    ((kGroupThreads / 32) * (kGroupedExperts + 1) + 2 * kGroupedExperts + 4) * sizeof(uint32_t);

/// `choose_experts`: one block; runs of 32 logits and choices of all rows stand in shared memory.
inline constexpr uint32_t kChooseThreads = 512;
inline constexpr uint32_t kChooseRuns = 128;
inline constexpr uint32_t kChooseChoices = 256;
inline constexpr uint32_t kChooseSharedBytes =
    (kChooseRuns * (2 * 32 + 1) + kChooseChoices) * sizeof(uint32_t);
/// Whether it takes so many rows.
constexpr bool chooses_together(uint32_t experts, uint32_t top, uint32_t rows) {
  return experts <= 32 * 32 && top != 0 && top <= experts && top <= 32 && rows <= kChooseRuns &&
         rows * blocks_of(experts, 32) <= kChooseRuns && rows * top <= kChooseChoices;
}

/// `combine_inject_norm` for buckets of at most so many rows: each stream's block puts the row
/// together by itself. Four streams of 32 rows are a block for each unit of an H200.
inline constexpr uint32_t kCombineInjectRows = 32;

/// `sample_scan`, `sample`, `draft_scan`, `draft_sample`: grid (kSampleParts, draws). A part is a
/// run of whole chunks of the vocabulary; a small one has fewer parts.
inline constexpr uint32_t kSampleThreads = 256;
inline constexpr uint32_t kSampleParts = 32;
inline constexpr uint32_t kSampleChunk = 256;
constexpr uint32_t sample_chunks(uint32_t vocab) { return blocks_of(vocab, kSampleChunk); }
constexpr uint32_t sample_part_tokens(uint32_t vocab) {
  return blocks_of(sample_chunks(vocab), kSampleParts) * kSampleChunk;
}
constexpr uint32_t sample_parts(uint32_t vocab) {
  return blocks_of(vocab, sample_part_tokens(vocab));
}
/// Intervals of keys in which a part sums masses: see sample_cut.h.
inline constexpr uint32_t kSampleIntervals = 8;

/// What the blocks of one draw tell each other, in the scratch of a step: byte offsets.
struct SampleScratch {
  static constexpr uint64_t kScans = 0;                            // ScanPart[kSampleParts]
  static constexpr uint64_t kMasses = kScans + kSampleParts * 16;  // uint64[parts, intervals]
  static constexpr uint64_t kCounts = kMasses + kSampleParts * kSampleIntervals * 8;  // uint32
  static constexpr uint64_t kBests = kCounts + kSampleParts * kSampleIntervals * 4;   // OrderedId
  static constexpr uint64_t kToken = kBests + kSampleParts * 8;
  static constexpr uint64_t kChunkKeys = kToken + 16;  // uint32[sample_chunks(vocab)]
};
constexpr uint64_t sample_draw_bytes(uint32_t vocab) {
  return (SampleScratch::kChunkKeys + uint64_t{sample_chunks(vocab)} * 4 + 255) / 256 * 256;
}
/// Draws of a sequence in one step, at most: kMaxVerifyRows of control.h.
inline constexpr uint32_t kSampleDraws = 8;
constexpr uint64_t sample_scratch_bytes(uint32_t vocab, uint32_t max_sequences) {
  return uint64_t{max_sequences} * kSampleDraws * sample_draw_bytes(vocab);
}

/// Words of a table that tells whether a token may have a bias; tokens sorted at a time.
inline constexpr uint32_t kSpecialWords = 512;
inline constexpr uint32_t kSampleListed = 2048;
/// Shared memory: list, sums of intervals, words for reductions, special tokens, the draw.
struct SampleShared {
  static constexpr uint32_t kList = 0;
  static constexpr uint32_t kMasses = kList + kSampleListed * 8;
  static constexpr uint32_t kCounts = kMasses + kSampleIntervals * 8;
  static constexpr uint32_t kReduce = kCounts + kSampleIntervals * 4;
  static constexpr uint32_t kSpecial = kReduce + 64 * 8;
  static constexpr uint32_t kDraw = kSpecial + kSpecialWords * 4;
  static constexpr uint32_t kBytes = kDraw + 128;
};

/// `score`: a block a logit row; logits are summed in runs of 4,096.
inline constexpr uint32_t kScoreThreads = 1024;
inline constexpr uint32_t kScoreRun = 4096;
inline constexpr uint32_t kScoreListed = 1024;
struct ScoreShared {
  static constexpr uint32_t kList = 0;
  static constexpr uint32_t kReduce = kList + kScoreListed * 8;  // 64 words
  static constexpr uint32_t kSums = kReduce + 64 * 4;            // of kScoreThreads / 16 runs
  static constexpr uint32_t kTotal = kSums + kScoreThreads / 16 * 4;
  static constexpr uint32_t kListed = kTotal + 8;
  static constexpr uint32_t kBytes = kListed + 8;
};

}  // namespace atlas::kernels
