// A launch: lanes as fibers that run until they wait, warps whose calls complete when the last lane
// has come, barriers that open when the last thread has, and what is left when nobody can go on.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "tests/support/simt/lanes.h"

namespace atlas::simt {

thread_local const LaneView* lane_view = nullptr;
thread_local Run* running = nullptr;

namespace {

// Kernels have small frames; below each stack lies a page that nothing may touch.
constexpr size_t kStackBytes = 64 * 1024;
constexpr size_t kRecentSectors = 1024;  // 32 KiB: a small part of a first-level cache
constexpr size_t kMaxFaults = 32;
// Waiting loops that turn this often without anybody doing anything wait for ever.
constexpr uint64_t kMaxIdleRounds = 100000;

struct FreeStacks {
  std::vector<boost::context::stack_context> contexts;
  ~FreeStacks() {
    for (boost::context::stack_context& one : contexts) {
      boost::context::protected_fixedsize_stack().deallocate(one);
    }
  }
};
thread_local FreeStacks free_stacks;

const char* call_name(WarpCall call) {
  switch (call) {
    case WarpCall::kBarrier:
      return "a warp barrier";
    case WarpCall::kShuffle:
      return "a shuffle";
    case WarpCall::kBallot:
      return "a vote";
    case WarpCall::kMatrix:
    case WarpCall::kWgmma:
    case WarpCall::kWgmmaFence:
    case WarpCall::kWgmmaCommit:
    case WarpCall::kWgmmaWait:
      return "a matrix instruction";
  }
  return "";
}

// Lanes of `mask` in the order that starts at `first`.
uint32_t pick(uint32_t mask, uint32_t first) {
  return (static_cast<uint32_t>(std::countr_zero(std::rotr(mask, static_cast<int>(first)))) +
          first) %
         Warp::kLanes;
}

bool same_site(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         std::string_view(a.file_name()) == b.file_name();
}

std::string short_name(const char* file) {
  const std::string_view path(file);
  return std::string(path.substr(path.rfind('/') + 1));
}

}  // namespace

Stack::Stack() {
  std::vector<boost::context::stack_context>& free = free_stacks.contexts;
  if (free.empty()) {
    context_ = boost::context::protected_fixedsize_stack(kStackBytes).allocate();
  } else {
    context_ = free.back();
    free.pop_back();
  }
}

Stack::~Stack() {
  if (context_.sp != nullptr) free_stacks.contexts.push_back(context_);
}

// A fiber runs one lane of one block after another.
void lane_entry(boost::context::detail::transfer_t arrived) {
  *static_cast<Context*>(arrived.data) = arrived.fctx;
  for (;;) {
    running->kernel.lane(running->params);
    running->returned();
  }
}

Run::Run(std::vector<std::unique_ptr<Region>>& regions, HostRegions& host,
         std::vector<std::unique_ptr<Block>>& pool, const Kernel& which, const void* values,
         const Launch& launch, uint32_t number)
    : kernel(which),
      params(values),
      regions_(regions),
      host_(host),
      pool_(pool),
      launch_(launch),
      number_(number),
      random_(launch.seed) {
  for (const auto& region : regions_) region->traffic = {region->traffic.buffer, 0, 0, 0};
}

Report Run::finish() {
  const uint32_t threads = launch_.threads != 0 ? launch_.threads : kernel.threads;
  const uint64_t blocks = uint64_t{launch_.grid[0]} * launch_.grid[1] * launch_.grid[2];
  if (threads != kernel.threads || threads == 0 || threads > 1024 || threads % Warp::kLanes != 0 ||
      blocks == 0 || blocks > Stamp::kMaxBlocks) {
    report_.faults.push_back(
        {FaultKind::kLaunch, 0, 0, "", 0, 1,
         fmt::format(
             "launch: kernel '{}' is made for blocks of {} threads; asked for {} blocks of {}",
             kernel.name, kernel.threads, blocks, threads)});
    return std::move(report_);
  }
  blocks_ = static_cast<uint32_t>(blocks);
  run();
  for (const auto& region : regions_) report_.traffic.push_back(region->traffic);
  return std::move(report_);
}

// ---- Faults ----

std::string Run::lane_place(const Lane& of) const {
  return fmt::format("kernel '{}', block ({}, {}, {}), thread {} (lane {} of warp {})", kernel.name,
                     of.block[0], of.block[1], of.block[2], of.thread, of.lane,
                     of.thread / Warp::kLanes);
}

void Run::fault(FaultKind kind, const Lane& of, Site site, const std::string& what) {
  const auto [where, added] =
      fault_index_.try_emplace({kind, {site.file_name(), site.line()}}, report_.faults.size());
  if (!added) {
    if (where->second < report_.faults.size()) ++report_.faults[where->second].times;
    return;
  }
  if (report_.faults.size() == kMaxFaults) return;
  report_.faults.push_back({kind, of.home->linear, of.thread, site.file_name(), site.line(), 1,
                            fmt::format("{}: {} at {}:{} {}", fault_name(kind), lane_place(of),
                                        short_name(site.file_name()), site.line(), what)});
}

// ---- Order ----

void Run::enter_epoch(Lane& of) const {
  if (of.clock_epoch == of.home->epoch) return;
  of.clock_epoch = of.home->epoch;
  of.clock = 1;
  std::fill(std::begin(of.seen), std::end(of.seen), 0u);
}

Stamp Run::stamp(bool atomic) const {
  enter_epoch(*lane);
  return Stamp(lane->home->linear, lane->thread, lane->home->epoch, lane->clock, atomic);
}

void Run::sync_warp(Warp& warp, uint32_t mask) {
  uint32_t joined[Warp::kLanes] = {};
  Knowledge known;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    Lane& of = *warp.lanes[std::countr_zero(rest)];
    enter_epoch(of);
    for (uint32_t i = 0; i < Warp::kLanes; ++i) joined[i] = std::max(joined[i], of.seen[i]);
    joined[of.lane] = std::max(joined[of.lane], of.clock);
    known.join(of.known);
  }
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    Lane& of = *warp.lanes[std::countr_zero(rest)];
    std::copy(std::begin(joined), std::end(joined), of.seen);
    ++of.clock;
    of.known.join(known);
  }
}

