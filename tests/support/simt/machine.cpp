// The emulator's outside: buffers, reports, and the functions that the device layer calls.
#include "tests/support/simt/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "tests/support/simt/lanes.h"

namespace atlas::simt {
namespace {

uint64_t region_id(const void* buffer) {
  return (reinterpret_cast<uint64_t>(buffer) & ~kDeviceBit) >> kBufferShift;
}

}  // namespace

std::string_view fault_name(FaultKind kind) {
  switch (kind) {
    case FaultKind::kNotDeviceMemory:
      return "no device memory";
    case FaultKind::kOutOfBounds:
      return "out of bounds";
    case FaultKind::kMisaligned:
      return "misaligned";
    case FaultKind::kReadOnly:
      return "write to an input";
    case FaultKind::kUnwritten:
      return "unwritten memory";
    case FaultKind::kInFlight:
      return "copy under way";
    case FaultKind::kRace:
      return "race";
    case FaultKind::kDivergentBarrier:
      return "divergent barrier";
    case FaultKind::kWarpLane:
      return "lane outside of the mask";
    case FaultKind::kWarpDivergence:
      return "divergent warp";
    case FaultKind::kUnderWay:
      return "matrix instruction under way";
    case FaultKind::kProxy:
      return "no proxy fence";
    case FaultKind::kPhase:
      return "barrier of phases";
    case FaultKind::kMatrix:
      return "matrix instruction";
    case FaultKind::kReplication:
      return "halves of a wave differ";
    case FaultKind::kStuck:
      return "stuck";
    case FaultKind::kLaunch:
      return "launch";
  }
  return "";
}

bool Report::has(FaultKind kind) const {
  return std::any_of(faults.begin(), faults.end(), [&](const Fault& f) { return f.kind == kind; });
}

const Traffic& Report::of(std::string_view buffer) const {
  for (const Traffic& one : traffic) {
    if (one.buffer == buffer) return one;
  }
  throw std::invalid_argument(fmt::format("no buffer '{}'", buffer));
}

std::string Report::text() const {
  if (faults.empty()) return "no faults";
  std::string all;
  for (const Fault& one : faults) {
    all += one.text;
    if (one.times > 1) all += fmt::format(" ({} times)", one.times);
    all += '\n';
  }
  return all;
}

struct Machine::Impl {
  std::vector<std::unique_ptr<Region>> regions;
  HostRegions host;
  std::vector<std::unique_ptr<Block>> pool;
  uint32_t launches = 0;

