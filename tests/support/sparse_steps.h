// One layer of plugin `qsa` (or `gqa`, its dense case) over texts of random numbers, step by step,
// and the same choice and attention in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/common/qsa.h"
#include "tests/support/numbers.h"
#include "tests/support/row_steps.h"

namespace atlas::test {

struct SparseShape {
  uint32_t heads, kv_heads, head_dim;
  uint32_t index_heads, index_dim, rotary_dim, ratio, budget;
};

/// The table of `qsa` or `gqa`.
inline const AtlasAttentionApi& sparse_plugin(const std::string& name) {
  static const AtlasAttentionApi& qsa = attention_plugin("qsa");
  static const AtlasAttentionApi& gqa = attention_plugin("gqa");
  return name == "qsa" ? qsa : gqa;
}

/// Ids of a problem's buffers.
enum SparseBuffer : uint32_t {
  kQ,
  kK,
  kV,
  kIndexQ,
  kIndexK,
  kNorm,
  kFrequencies,
  kOut,
  kControl,
  kPages,
  kSlots,
  kWork
};

struct SparseProblem {
  AtlasAttentionProblem problem{};
  AtlasIndexer indexer{};
};

/// A valid problem of `shape`.
inline void fill_sparse_problem(SparseProblem& p, const SparseShape& shape, uint32_t max_rows,
                                uint32_t max_pages) {
  AtlasIndexer& indexer = p.indexer;
  indexer.struct_size = sizeof(indexer);
  indexer.heads = shape.index_heads;
  indexer.head_dim = shape.index_dim;
  indexer.budget = shape.budget;
  indexer.ratio = shape.ratio;
  indexer.rotary_dim = shape.rotary_dim;
  indexer.epsilon = 1e-6f;
  indexer.magnitude = 1.0f;
  indexer.q_stride = shape.index_heads * shape.index_dim + 2;
  indexer.k_stride = shape.index_dim + 3;
  indexer.q.buffer = kIndexQ;
  indexer.k.buffer = kIndexK;
  indexer.k_norm.buffer = kNorm;
  indexer.inverse_frequencies.buffer = kFrequencies;
  AtlasAttentionProblem& problem = p.problem;
  problem.struct_size = sizeof(problem);
  problem.max_rows = max_rows;
  problem.platform = "cpu";
  problem.backend = "qsa";
  problem.heads = shape.heads;
  problem.kv_heads = shape.kv_heads;
  problem.head_dim = shape.head_dim;
  problem.max_sequences = 8;
  problem.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  problem.max_pages = max_pages;
  problem.q_stride = shape.heads * shape.head_dim + 5;
  problem.k_stride = shape.kv_heads * shape.head_dim + 1;
  problem.v_stride = shape.kv_heads * shape.head_dim + 2;
  problem.out_stride = shape.heads * shape.head_dim + 3;
  problem.q.buffer = kQ;
  problem.k.buffer = kK;
  problem.v.buffer = kV;
  problem.out.buffer = kOut;
  problem.control.buffer = kControl;
  problem.rows = {kControl, 0, offsetof(kernels::StepControl, step)};
  problem.pages.buffer = kPages;
  problem.slots.buffer = kSlots;
  problem.anchors.buffer = ATLAS_NO_BUFFER;
  problem.workspace.buffer = kWork;
  problem.page_stride =
      4 * kernels::qsa_page_floats(shape.kv_heads, shape.head_dim, shape.index_dim, shape.ratio) +
      256;
  problem.slot_stride = uint64_t{kernels::qsa_ring_rows(shape.ratio)} * shape.index_dim * 4 + 64;
  problem.indexer = &indexer;
}

/// What a text brings to the layer at every position.
struct SparseText {
  std::vector<float> q, k, v, index_q, index_k;
};

/// Text `number`: `positions` of random numbers.
inline SparseText sparse_text(const SparseShape& shape, uint32_t number, size_t positions) {
  const size_t dim = shape.head_dim, index_dim = shape.index_dim;
  return {normal_values(positions * shape.heads * dim, 10 * number + 1),
          normal_values(positions * shape.kv_heads * dim, 10 * number + 2),
          normal_values(positions * shape.kv_heads * dim, 10 * number + 3),
          normal_values(positions * shape.index_heads * index_dim, 10 * number + 4),
          normal_values(positions * index_dim, 10 * number + 5)};
}

inline std::vector<float> sparse_norm(const SparseShape& shape) {
  return normal_values(shape.index_dim, 1001);
}
inline std::vector<float> sparse_frequencies(const SparseShape& shape) {
  std::vector<float> frequencies(shape.rotary_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = static_cast<float>(std::pow(1e4, -2.0 * i / shape.rotary_dim));
  }
  return frequencies;
}

/// Pooled index keys of a text's first `count` blocks, in float64.
inline std::vector<double> pooled_keys(const SparseShape& shape, const SparseText& text,
                                       uint32_t count) {
  const std::vector<float> norm = sparse_norm(shape), frequencies = sparse_frequencies(shape);
  const size_t n = shape.index_dim, half = shape.rotary_dim / 2;
  std::vector<double> keys(count * n);
  for (size_t b = 0; b < count; ++b) {
    double* key = keys.data() + b * n;
    double squares = 0;
    for (size_t d = 0; d < n; ++d) {
      for (size_t i = 0; i < shape.ratio; ++i) {
        key[d] += double{text.index_k[(b * shape.ratio + i) * n + d]};
      }
      key[d] /= shape.ratio;
      squares += key[d] * key[d];
    }
    for (size_t d = 0; d < n; ++d) key[d] *= double{norm[d]} / std::sqrt(squares / n + 1e-6);
    for (size_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(static_cast<float>(b * shape.ratio) * frequencies[i]);
      const double x = key[i], y = key[i + half];
      key[i] = x * std::cos(angle) - y * std::sin(angle);
      key[i + half] = y * std::cos(angle) + x * std::sin(angle);
    }
  }
  return keys;
}

/// The positions that row `index` attends to, given its index queries and the pooled keys. Empty if
/// the choice hangs on a difference below `apart`, or below `apart_of_best` times the best score.
inline std::vector<uint32_t> chosen_positions(const SparseShape& shape, uint32_t index,
                                              const float* index_q, const std::vector<double>& keys,
                                              double apart, double apart_of_best) {
  const uint32_t ratio = shape.ratio, count = (index + 1) / ratio, most = shape.budget / ratio;
  std::vector<double> score(count, 0.0);
  for (size_t b = 0; b < count; ++b) {
    for (size_t h = 0; h < shape.index_heads; ++h) {
      double dot = 0;
      for (size_t d = 0; d < shape.index_dim; ++d) {
        dot += double{index_q[h * shape.index_dim + d]} * keys[b * shape.index_dim + d];
      }
      score[b] += std::max(dot, 0.0);
    }
  }
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return score[a] > score[b]; });
  if (count > most) {
    const double gap = score[order[most - 1]] - score[order[most]];
    if (gap != 0 && gap < std::max(apart, apart_of_best * score[order[0]])) return {};
    order.resize(most);
  }
  std::sort(order.begin(), order.end());
  std::vector<uint32_t> positions;
  for (const uint32_t b : order) {
    for (uint32_t i = 0; i < ratio; ++i) positions.push_back(b * ratio + i);
  }
  for (uint32_t p = count * ratio; p <= index; ++p) positions.push_back(p);
  return positions;
}