// ---- Fibers ----

void Run::enter(Lane& next, Context& from) {
  lane = &next;
  lane_view = &next;
  const auto arrived = boost::context::detail::jump_fcontext(next.context, &from);
  *static_cast<Context*>(arrived.data) = arrived.fctx;
}

void Run::leave() {
  Lane& self = *lane;
  Warp& warp = *self.warp;
  if (warp.ready != 0) {
    Lane& next = *warp.lanes[pick(warp.ready, warp.first)];
    if (&next == &self) return;
    return enter(next, self.context);
  }
  const auto arrived = boost::context::detail::jump_fcontext(main_, &self.context);
  *static_cast<Context*>(arrived.data) = arrived.fctx;
}

void Run::returned() {
  Lane& self = *lane;
  advanced_ = true;
  self.state = LaneState::kReturned;
  self.warp->ready &= ~(1u << self.lane);
  self.warp->returned |= 1u << self.lane;
  ++self.home->returned;
  if (self.home->at_barrier != 0 &&
      self.home->at_barrier + self.home->returned == self.home->threads) {
    open_barrier(*self.home);
  }
  leave();
}

// ---- Waiting ----

void Run::block_barrier(Site site) {
  Lane& self = *lane;
  Block& block = *self.home;
  advanced_ = true;
  self.site = site;
  self.state = LaneState::kAtBarrier;
  self.warp->ready &= ~(1u << self.lane);
  ++block.at_barrier;
  if (block.at_barrier + block.returned == block.threads) open_barrier(block);
  if (self.state != LaneState::kReady) leave();
}

void Run::open_barrier(Block& block) {
  const Lane* first = nullptr;
  for (const auto& one : block.lanes) {
    if (one->state != LaneState::kAtBarrier) continue;
    if (first == nullptr) first = one.get();
    if (!same_site(first->site, one->site)) {
      fault(FaultKind::kDivergentBarrier, *one, one->site,
            fmt::format("waits at a block barrier, while thread {} waits at the one of {}:{}",
                        first->thread, short_name(first->site.file_name()), first->site.line()));
      break;
    }
  }
  if (block.returned != 0) {
    fault(FaultKind::kDivergentBarrier, *first, first->site,
          fmt::format("waits at a block barrier, but {} of the block's {} threads have returned",
                      block.returned, block.threads));
  }
  for (const auto& one : block.lanes) {
    if (one->state != LaneState::kAtBarrier) continue;
    block.known.join(one->known);
    one->known.clear();
    one->state = LaneState::kReady;
    one->warp->ready |= 1u << one->lane;
  }
  block.at_barrier = 0;
  ++block.epoch;
}

void Run::warp_call(WarpCall call, uint32_t mask, Site site) {
  Lane& self = *lane;
  Warp& warp = *self.warp;
  advanced_ = true;
  if ((mask >> self.lane & 1) == 0) {
    return fault(
        FaultKind::kWarpLane, self, site,
        fmt::format("comes to {} whose mask {:#010x} does not name it", call_name(call), mask));
  }
  self.call = call;
  self.mask = mask;
  self.site = site;
  warp.waiting |= 1u << self.lane;
  if ((warp.waiting & mask) == mask) {
    bool together = true;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const Lane& other = *warp.lanes[std::countr_zero(rest)];
      together =
          together && other.call == call && other.mask == mask && same_site(other.site, site);
    }
    if (together) {
      warp.waiting &= ~mask;
      warp.ready |= mask;
      for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        warp.lanes[std::countr_zero(rest)]->state = LaneState::kReady;
      }
      return complete(warp, mask);
    }
  }
  self.state = LaneState::kAtWarpCall;
  warp.ready &= ~(1u << self.lane);
  leave();
}

