// What a lane does to memory: where an address leads, whether it may, and whether another access
// stands beside it that nothing orders.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "tests/support/simt/lanes.h"

namespace atlas::simt {
namespace {

constexpr std::align_val_t kRegionAlignment{256};
constexpr uint64_t kSectorBytes = 32;
constexpr uint32_t kPollsBeforePause = 16;

bool releases(Order order) { return order == Order::kRelease || order == Order::kAcqRel; }
bool acquires(Order order) { return order == Order::kAcquire || order == Order::kAcqRel; }

template <typename T>
T applied(AtomicOp op, T old, T operand, T expected) {
  switch (op) {
    case AtomicOp::kLoad:
      return old;
    case AtomicOp::kStore:
    case AtomicOp::kExchange:
      return operand;
    case AtomicOp::kAdd:
      return static_cast<T>(static_cast<uint64_t>(old) + static_cast<uint64_t>(operand));
    case AtomicOp::kOr:
      return old | operand;
    case AtomicOp::kAnd:
      return old & operand;
    case AtomicOp::kMax:
      return std::max(old, operand);
    case AtomicOp::kMin:
      return std::min(old, operand);
    case AtomicOp::kCompareExchange:
      return old == expected ? operand : old;
  }
  return old;
}

template <typename T>
uint64_t apply(AtomicOp op, std::byte* at, uint64_t operand, uint64_t expected) {
  T old;
  std::memcpy(&old, at, sizeof(T));
  const T value = applied(op, old, static_cast<T>(operand), static_cast<T>(expected));
  std::memcpy(at, &value, sizeof(T));
  return static_cast<uint64_t>(old);
}

}  // namespace

void Region::Free::operator()(std::byte* memory) const {
  ::operator delete(memory, kRegionAlignment);
}

void Region::resize(uint64_t bytes, bool is_written) {
  bytes_.reset(
      static_cast<std::byte*>(::operator new(std::max<uint64_t>(bytes, 1), kRegionAlignment)));
  data_ = bytes_.get();
  size_ = bytes;
  written_.clear();
  if (!is_written) written_.assign(bytes, 0);
  granules_.clear();
  page_launch_.clear();
  shift_ = 2;
}

void Region::attach(std::byte* memory, uint64_t bytes) {
  resize(0, true);
  data_ = memory;
  size_ = bytes;
}

void Region::forget(uint64_t garbage) {
  std::fill(written_.begin(), written_.end(), uint8_t{0});
  // Quiet NaNs as float32, and different ones for each seed.
  const auto pattern = static_cast<uint32_t>(0x7fc00000u | (garbage & 0x3fffffu));
  for (uint64_t i = 0; i + 4 <= size_; i += 4) std::memcpy(data() + i, &pattern, 4);
}

std::span<Granule> Region::granules(uint64_t offset, uint32_t bytes, uint32_t launch) {
  if (shift_ == 2 && (bytes < 4 || granules_.empty())) {
    // Lanes that write neighbouring bytes do not race, so such regions are watched byte by byte.
    // What was seen of this launch so far is spread over the bytes.
    const uint32_t shift = bytes < 4 ? 0 : 2;
    const uint64_t count = (size_ >> shift) + 1;
    std::vector<Granule> finer(count);
    std::vector<uint32_t> pages(count / kPage + 1, 0);
    if (!granules_.empty()) {
      for (uint64_t i = 0; i < count; ++i) {
        if (page_launch_[(i >> 2) / kPage] == launch) finer[i] = granules_[i >> 2];
      }
      std::fill(pages.begin(), pages.end(), launch);
    }
    granules_ = std::move(finer);
    page_launch_ = std::move(pages);
    shift_ = shift;
  }
  const uint64_t first = offset >> shift_;
  const uint64_t count = std::max<uint64_t>(1, bytes >> shift_);
  for (uint64_t page = first / kPage; page <= (first + count - 1) / kPage; ++page) {
    if (page_launch_[page] == launch) continue;
    const auto begin = granules_.begin() + static_cast<ptrdiff_t>(page * kPage);
    std::fill(
        begin,
        begin + static_cast<ptrdiff_t>(std::min<uint64_t>(kPage, granules_.size() - page * kPage)),
        Granule());
    page_launch_[page] = launch;
  }
  return std::span(granules_).subspan(first, count);
}

Region* Run::host_region(uint64_t address, uint64_t& offset) const {
  auto after = host_.upper_bound(address);
  if (after == host_.begin()) return nullptr;
  const auto& [begin, region] = *--after;
  offset = address - begin;
  return offset < region->size() ? region.get() : nullptr;
}

bool Run::resolve(const void* address, uint32_t bytes, bool writes, Site site, Place& place) {
  const auto a = reinterpret_cast<uint64_t>(address);
  const char* verb = writes ? "writes" : "reads";
  const uint64_t id = (a & ~kDeviceBit) >> kBufferShift;
  const bool device = (a & kDeviceBit) != 0;
  uint64_t offset = (a & ((uint64_t{1} << kBufferShift) - 1)) - kOrigin;
  Region* const of_host = device ? nullptr : host_region(a, offset);
  if (device ? id > regions_.size() : of_host == nullptr) {
    fault(FaultKind::kNotDeviceMemory, *lane, site,
          fmt::format("{} {} bytes at {:#x}, which is no device memory{}", verb, bytes, a,
                      a == 0 ? " (a null pointer)" : ""));
    return false;
  }
  Region& region = !device ? *of_host : id == 0 ? lane->home->shared : *regions_[id - 1];
  if (offset > region.size() || bytes > region.size() - offset) {
    fault(FaultKind::kOutOfBounds, *lane, site,
          fmt::format("{} {} bytes at byte {} of {}, which has {}", verb, bytes,
                      static_cast<int64_t>(offset), region.name, region.size()));
    return false;
  }
  if (offset % bytes != 0) {
    fault(FaultKind::kMisaligned, *lane, site,
          fmt::format("{} {} bytes at byte {} of {}, which is not aligned to them", verb, bytes,
                      offset, region.name));
    return false;
  }
  if (writes && !region.writable) {
    fault(FaultKind::kReadOnly, *lane, site,
          fmt::format("writes {} bytes at byte {} of {}, which is an input", bytes, offset,
                      region.name));
    return false;
  }
  place = {&region, offset};
  return true;
}

bool Run::check_written(const Place& place, uint32_t bytes, Site site, const char* what) {
  if (!place.region->tracks_writes()) return true;
  const uint8_t* written = place.region->written() + place.offset;
  for (uint32_t i = 0; i < bytes; ++i) {
    if (written[i] == 1) continue;
    const bool in_flight = written[i] == 2;
    fault(in_flight ? FaultKind::kInFlight : FaultKind::kUnwritten, *lane, site,
          fmt::format("{} {} bytes at byte {} of {}, {}", what, bytes, place.offset,
                      place.region->name,
                      in_flight ? "while an asynchronous copy to there is under way"
                                : "which nothing has written"));
    return false;
  }
  return true;
}

void Run::count_read(const Place& place, uint64_t address, uint32_t bytes) {
  Traffic& traffic = place.region->traffic;
  traffic.read_bytes += bytes;
  if (place.region->shared) return;
  const uint64_t sector = address / kSectorBytes;
  std::vector<uint64_t>& recent = lane->home->recent;
  uint64_t& slot = recent[(sector ^ sector >> 10) % recent.size()];
  if (slot == sector) return;
  slot = sector;
  traffic.fetched_bytes += kSectorBytes;
}

bool Run::ordered(Stamp access) const {
  const Lane& me = *lane;
  const Block& block = *me.home;
  if (access.block() == block.linear) {
    if (access.epoch() < block.epoch || access.thread() == me.thread) return true;
    const bool same_warp = access.thread() / Lane::kWarpSize == me.thread / Lane::kWarpSize;
    if (same_warp && me.clock_epoch == block.epoch &&
        access.clock() <= me.seen[access.thread() % Lane::kWarpSize]) {
      return true;
    }
  }
  if (access.epoch() == Stamp::kMaxCount || access.clock() == Stamp::kMaxCount) return true;
  return me.known.covers(access) || block.known.covers(access);
}

void Run::report_race(const Place& place, uint32_t bytes, Stamp other, Site other_site,
                      const char* mine, const char* theirs, Site site) {
  fault(
      FaultKind::kRace, *lane, site,
      fmt::format(
          "{} {} bytes at byte {} of {}, which thread {} of block {} {}{}; nothing orders the two",
          mine, bytes, place.offset, place.region->name, other.thread(), other.block(), theirs,
          other_site.line() == 0
              ? ""
              : fmt::format(" at {}:{}", other_site.file_name(), other_site.line())));
}

void Run::order_read(const Place& place, uint32_t bytes, bool atomic, Site site) {
  if (!place.region->writable) return;
  const Stamp mine = stamp(atomic);
  for (Granule& granule : place.region->granules(place.offset, bytes, number_)) {
    // Shared memory is handed from block to block: what another block did there is no access of
    // this.
    if (place.region->shared && granule.write && granule.write.block() != mine.block())
      granule = {};
    if (place.region->shared && granule.read && granule.read.block() != mine.block()) granule = {};
    if (granule.write && !(atomic && granule.write.atomic()) && !ordered(granule.write)) {
      return report_race(place, bytes, granule.write, granule.write_site, "reads", "wrote", site);
    }
    if (granule.read && !granule.read.same_thread(mine)) {
      const bool other_warp =
          granule.read.block() != mine.block() ||
          granule.read.thread() / Lane::kWarpSize != mine.thread() / Lane::kWarpSize;
      // One reader of another warp is kept, for a write must be ordered behind it too.
      if (other_warp || !granule.other_read) granule.other_read = granule.read;
    }
    granule.read = mine;
    granule.read_site = site;
  }
}

void Run::order_write(const Place& place, uint32_t bytes, bool atomic, Site site) {
  const Stamp mine = stamp(atomic);
  for (Granule& granule : place.region->granules(place.offset, bytes, number_)) {
    if (place.region->shared && granule.write && granule.write.block() != mine.block())
      granule = {};
    if (place.region->shared && granule.read && granule.read.block() != mine.block()) granule = {};
    if (granule.write && !(atomic && granule.write.atomic()) && !ordered(granule.write)) {
      return report_race(place, bytes, granule.write, granule.write_site, "writes", "wrote", site);
    }
    for (const Stamp read : {granule.read, granule.other_read}) {
      if (read && !(atomic && read.atomic()) && !ordered(read)) {
        return report_race(place, bytes, read, granule.read_site, "writes", "read", site);
      }
    }
    granule.write = mine;
    granule.write_site = site;
    granule.proxy_fences = static_cast<uint32_t>(lane->proxy_fences.size());
    granule.read = granule.other_read = Stamp();
  }
}

void Run::read(const void* from, void* to, uint32_t bytes, Site site) {
  advanced_ = true;
  Place place;
  if (!resolve(from, bytes, false, site, place)) {
    std::memset(to, 0, bytes);
    return;
  }
  std::memcpy(to, place.bytes(), bytes);
  count_read(place, reinterpret_cast<uint64_t>(from), bytes);
  if (check_written(place, bytes, site, "reads")) order_read(place, bytes, false, site);
}

void Run::write(void* to, const void* from, uint32_t bytes, Site site) {
  advanced_ = true;
  Place place;
  if (!resolve(to, bytes, true, site, place)) return;
  order_write(place, bytes, false, site);
  std::memcpy(place.bytes(), from, bytes);
  for (uint32_t i = 0; i + 4 <= bytes; i += 4) {
    if (std::memcmp(place.bytes() + i, &kUnderWayBits, 4) != 0) continue;
    fault(FaultKind::kUnderWay, *lane, site,
          "writes sums that a matrix instruction had not finished when they were read");
  }
  place.region->traffic.written_bytes += bytes;
  if (place.region->tracks_writes()) std::memset(place.region->written() + place.offset, 1, bytes);
}

void Run::add_own(const Lane& of, Knowledge& to) const {
  BlockKnowledge& own = to.of(of.home->linear);
  own.complete = std::max(own.complete, of.home->epoch);
  own.add({of.thread, of.home->epoch, of.clock});
  for (uint32_t other = 0; other < Lane::kWarpSize; ++other) {
    if (of.seen[other] == 0 || other == of.lane) continue;
    own.add({of.thread - of.lane + other, of.home->epoch, of.seen[other]});
  }
  to.join(of.known);
  to.join(of.home->known);
}

uint64_t Run::atomic(AtomicOp op, void* at, uint64_t operand, uint64_t expected, uint32_t bytes,
                     bool is_signed, Order order, Site site) {
  const bool writes = op != AtomicOp::kLoad, reads = op != AtomicOp::kStore;
  Place place;
  if (!resolve(at, bytes, writes, site, place)) return 0;
  if (reads) {
    if (!check_written(place, bytes, site, "changes")) return 0;
    place.region->traffic.read_bytes += bytes;
    if (!place.region->shared) place.region->traffic.fetched_bytes += kSectorBytes;
  }
  if (writes) {
    order_write(place, bytes, true, site);
    place.region->traffic.written_bytes += bytes;
    if (place.region->tracks_writes())
      std::memset(place.region->written() + place.offset, 1, bytes);
  } else {
    order_read(place, bytes, true, site);
  }

  // Shared memory of different blocks has one address.
  const uint64_t key =
      reinterpret_cast<uint64_t>(at) ^ (place.region->shared ? lane->home->linear : 0);
  enter_epoch(*lane);
  if (reads) {
    const auto found = sync_.find(key);
    if (found != sync_.end()) (acquires(order) ? lane->known : lane->pending).join(found->second);
  }
  if (writes) {
    if (op == AtomicOp::kStore) sync_[key].clear();
    if (releases(order)) {
      add_own(*lane, sync_[key]);
      ++lane->clock;
    } else if (!lane->released.empty()) {
      sync_[key].join(lane->released);
    }
  }
  uint64_t before = 0;
  std::memcpy(&before, place.bytes(), bytes);
  uint64_t old;
  if (bytes == 8) {
    old = is_signed ? apply<int64_t>(op, place.bytes(), operand, expected)
                    : apply<uint64_t>(op, place.bytes(), operand, expected);
  } else {
    old = is_signed ? apply<int32_t>(op, place.bytes(), operand, expected)
                    : apply<uint32_t>(op, place.bytes(), operand, expected);
  }
  uint64_t after = 0;
  std::memcpy(&after, place.bytes(), bytes);
  if (before != after || op == AtomicOp::kStore) {
    advanced_ = true;
    lane->polls = 0;
  } else if (++lane->polls % kPollsBeforePause == 0) {
    pause(site);  // a loop that waits for another lane lets it run
  }
  return old;
}

void Run::fence(Order order) {
  enter_epoch(*lane);
  if (acquires(order)) lane->known.join(lane->pending);
  if (releases(order)) {
    lane->released.clear();
    add_own(*lane, lane->released);
    ++lane->clock;
  }
}

void Run::begin_copy(void* to, const void* from, uint32_t bytes, Site site) {
  advanced_ = true;
  Place source, target;
  if (!resolve(from, bytes, false, site, source) || !resolve(to, bytes, true, site, target)) return;
  if (!target.region->shared) {
    return fault(FaultKind::kNotDeviceMemory, *lane, site,
                 fmt::format("begins an asynchronous copy to {}, which is no shared memory",
                             target.region->name));
  }
  if (!check_written(source, bytes, site, "copies")) return;
  order_read(source, bytes, false, site);
  count_read(source, reinterpret_cast<uint64_t>(from), bytes);
  order_write(target, bytes, false, site);
  std::memset(target.region->written() + target.offset, 2, bytes);
  if (lane->copies.empty()) lane->copies.emplace_back();
  lane->copies.back().push_back({to, from, bytes, site});
}

void Run::close_copies() {
  if (lane->copies.empty()) lane->copies.emplace_back();
  lane->copies.emplace_back();
}

void Run::wait_copies(uint32_t groups_left, Site) {
  // The last group is open and is not waited for.
  while (lane->copies.size() > size_t{groups_left} + 1) {
    for (const AsyncCopy& copy : lane->copies.front()) {
      Place source, target;
      if (!resolve(copy.from, copy.bytes, false, copy.site, source)) continue;
      if (!resolve(copy.to, copy.bytes, true, copy.site, target)) continue;
      order_write(target, copy.bytes, false, copy.site);
      std::memcpy(target.bytes(), source.bytes(), copy.bytes);
      std::memset(target.region->written() + target.offset, 1, copy.bytes);
      target.region->traffic.written_bytes += copy.bytes;
    }
    lane->copies.pop_front();
  }
}

}  // namespace atlas::simt