/// A layer with pages and slots, which hold NaN wherever nothing was written.
class SparseSteps {
 public:
  SparseSteps(const CpuPack& pack, const SparseShape& shape, uint32_t max_positions,
              uint32_t max_rows, const std::string& backend = "qsa", uint32_t slots = 8)
      : pack_(pack),
        shape_(shape),
        pages_a_slot_((max_positions + 63) / 64),
        rows_(max_rows, slots, pages_a_slot_, 1u << 20, kernels::kQsaAnchorTokens) {
    fill_sparse_problem(problem_, shape, max_rows, pages_a_slot_);
    AtlasAttentionProblem& p = problem_.problem;
    p.backend = backend.c_str();
    AtlasAttentionNeeds needs{};
    needs.struct_size = sizeof(needs);
    AtlasError error{sizeof(AtlasError), {}};
    if (sparse_plugin(backend).needs(&p, &needs, &error) != ATLAS_OK) {
      throw std::runtime_error(error.message);
    }
    pages_.assign(uint64_t{slots} * pages_a_slot_ * p.page_stride / sizeof(float), NAN);
    slots_.assign(slots * p.slot_stride / sizeof(float), NAN);
    workspace_.assign((needs.workspace_bytes + 3) / sizeof(float), NAN);
    q_.assign(max_rows * p.q_stride, NAN);
    k_.assign(max_rows * p.k_stride, NAN);
    v_.assign(max_rows * p.v_stride, NAN);
    index_q_.assign(max_rows * problem_.indexer.q_stride, NAN);
    index_k_.assign(max_rows * problem_.indexer.k_stride, NAN);
    out_.assign(max_rows * p.out_stride, NAN);
    norm_ = sparse_norm(shape);
    frequencies_ = sparse_frequencies(shape);
    AtlasRecordSink sink = records_.sink();
    if (sparse_plugin(backend).plan(&p, &sink, &error) != ATLAS_OK)
      throw std::runtime_error(error.message);
    records_.relocate({q_.data(), k_.data(), v_.data(), index_q_.data(), index_k_.data(),
                       norm_.data(), frequencies_.data(), out_.data(), &rows_.control(),
                       pages_.data(), slots_.data(), workspace_.data()});
  }