void Run::complete(Warp& warp, uint32_t mask) {
  if (lane->call == WarpCall::kBarrier) return sync_warp(warp, mask);
  if (lane->call == WarpCall::kMatrix) return run_matrix(warp);
  if (lane->call >= WarpCall::kWgmma) return run_wgmma(warp);
  uint32_t results[Warp::kLanes] = {};
  uint32_t votes = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto i = static_cast<uint32_t>(std::countr_zero(rest));
    const Lane& one = *warp.lanes[i];
    votes |= (one.value != 0 ? 1u : 0u) << i;
    if (one.call != WarpCall::kShuffle) continue;
    if ((mask >> one.source & 1) == 0) {
      fault(FaultKind::kWarpLane, one, one.site,
            fmt::format("reads lane {} in a shuffle whose mask {:#010x} does not name it",
                        one.source, mask));
    } else {
      results[i] = warp.lanes[one.source]->value;
    }
  }
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto i = static_cast<uint32_t>(std::countr_zero(rest));
    Lane& one = *warp.lanes[i];
    one.value = one.call == WarpCall::kBallot ? votes : results[i];
  }
}

void Run::run_matrix(Warp& warp) {
  if (lane->matrix != Matrix::kCount) ++report_.matrix[static_cast<uint32_t>(lane->matrix)];
  if (!run_matrix_instruction(lane->matrix, warp.lanes)) {
    fault(FaultKind::kReplication, *lane, lane->site,
          "takes part in a WMMA whose lanes 16 to 31 do not repeat the operands of lanes 0 to 15");
  }
}

void Run::pause(Site site) {
  Lane& self = *lane;
  self.site = site;
  self.state = LaneState::kPaused;
  self.warp->ready &= ~(1u << self.lane);
  self.warp->paused |= 1u << self.lane;
  leave();
}

// ---- Blocks ----

void Run::begin_block(Block& block, uint32_t linear) {
  const uint32_t threads = kernel.threads;
  if (block.threads != threads) {
    block.lanes.clear();
    block.threads = threads;
    block.warps.assign(threads / Warp::kLanes, Warp());
    for (uint32_t t = 0; t < threads; ++t) block.lanes.push_back(std::make_unique<Lane>());
    while (block.stacks.size() < threads) {
      block.stacks.emplace_back();
    }
  }
  if (block.shared.size() != launch_.shared_bytes || !block.shared.tracks_writes()) {
    block.shared.resize(launch_.shared_bytes, false);
    block.shared.name = "shared memory";
    block.shared.writable = block.shared.shared = true;
  }
  block.shared.forget(random_());
  block.linear = linear;
  block.epoch = block.at_barrier = block.returned = 0;
  block.known.clear();
  block.phases.clear();
  block.recent.assign(kRecentSectors, ~uint64_t{0});
  block.warp_order.resize(block.warps.size());
  std::iota(block.warp_order.begin(), block.warp_order.end(), 0u);
  if (launch_.seed != 0) std::shuffle(block.warp_order.begin(), block.warp_order.end(), random_);
  for (Warp& warp : block.warps) {
    warp.ready = 0xffffffffu;
    warp.paused = warp.waiting = warp.returned = 0;
    warp.matrices.clear();
    warp.sums.clear();
    warp.matrix_fence = false;
    warp.matrix_count = 0;
    warp.first = launch_.seed != 0 ? static_cast<uint32_t>(random_() % Warp::kLanes) : 0;
  }
  for (uint32_t t = 0; t < threads; ++t) {
    Lane& one = *block.lanes[t];
    if (!one.started || one.state != LaneState::kReturned) {
      one.context = boost::context::detail::make_fcontext(block.stacks[t].get().sp,
                                                          block.stacks[t].get().size, lane_entry);
      one.started = true;
    }
    one.thread = t;
    one.threads = threads;
    one.block[0] = linear % launch_.grid[0];
    one.block[1] = linear / launch_.grid[0] % launch_.grid[1];
    one.block[2] = linear / launch_.grid[0] / launch_.grid[1];
    std::copy(std::begin(launch_.grid), std::end(launch_.grid), one.grid);
    one.state = LaneState::kReady;
    one.lane = t % Warp::kLanes;
    one.warp = &block.warps[t / Warp::kLanes];
    one.warp->lanes[one.lane] = &one;
    one.home = &block;
    one.clock = 1;
    one.clock_epoch = 0;
    std::fill(std::begin(one.seen), std::end(one.seen), 0u);
    one.known.clear();
    one.pending.clear();
    one.released.clear();
    one.copies.clear();
    one.proxy_fences.clear();
    one.shown_epoch = 0;
    one.shown.clear();
  }
}

