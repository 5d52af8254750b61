// Matrix instructions of four warps that run on while their lanes do (wgmma). Sums are made at once
// but given to the lanes by the wait: until then a NaN stands in their place, and what the
// instruction reads is compared at the end with what it was at the begin.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/common/device/fragments.h"
#include "tests/support/simt/lanes.h"

namespace atlas::simt {
namespace {

constexpr uint32_t kPiece = 16;

/// The descriptor's fields that there is an emulation of.
struct MatrixFields {
  uint64_t begin, group_bytes;
  bool known;
};
MatrixFields fields_of(uint64_t descriptor) {
  constexpr uint64_t kField = 0x3fff;
  return {(descriptor & kField) * 16, (descriptor >> 32 & kField) * 16,
          descriptor >> 62 == 1 && (descriptor >> 49 & 7) == 0};
}

}  // namespace

void Run::matrix_proxy_fence() {
  enter_epoch(*lane);
  lane->proxy_fences.push_back(stamp(false));
  lane->shown_epoch = lane->home->epoch;
  lane->shown.join(lane->known);
}

// The first fence that the writer made behind the write must lie before what the reader knows, or
// the write before the reader's last fence.
bool Run::check_proxy(const Place& place, uint32_t bytes, Site site) {
  for (const Granule& granule : place.region->granules(place.offset, bytes, number_)) {
    if (!granule.write || granule.proxy_fences == ~0u) continue;  // or by the copy engine
    const Lane& writer = *lane->home->lanes[granule.write.thread()];
    const bool fenced = granule.proxy_fences < writer.proxy_fences.size() &&
                        ordered(writer.proxy_fences[granule.proxy_fences]);
    const bool shown =
        granule.write.epoch() < lane->shown_epoch || lane->shown.covers(granule.write);
    if (fenced || shown) continue;
    fault(FaultKind::kProxy, *lane, site,
          fmt::format(
              "reads bytes at {} of shared memory, which thread {} wrote and showed to matrix "
              "instructions by no fence before the barrier",
              place.offset, granule.write.thread()));
    return false;
  }
  return true;
}

bool Run::read_wgmma_matrix(const Lane& of, RunningMatrix& matrix) {
  const MatrixFields fields = fields_of(of.matrix_b);
  if (!fields.known) {
    fault(FaultKind::kMatrix, of, of.site, "takes a matrix in an order that is not emulated");
    return false;
  }
  for (uint32_t row = 0; row < of.columns; ++row) {
    for (uint32_t half = 0; half < 2; ++half) {
      const uint64_t straight = fields.begin + row / 8 * fields.group_bytes +
                                row % 8 * device::kWgmmaRowBytes + half * kPiece;
      const uint64_t offset = device::wgmma_swizzled(static_cast<uint32_t>(straight));
      Place place;
      const auto* address = reinterpret_cast<const void*>(kDeviceBit | (kOrigin + offset));
      if (!resolve(address, kPiece, false, of.site, place)) return false;
      const uint8_t* written = place.region->written() + offset;
      const bool absent = std::find(written, written + kPiece, 0) != written + kPiece;
      if (!absent && !check_written(place, kPiece, of.site, "multiplies with")) return false;
      order_read(place, kPiece, false, of.site);
      if (!check_proxy(place, kPiece, of.site)) return false;
      matrix.b_places.push_back(offset);
      const auto* bytes = reinterpret_cast<const uint8_t*>(place.bytes());
      matrix.b_bytes.insert(matrix.b_bytes.end(), bytes, bytes + kPiece);
      matrix.b.insert(matrix.b.end(), bytes, bytes + kPiece);
      // A tile may have more rows than there are: those that nothing has written have sums that are
      // no numbers.
      if (absent) std::fill(matrix.b.end() - kPiece, matrix.b.end(), uint8_t{0x7f});
    }
  }
  return true;
}

void Run::run_wgmma(Warp& warp) {
  const Lane& first = *warp.lanes[0];
  if (warp.matrices.empty()) warp.matrices.emplace_back();
  switch (lane->call) {
    case WarpCall::kWgmmaFence:
      warp.matrix_fence = true;
      return;
    case WarpCall::kWgmmaCommit:
      warp.matrices.emplace_back();
      warp.matrix_fence = false;
      return;
    case WarpCall::kWgmmaWait:
      return wait_wgmma(warp, lane->value);
    default:
      break;
  }
  ++report_.matrix[static_cast<uint32_t>(first.matrix)];
  ++warp.matrix_count;
  if (!warp.matrix_fence) {
    fault(FaultKind::kMatrix, first, first.site,
          "begins a group of matrix instructions with no fence for their registers before it");
  }
  RunningMatrix matrix;
  matrix.c = static_cast<const float*>(first.c);
  matrix.site = first.site;
  const uint32_t count = first.columns / 2;
  RunningSums& sums = warp.sums[matrix.c];
  const bool fresh = sums.instructions == 0;
  if (fresh) {
    sums.count = count;
    sums.values.resize(size_t{count} * Warp::kLanes);
  }
  for (uint32_t i = 0; i < Warp::kLanes; ++i) {
    const Lane& one = *warp.lanes[i];
    if (one.matrix_b != first.matrix_b || one.add != first.add || sums.count != count) {
      return fault(FaultKind::kMatrix, one, one.site,
                   "brings another matrix, or other sums, than its warp's first lane");
    }
    matrix.a[i] = one.a;
    std::copy_n(one.a, 4, matrix.a_words[i]);
    auto* c = static_cast<float*>(one.c);
    if (!fresh) continue;
    sums.of[i] = c;
    std::copy_n(c, count, sums.values.begin() + ptrdiff_t{count} * i);
    for (uint32_t r = 0; r < count; ++r) std::memcpy(c + r, &kUnderWayBits, sizeof(float));
  }
  if (!read_wgmma_matrix(first, matrix)) matrix.b.assign(size_t{first.columns} * 32, 0);
  run_wgmma_instruction(first.matrix, matrix.a_words, matrix.b.data(), first.columns, first.add,
                        sums.values.data());
  ++sums.instructions;
  warp.matrices.back().push_back(std::move(matrix));
}

void Run::end_wgmma(Warp& warp, const RunningMatrix& matrix) {
  const Lane& first = *warp.lanes[0];
  for (uint32_t i = 0; i < Warp::kLanes; ++i) {
    if (std::equal(matrix.a_words[i], matrix.a_words[i] + 4, matrix.a[i])) continue;
    fault(FaultKind::kUnderWay, *warp.lanes[i], matrix.site,
          "begins a matrix instruction whose words of A change before it has been waited for");
    break;
  }
  for (size_t i = 0; i < matrix.b_places.size(); ++i) {
    Place place;
    const auto* address =
        reinterpret_cast<const void*>(kDeviceBit | (kOrigin + matrix.b_places[i]));
    if (!resolve(address, kPiece, false, matrix.site, place)) break;
    // Up to here it may read: what comes later is ordered behind the wait.
    order_read(place, kPiece, false, matrix.site);
    if (std::memcmp(place.bytes(), matrix.b_bytes.data() + kPiece * i, kPiece) == 0) continue;
    fault(FaultKind::kUnderWay, first, matrix.site,
          fmt::format("begins a matrix instruction that reads bytes at {} of shared memory, which "
                      "change before it has been waited for",
                      matrix.b_places[i]));
    break;
  }
  RunningSums& sums = warp.sums[matrix.c];
  if (--sums.instructions != 0) return;
  bool touched = false;
  for (uint32_t i = 0; i < Warp::kLanes; ++i) {
    for (uint32_t r = 0; r < sums.count; ++r) {
      touched = touched || std::memcmp(sums.of[i] + r, &kUnderWayBits, sizeof(float)) != 0;
    }
    std::copy_n(sums.values.begin() + ptrdiff_t{sums.count} * i, sums.count, sums.of[i]);
  }
  if (touched) {
    fault(FaultKind::kUnderWay, first, matrix.site,
          "begins a matrix instruction whose sums are written before it has been waited for");
  }
  warp.sums.erase(matrix.c);
}

void Run::wait_wgmma(Warp& warp, uint32_t groups_left) {
  if (!warp.matrices.back().empty()) {
    fault(FaultKind::kMatrix, *lane, lane->site,
          "waits for matrix instructions while a group of them is not closed");
  }
  while (warp.matrices.size() > size_t{groups_left} + 1) {
    for (const RunningMatrix& matrix : warp.matrices.front()) end_wgmma(warp, matrix);
    warp.matrices.pop_front();
  }
}

void Run::check_wgmma_end(Block& block) {
  for (size_t w = 0; w < block.warps.size(); ++w) {
    Warp& warp = block.warps[w];
    lane = warp.lanes[0];
    if (!warp.sums.empty()) {
      fault(FaultKind::kUnderWay, *lane, lane->site,
            "returns while matrix instructions of its warp are under way");
    }
    const uint32_t same = block.warps[w / device::kWgmmaWarps * device::kWgmmaWarps].matrix_count;
    if (warp.matrix_count != same) {
      fault(FaultKind::kMatrix, *lane, lane->site,
            fmt::format(
                "has returned after {} matrix instructions of four warps; another warp of the "
                "four made {}",
                warp.matrix_count, same));
    }
  }
}

}  // namespace atlas::simt