  Region& region(const void* buffer) const {
    const uint64_t id = region_id(buffer);
    if (id == 0 || id > regions.size()) throw std::invalid_argument("no buffer of this machine");
    return *regions[id - 1];
  }
};

Machine::Machine() : impl_(std::make_unique<Impl>()) {}
Machine::~Machine() = default;

void* Machine::add(const std::string& name, const void* values, uint64_t bytes, bool writable) {
  auto region = std::make_unique<Region>();
  region->name = fmt::format("buffer '{}'", name);
  region->traffic.buffer = name;
  region->writable = writable;
  region->resize(bytes, values != nullptr || bytes == 0);
  if (values != nullptr) {
    std::memcpy(region->data(), values, bytes);
  } else if (bytes != 0) {
    std::memset(region->data(), 0xff, bytes);
  }
  impl_->regions.push_back(std::move(region));
  return reinterpret_cast<void*>(kDeviceBit | uint64_t{impl_->regions.size()} << kBufferShift |
                                 kOrigin);
}

uint64_t Machine::bytes_of(const void* buffer) const { return impl_->region(buffer).size(); }

void Machine::copy_out(const void* buffer, void* to) const {
  Region& region = impl_->region(buffer);
  if (region.size() != 0) std::memcpy(to, region.data(), region.size());
}

void Machine::copy_in(const void* buffer, uint64_t offset, const void* from, uint64_t bytes) {
  Region& region = impl_->region(buffer);
  if (offset > region.size() || bytes > region.size() - offset) {
    throw std::invalid_argument(fmt::format("{} is smaller than that", region.name));
  }
  if (bytes == 0) return;
  std::memcpy(region.data() + offset, from, bytes);
  if (region.tracks_writes()) std::memset(region.written() + offset, 1, bytes);
}

bool Machine::is_written(const void* buffer, uint64_t offset, uint64_t bytes) const {
  Region& region = impl_->region(buffer);
  if (!region.tracks_writes()) return true;
  const uint8_t* written = region.written() + offset;
  return std::all_of(written, written + bytes, [](uint8_t w) { return w == 1; });
}

std::byte* Machine::storage(const void* buffer) { return impl_->region(buffer).data(); }

void Machine::mark_written(const void* buffer, uint64_t offset, uint64_t bytes) {
  Region& region = impl_->region(buffer);
  if (region.tracks_writes()) std::memset(region.written() + offset, 1, bytes);
}

void Machine::remove(const void* buffer) { impl_->region(buffer).resize(0, true); }

void Machine::share(void* memory, uint64_t bytes) {
  auto region = std::make_unique<Region>();
  region->name = "host memory";
  region->traffic.buffer = "host";
  region->writable = true;
  region->attach(static_cast<std::byte*>(memory), bytes);
  impl_->host[reinterpret_cast<uint64_t>(memory)] = std::move(region);
}

void Machine::unshare(void* memory) { impl_->host.erase(reinterpret_cast<uint64_t>(memory)); }

Report Machine::run_raw(const Kernel& kernel, const void* params, const Launch& launch) {
  Run run(impl_->regions, impl_->host, impl_->pool, kernel, params, launch, ++impl_->launches);
  running = &run;
  Report report = run.finish();
  running = nullptr;
  lane_view = nullptr;
  return report;
}

// ---- What the device layer calls ----

void read(const void* from, void* to, uint32_t bytes, Site site) {
  running->read(from, to, bytes, site);
}
void write(void* to, const void* from, uint32_t bytes, Site site) {
  running->write(to, from, bytes, site);
}
uint64_t atomic(AtomicOp op, void* at, uint64_t operand, uint64_t expected, uint32_t bytes,
                bool is_signed, Order order, Site site) {
  return running->atomic(op, at, operand, expected, bytes, is_signed, order, site);
}
void fence(Order order, Site) { running->fence(order); }
void block_barrier(Site site) { running->block_barrier(site); }
void warp_barrier(uint32_t mask, Site site) { running->warp_call(WarpCall::kBarrier, mask, site); }

uint32_t shuffle(uint32_t value, uint32_t source, uint32_t mask, Site site) {
  Lane& self = *running->lane;
  self.value = value;
  self.source = source;
  running->warp_call(WarpCall::kShuffle, mask, site);
  return self.value;
}

uint32_t ballot(bool vote, uint32_t mask, Site site) {
  Lane& self = *running->lane;
  self.value = vote ? 1 : 0;
  running->warp_call(WarpCall::kBallot, mask, site);
  return self.value;
}

void async_copy(void* shared_to, const void* from, uint32_t bytes, Site site) {
  running->begin_copy(shared_to, from, bytes, site);
}
void async_commit(Site) { running->close_copies(); }
void async_wait(uint32_t groups_left, Site site) { running->wait_copies(groups_left, site); }

void matrix(Matrix kind, void* c, const void* a, const void* b, uint32_t scale_a, uint32_t scale_b,
            Site site) {
  Lane& self = *running->lane;
  self.matrix = kind;
  self.c = c;
  self.a = static_cast<const uint32_t*>(a);
  self.b = static_cast<const uint32_t*>(b);
  self.scale_a = scale_a;
  self.scale_b = scale_b;
  running->warp_call(WarpCall::kMatrix, 0xffffffffu, site);
}

void wgmma(Matrix kind, float* c, uint32_t columns, const uint32_t* a, uint64_t b, bool add,
           Site site) {
  Lane& self = *running->lane;
  self.matrix = kind;
  self.c = c;
  self.a = a;
  self.columns = columns;
  self.matrix_b = b;
  self.add = add;
  running->warp_call(WarpCall::kWgmma, 0xffffffffu, site);
}
void wgmma_fence(Site site) { running->warp_call(WarpCall::kWgmmaFence, 0xffffffffu, site); }
void wgmma_commit(Site site) { running->warp_call(WarpCall::kWgmmaCommit, 0xffffffffu, site); }
void wgmma_wait(uint32_t groups_left, Site site) {
  running->lane->value = groups_left;
  running->warp_call(WarpCall::kWgmmaWait, 0xffffffffu, site);
}
void matrix_proxy_fence(Site) { running->matrix_proxy_fence(); }

void phase_init(const void* barrier, uint32_t arrivals, Site site) {
  running->phase_init(barrier, arrivals, site);
}
void phase_arrive(const void* barrier, uint32_t expected_bytes, Site site) {
  running->phase_arrive(barrier, expected_bytes, site);
}
void phase_arrive_copied(const void* barrier, Site site) {
  running->phase_arrive_copied(barrier, site);
}
void phase_wait(const void* barrier, uint32_t parity, Site site) {
  running->phase_wait(barrier, parity, site);
}
void bulk_copy(void* shared_to, const void* from, uint32_t bytes, const void* barrier, Site site) {
  running->bulk_copy(shared_to, from, bytes, barrier, site);
}

void pause(Site site) { running->pause(site); }
uint64_t clock_ns() { return running->clock_ns(); }

}  // namespace atlas::simt