// Runs the block's lanes until each waits. Returns whether there was one to run.
bool Run::run_block(Block& block) {
  bool ran = false;
  for (const uint32_t w : block.warp_order) {
    Warp& warp = block.warps[w];
    while (warp.ready != 0) {
      ran = true;
      enter(*warp.lanes[pick(warp.ready, warp.first)], main_);
    }
  }
  return ran;
}

bool Run::release_paused(std::span<Block* const> blocks) {
  bool any = false;
  for (Block* block : blocks) {
    for (Warp& warp : block->warps) {
      for (uint32_t rest = warp.paused; rest != 0; rest &= rest - 1) {
        warp.lanes[std::countr_zero(rest)]->state = LaneState::kReady;
      }
      any = any || warp.paused != 0;
      warp.ready |= warp.paused;
      warp.paused = 0;
    }
  }
  return any;
}

void Run::run() {
  std::vector<uint32_t> order(blocks_);
  std::iota(order.begin(), order.end(), 0u);
  if (launch_.seed != 0) std::shuffle(order.begin(), order.end(), random_);
  const size_t resident = launch_.cooperative ? blocks_ : (launch_.seed != 0 ? 2 : 1);
  while (pool_.size() < std::min<size_t>(resident, blocks_))
    pool_.push_back(std::make_unique<Block>());
  std::vector<Block*> live, idle;
  for (size_t i = 0; i < std::min<size_t>(resident, blocks_); ++i) idle.push_back(pool_[i].get());

  size_t next = 0;
  uint64_t idle_rounds = 0;
  for (;;) {
    while (!idle.empty() && next < order.size()) {
      begin_block(*idle.back(), order[next++]);
      live.push_back(idle.back());
      idle.pop_back();
    }
    if (live.empty()) break;
    advanced_ = false;
    bool ran = false;
    for (Block* block : live) ran = run_block(*block) || ran;
    for (size_t i = live.size(); i-- > 0;) {
      if (live[i]->returned != live[i]->threads) continue;
      check_wgmma_end(*live[i]);
      idle.push_back(live[i]);
      live.erase(live.begin() + static_cast<ptrdiff_t>(i));
    }
    if (ran && advanced_) {
      idle_rounds = 0;
    } else {
      ++idle_rounds;
    }
    // The host's turn, if nobody else has one.
    if (!advanced_ && launch_.host && !live.empty() && launch_.host()) idle_rounds = 0;
    const bool paused = release_paused(live);
    if ((!ran && !paused && !live.empty()) || idle_rounds > kMaxIdleRounds) {
      report_stuck(live);
      break;
    }
  }
}

void Run::report_stuck(std::span<Block* const> blocks) {
  for (const Block* block : blocks) {
    for (const auto& one : block->lanes) {
      if (one->state != LaneState::kAtWarpCall) continue;
      for (uint32_t rest = one->mask; rest != 0; rest &= rest - 1) {
        const Lane& other = *one->warp->lanes[std::countr_zero(rest)];
        if (other.state == LaneState::kAtWarpCall && same_site(other.site, one->site) &&
            other.mask == one->mask) {
          continue;
        }
        const std::string does =
            other.state == LaneState::kReturned
                ? "has returned"
                : fmt::format("waits at {}:{}{}", short_name(other.site.file_name()),
                              other.site.line(),
                              other.mask != one->mask ? " with another mask" : "");
        fault(FaultKind::kWarpDivergence, *one, one->site,
              fmt::format("waits at {} for lane {} of the mask {:#010x}, which {}",
                          call_name(one->call), other.lane, one->mask, does));
        break;
      }
    }
    for (const auto& one : block->lanes) {
      if (one->state == LaneState::kAtBarrier) {
        fault(
            FaultKind::kDivergentBarrier, *one, one->site,
            fmt::format("waits at a block barrier that {} of the block's {} threads never come to",
                        block->threads - block->at_barrier, block->threads));
        break;
      }
    }
    for (const auto& one : block->lanes) {
      if (one->state != LaneState::kReady && one->state != LaneState::kPaused) continue;
      fault(
          FaultKind::kStuck, *one, one->site,
          fmt::format("waits in a loop for what no lane does{}",
                      launch_.cooperative ? "" : " (blocks of this launch need not run together)"));
      break;
    }
  }
}

}  // namespace atlas::simt