  HandRows& rows() { return rows_; }
  const PlannedRecords& records() const { return records_; }
  std::vector<float>& pages() { return pages_; }
  size_t width() const { return size_t{shape_.heads} * shape_.head_dim; }

  /// Which text the slot holds: its own number's unless said; `first`: the text's values begin at
  /// this position.
  void set_text(uint32_t slot, uint32_t text) { of_slot_[slot] = text; }
  void set_first(uint32_t position) { first_ = position; }
  SparseText& text(uint32_t number) {
    const auto found = texts_.find(number);
    if (found != texts_.end()) return found->second;
    const size_t n = pages_a_slot_ * size_t{64} - first_ + 8;
    return texts_[number] = sparse_text(shape_, number, n);
  }

  /// Runs a step; the outputs of the rows that count. Rows that do not are of another text.
  std::vector<float> step(const std::vector<RowPart>& parts, Split split = {}) {
    rows_.begin(parts);
    uint32_t row = 0;
    for (const RowPart& part : parts) {
      const auto named = of_slot_.find(part.slot);
      const uint32_t number = named == of_slot_.end() ? part.slot : named->second;
      for (uint32_t r = 0; r < part.rows; ++r, ++row) {
        put_row(text(r < part.counted ? number : 100 + number),
                rows_.length(part.slot) + r - first_, row);
      }
    }
    records_.run(pack_, split);
    rows_.end(parts);
    std::vector<float> all;
    row = 0;
    for (const RowPart& part : parts) {
      for (uint32_t r = 0; r < part.rows; ++r, ++row) {
        if (r >= part.counted) continue;
        const float* out = out_.data() + row * problem_.problem.out_stride;
        all.insert(all.end(), out, out + width());
      }
    }
    return all;
  }

  /// Pooled keys of a text's first `count` blocks.
  std::vector<double> exact_keys(uint32_t number, uint32_t count) {
    return pooled_keys(shape_, text(number), count);
  }
  /// Pooled keys as the slot's pages have them.
  std::vector<double> stored_keys(uint32_t slot, uint32_t count) {
    const size_t n = shape_.index_dim, page_blocks = 64 / shape_.ratio;
    std::vector<double> keys(count * n);
    for (size_t b = 0; b < count; ++b) {
      const float* from = page(slot, b / page_blocks) +
                          kernels::qsa_pooled_offset(shape_.kv_heads, shape_.head_dim);
      for (size_t d = 0; d < n; ++d) {
        keys[b * n + d] = from[d * kernels::qsa_pooled_stride(shape_.ratio) + b % page_blocks];
      }
    }
    return keys;
  }

  /// The positions that a row attends to, given the pooled keys; empty if the choice hangs on a
  /// difference that float32 may not see.
  std::vector<uint32_t> chosen(uint32_t number, uint32_t index, const std::vector<double>& keys) {
    const float* q =
        text(number).index_q.data() + (index - first_) * shape_.index_heads * shape_.index_dim;
    return chosen_positions(shape_, index, q, keys, 1e-5, 0);
  }

