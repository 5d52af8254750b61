// Barriers of phases in shared memory, and copies that they count, by the copy engine or a lane's.
// A copy arrives when somebody asks whether its barrier's phase has ended, and not before: until
// then its bytes are on their way.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/support/simt/lanes.h"

namespace atlas::simt {
namespace {

constexpr uint32_t kPiece = 16;
// Written by the copy engine, which matrix instructions need no fence for.
constexpr uint32_t kNoFence = ~0u;

const std::byte* at(const void* from, uint32_t offset) {
  return static_cast<const std::byte*>(from) + offset;
}
std::byte* at(void* to, uint32_t offset) { return static_cast<std::byte*>(to) + offset; }

}  // namespace

PhaseBarrier* Run::phase_of(const void* barrier, Site site) {
  Place place;
  if (!resolve(barrier, 8, true, site, place)) return nullptr;
  const auto found = lane->home->phases.find(place.offset);
  if (place.region->shared && found != lane->home->phases.end()) return &found->second;
  fault(FaultKind::kPhase, *lane, site,
        fmt::format("uses a barrier at byte {} of {}, where none has been made", place.offset,
                    place.region->name));
  return nullptr;
}

void Run::phase_init(const void* barrier, uint32_t arrivals, Site site) {
  Place place;
  if (!resolve(barrier, 8, true, site, place)) return;
  // Its words are written, so that what else is written there races with it.
  order_write(place, 8, false, site);
  PhaseBarrier made;
  made.arrivals = made.missing = arrivals;
  lane->home->phases[place.offset] = std::move(made);
}

void Run::end_phase(PhaseBarrier& barrier) {
  if (barrier.missing != 0 || barrier.bytes != 0) return;
  barrier.ended.join(barrier.gathering);
  barrier.gathering.clear();
  barrier.missing = barrier.arrivals;
  ++barrier.phase;
  advanced_ = true;
}

void Run::phase_arrive(const void* barrier, uint32_t expected_bytes, Site site) {
  PhaseBarrier* const of = phase_of(barrier, site);
  if (of == nullptr) return;
  advanced_ = true;
  if (of->missing == 0) {
    return fault(
        FaultKind::kPhase, *lane, site,
        fmt::format("arrives at a barrier whose phase has had its {} arrivals", of->arrivals));
  }
  enter_epoch(*lane);
  add_own(*lane, of->gathering);
  ++lane->clock;
  of->bytes += expected_bytes;
  --of->missing;
  end_phase(*of);
}

void Run::phase_arrive_copied(const void* barrier, Site site) {
  PhaseBarrier* const of = phase_of(barrier, site);
  if (of == nullptr) return;
  // The phase waits for the lane's copies as for those of the copy engine.
  for (const std::vector<AsyncCopy>& group : lane->copies) {
    for (const AsyncCopy& copy : group) {
      of->bytes += copy.bytes;
      of->copies.push_back(copy);
    }
  }
  lane->copies.clear();
  phase_arrive(barrier, 0, site);
}

void Run::bulk_copy(void* to, const void* from, uint32_t bytes, const void* barrier, Site site) {
  PhaseBarrier* const of = phase_of(barrier, site);
  if (of == nullptr) return;
  advanced_ = true;
  if (bytes == 0 || bytes % kPiece != 0) {
    return fault(
        FaultKind::kMisaligned, *lane, site,
        fmt::format("begins a copy of {} bytes, which are no multiple of {}", bytes, kPiece));
  }
  for (uint32_t offset = 0; offset < bytes; offset += kPiece) {
    Place source, target;
    if (!resolve(at(from, offset), kPiece, false, site, source)) return;
    if (!resolve(at(to, offset), kPiece, true, site, target)) return;
    if (!target.region->shared) {
      return fault(
          FaultKind::kNotDeviceMemory, *lane, site,
          fmt::format("begins a copy to {}, which is no shared memory", target.region->name));
    }
    if (!check_written(source, kPiece, site, "copies")) return;
    order_read(source, kPiece, false, site);
    count_read(source, reinterpret_cast<uint64_t>(at(from, offset)), kPiece);
    const uint8_t* written = target.region->written() + target.offset;
    if (std::find(written, written + kPiece, 2) != written + kPiece) {
      fault(FaultKind::kInFlight, *lane, site,
            fmt::format("begins a copy to byte {} of shared memory, while another copy to there is "
                        "under way",
                        target.offset));
    }
    order_write(target, kPiece, false, site);
    for (Granule& granule : target.region->granules(target.offset, kPiece, number_)) {
      granule.proxy_fences = kNoFence;
    }
    std::memset(target.region->written() + target.offset, 2, kPiece);
  }
  enter_epoch(*lane);
  add_own(*lane, of->gathering);
  ++lane->clock;
  of->copies.push_back({to, from, bytes, site});
}

void Run::deliver(PhaseBarrier& barrier) {
  for (const AsyncCopy& copy : barrier.copies) {
    for (uint32_t offset = 0; offset < copy.bytes; offset += kPiece) {
      const uint32_t piece = std::min(kPiece, copy.bytes - offset);
      Place source, target;
      if (!resolve(at(copy.from, offset), piece, false, copy.site, source)) continue;
      if (!resolve(at(copy.to, offset), piece, true, copy.site, target)) continue;
      std::memcpy(target.bytes(), source.bytes(), piece);
      std::memset(target.region->written() + target.offset, 1, piece);
      target.region->traffic.written_bytes += piece;
    }
    barrier.bytes -= copy.bytes;
  }
  if (barrier.copies.empty()) return;
  barrier.copies.clear();
  end_phase(barrier);
}

void Run::phase_wait(const void* barrier, uint32_t parity, Site site) {
  for (;;) {
    PhaseBarrier* const of = phase_of(barrier, site);
    if (of == nullptr) return;
    // A phase that has ended does not bring what it did not expect.
    if ((of->phase & 1) == parity) deliver(*of);
    if ((of->phase & 1) != parity) {
      lane->known.join(of->ended);
      return;
    }
    pause(site);
  }
}

}  // namespace atlas::simt
