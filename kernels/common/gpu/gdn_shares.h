// What gdn_attend makes of gates and of dot products among keys and queries before it comes to V:
// decays, and the shares A and B that earlier rows of the chunk have in later ones.
#pragma once

#include "kernels/common/gpu/gdn_few.h"

namespace atlas::kernels {

/// Gates and shares of many rows.
struct DeltaShares : DeltaFew {
  using DeltaFew::DeltaFew;

  /// Whether many_rows makes the next chunk's gates. RDNA, whose copies do not run on, makes them
  /// when they are needed.
  ATLAS_DEVICE bool gates_ahead() const { return kGdnAsync && is_many(next_rows()); }
  /// The first warp's: a and b of rows [row, row + rows), for gate_chunk.
  ATLAS_DEVICE void bring_gates(uint64_t row, uint32_t rows) const {
    using namespace device;
    ATLAS_UNROLL
    for (uint32_t n = 0; n < 2; ++n) {
      const uint32_t i = n * kLanes + thread_ % kLanes;
      if (i >= rows) continue;
      async_copy<4>(raw_gates_ + i, p_.a + (row + i) * p_.a_stride + head_);
      async_copy<4>(raw_gates_ + kGdnChunk + i, p_.b + (row + i) * p_.b_stride + head_);
    }
  }

  /// beta, G, e^G of rows [row, row + rows), the places [first, first + rows) of a chunk, and
  /// e^(G_L - G) of a full chunk's, into `gates`, by one warp, for which a and b are there. beta is
  /// 1 at the places before the rows and 0 at those behind.
  ATLAS_DEVICE void gate_chunk(float* gates, uint32_t first, uint64_t row, uint32_t rows) const {
    using namespace device;
    const uint32_t lane = thread_ % kLanes;
    const float rate = exp(load(p_.a_log + head_)), bias = load(p_.dt_bias + head_);
    float *decays = gates + kGdnChunk, *factors = gates + 2 * kGdnChunk;
    float sum = first == 0 ? 0.0f : load(decays + first - 1);
    ATLAS_UNROLL
    for (uint32_t n = 0; n < 2; ++n) {
      const uint32_t i = n * kLanes + lane;
      float step = 0.0f, beta = 0.0f;
      if (i < rows) {
        step = 0.0f - rate * gdn_softplus(load(raw_gates_ + i) + bias);
        beta = sigmoid(load(raw_gates_ + kGdnChunk + i));
      }
      float own = 0.0f;
      ATLAS_UNROLL
      for (uint32_t l = 0; l < kLanes; ++l) {
        sum += shuffle(step, l);
        own = lane == l ? sum : own;
      }
      if (i < first) store(gates + i, 1.0f);  // with them solve leaves V as it is
      if (first + i < kGdnChunk) {
        store(decays + first + i, own);
        store(gates + first + i, beta);
      }
      if (i >= rows) continue;
      store(factors + first + i, exp(own));
      if (first_column_ == 0) store(p_.decays + (row + i) * p_.value_heads + head_, own);
    }
    if (first + rows != kGdnChunk) return;
    warp_barrier();  // all lanes' G are written
    ATLAS_UNROLL
    for (uint32_t j = lane; j < kGdnChunk; j += kLanes) {
      store(gates + 3 * kGdnChunk + j, exp(sum - load(decays + j)));
    }
  }
  /// Those of the chunk at hand, behind which nothing else is under way.
  ATLAS_DEVICE void gate_this_chunk() const {
    using namespace device;
    if (thread_ / kLanes != 0) return;
    const uint32_t rows = chunk_.end - chunk_.first;
    bring_gates(row_, rows);
    async_commit();
    async_wait<0>();
    gate_chunk(beta_, chunk_.first, row_, rows);
  }

  /// Shares of V_j in row i: of A, then of B, block after block of 8 by 8 up to the diagonal, in a
  /// block row after row, from the fifth on 4 further, so that banks differ. Zeros where there are
  /// none.
  ATLAS_DEVICE float* share_block(uint32_t row_group, uint32_t j_group, bool is_query) const {
    const uint32_t block = row_group * (row_group + 1) / 2 + j_group;
    return work_ + ((is_query ? kGdnBlocks : 0) + block) * kGdnBlockStride;
  }
  static constexpr uint32_t kShareSkip = 4;
  ATLAS_DEVICE static uint32_t share_row(uint32_t row) {
    return row * kGdnGroup + row / 4 * kShareSkip;
  }
  /// Dot products that a thread makes shares of: a warp has the blocks of one row group from above
  /// and one from below, nine in all, of which a lane has a quad of every second one.
  static constexpr uint32_t kShareQuads = (kGdnGroups + 2) / 2;
  struct ShareQuads {
    device::Floats4 of_key[kShareQuads], of_query[kShareQuads];
  };
  struct ShareQuad {
    bool there;   // there is such a block
    bool inside;  // and the step has shares in this quad
    uint32_t row_group, j_group, row, half;

    ATLAS_DEVICE uint32_t place() const { return row_group * kGdnGroup + row; }
    ATLAS_DEVICE uint32_t first() const { return j_group * kGdnGroup + half; }
  };
  ATLAS_DEVICE ShareQuad share_quad(uint32_t n) const {
    const uint32_t lane = thread_ % kLanes, pair = thread_ / kLanes;
    const uint32_t block = 2 * n + lane / 16;
    ShareQuad quad;
    quad.there = block <= kGdnGroups;
    quad.row_group = block <= pair ? pair : kGdnGroups - 1 - pair;
    quad.j_group = block <= pair ? block : block - pair - 1;
    quad.row = lane % kGdnGroup;
    quad.half = lane / kGdnGroup % 2 * 4;
    quad.inside = quad.there && quad.place() >= chunk_.first && quad.place() < chunk_.end &&
                  quad.first() <= quad.place();
    return quad;
  }
  ATLAS_DEVICE void bring_shares(ShareQuads& shares) const {
    using namespace device;
    ATLAS_UNROLL
    for (uint32_t n = 0; n < kShareQuads; ++n) {
      const ShareQuad quad = share_quad(n);
      shares.of_key[n] = shares.of_query[n] = {};
      if (!quad.inside) continue;
      const float* from = dots(quad.place()) + quad.first();
      shares.of_key[n] = load_as<Floats4>(from);
      shares.of_query[n] = load_as<Floats4>(from + kGdnChunk);
    }
  }
  ATLAS_DEVICE void write_shares(const ShareQuads& shares) const {
    using namespace device;
    ATLAS_UNROLL
    for (uint32_t n = 0; n < kShareQuads; ++n) {
      const ShareQuad quad = share_quad(n);
      schedule_barrier();
      if (!quad.there) continue;
      Floats4 a{}, b{};
      if (quad.inside) {
        const float own = load(decay_ + quad.place()), beta = load(beta_ + quad.place());
        const Floats4 decays = load_as<Floats4>(decay_ + quad.first());
        ATLAS_UNROLL
        for (uint32_t e = 0; e < 4; ++e) {
          const bool before = quad.first() + e <= quad.place();
          const float decay = exp(own - decays.f[e]);
          a.f[e] = before ? (beta * shares.of_key[n].f[e]) * decay : 0.0f;
          b.f[e] = before ? shares.of_query[n].f[e] * decay : 0.0f;
        }
      }
      const uint32_t at = share_row(quad.row) + quad.half;
      store_as(share_block(quad.row_group, quad.j_group, false) + at, a);
      store_as(share_block(quad.row_group, quad.j_group, true) + at, b);
    }
  }
};

}  // namespace atlas::kernels