  std::vector<double> attend(uint32_t number, uint32_t index,
                             const std::vector<uint32_t>& positions,
                             const std::function<double(uint32_t, uint32_t, uint32_t)>& key,
                             const std::function<double(uint32_t, uint32_t, uint32_t)>& value) {
    const float* q = text(number).q.data() + (index - first_) * width();
    std::vector<double> out;
    for (uint32_t h = 0; h < shape_.heads; ++h) {
      const uint32_t kv = h / (shape_.heads / shape_.kv_heads);
      std::vector<double> weight;
      for (const uint32_t p : positions) {
        double dot = 0;
        for (uint32_t d = 0; d < shape_.head_dim; ++d) {
          dot += double{q[h * shape_.head_dim + d]} * key(p, kv, d);
        }
        weight.push_back(dot * problem_.problem.scale);
      }
      const double most = *std::max_element(weight.begin(), weight.end());
      double total = 0;
      for (double& w : weight) total += w = std::exp(w - most);
      for (uint32_t d = 0; d < shape_.head_dim; ++d) {
        double sum = 0;
        for (size_t i = 0; i < positions.size(); ++i) sum += weight[i] * value(positions[i], kv, d);
        out.push_back(sum / total);
      }
    }
    return out;
  }
  std::vector<double> exact(uint32_t number, uint32_t index,
                            const std::vector<uint32_t>& positions) {
    const SparseText& in = text(number);
    const auto of = [this](const std::vector<float>& values) {
      return [this, &values](uint32_t p, uint32_t kv, uint32_t d) {
        return double{values[(size_t{p} * shape_.kv_heads + kv) * shape_.head_dim + d]};
      };
    };
    return attend(number, index, positions, of(in.k), of(in.v));
  }
  std::vector<double> exact_stored(uint32_t slot, uint32_t index,
                                   const std::vector<uint32_t>& positions) {
    const auto head = [this, slot](uint32_t p, uint32_t kv) {
      return page(slot, p / 64) + kv * kernels::gqa_head_floats(shape_.head_dim);
    };
    return attend(
        slot, index, positions,
        [&](uint32_t p, uint32_t kv, uint32_t d) {
          return double{head(p, kv)[(p % 64 / 4 * shape_.head_dim + d) * 4 + p % 4]};
        },
        [&](uint32_t p, uint32_t kv, uint32_t d) {
          return double{head(
              p,
              kv)[shape_.head_dim * 64 + p % 64 * kernels::gqa_value_stride(shape_.head_dim) + d]};
        });
  }

  const float* page(uint32_t slot, size_t number) {
    const uint64_t place = rows_.control().block_table[slot * uint64_t{pages_a_slot_} + number];
    return pages_.data() + place * (problem_.problem.page_stride / sizeof(float));
  }

 private:
  void put_row(const SparseText& from, uint32_t position, uint32_t row) {
    const AtlasAttentionProblem& p = problem_.problem;
    const auto put = [&](const std::vector<float>& values, std::vector<float>& to, size_t count,
                         uint64_t stride) {
      std::copy_n(values.data() + position * count, count, to.data() + row * stride);
    };
    put(from.q, q_, width(), p.q_stride);
    put(from.k, k_, size_t{shape_.kv_heads} * shape_.head_dim, p.k_stride);
    put(from.v, v_, size_t{shape_.kv_heads} * shape_.head_dim, p.v_stride);
    put(from.index_q, index_q_, size_t{shape_.index_heads} * shape_.index_dim,
        problem_.indexer.q_stride);
    put(from.index_k, index_k_, shape_.index_dim, problem_.indexer.k_stride);
  }

  const CpuPack& pack_;
  SparseShape shape_;
  uint32_t pages_a_slot_;
  uint32_t first_ = 0;
  HandRows rows_;
  SparseProblem problem_;
  PlannedRecords records_;
  std::vector<float> pages_, slots_, workspace_, q_, k_, v_, index_q_, index_k_, out_, norm_,
      frequencies_;
  std::map<uint32_t, SparseText> texts_;
  std::map<uint32_t, uint32_t> of_slot_;
};

}  // namespace atlas::test
