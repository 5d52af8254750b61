// Inside of the emulator: lanes as fibers, warps, blocks, memory regions, and the launch that runs.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/support/simt/machine.h"
#include "tests/support/simt/order.h"

namespace atlas::simt {

using Context = boost::context::detail::fcontext_t;

// ---- Memory ----

/// The last accesses of 4 bytes (or of one, where a region is written in smaller pieces).
struct Granule {
  Stamp write;
  Stamp read;
  Stamp other_read;  // by another warp than `read`, if there was one, else by another lane
  Site write_site;
  Site read_site;
  uint32_t proxy_fences = 0;  // that the writer of shared memory had made then
};

/// A buffer, or one block's shared memory.
class Region {
 public:
  static constexpr uint32_t kPage = 64;  // granules

  std::string name;
  bool writable = false;
  bool shared = false;
  Traffic traffic;

  void resize(uint64_t bytes, bool written);
  /// Memory of the host's own, which it writes without telling.
  void attach(std::byte* memory, uint64_t bytes);
  std::byte* data() { return data_; }
  uint64_t size() const { return size_; }
  uint8_t* written() { return written_.data(); }
  bool tracks_writes() const { return !written_.empty(); }
  /// Granules that the access covers, cleared if they are of an earlier launch.
  std::span<Granule> granules(uint64_t offset, uint32_t bytes, uint32_t launch);
  /// Shared memory of a new block: unwritten, filled with garbage.
  void forget(uint64_t garbage);

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> bytes_;  // empty for memory of the host's
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  std::vector<uint8_t> written_;  // a byte each: 0 unwritten, 1 written, 2 on its way
  std::vector<Granule> granules_;
  std::vector<uint32_t> page_launch_;
  uint32_t shift_ = 2;
};

/// Memory of the host's that kernels reach at its own address.
using HostRegions = std::map<uint64_t, std::unique_ptr<Region>>;

// ---- Lanes ----

enum class LaneState : uint8_t { kReady, kAtBarrier, kAtWarpCall, kPaused, kReturned };
enum class WarpCall : uint8_t {
  kBarrier,
  kShuffle,
  kBallot,
  kMatrix,
  kWgmma,
  kWgmmaFence,
  kWgmmaCommit,
  kWgmmaWait
};

struct AsyncCopy {
  void* to;
  const void* from;
  uint32_t bytes;
  Site site;
};

/// A barrier of phases in a block's shared memory.
struct PhaseBarrier {
  uint32_t arrivals = 0;  // that end a phase
  uint32_t missing = 0;   // in the present one
  uint32_t phase = 0;
  int64_t bytes = 0;              // expected in the present phase and not come
  Knowledge gathering;            // what lies before the end of the present phase
  Knowledge ended;                // and of those before
  std::vector<AsyncCopy> copies;  // begun, and not come
};

/// A matrix instruction of four warps while it runs: one warp's part.
struct RunningMatrix {
  static constexpr uint32_t kLanes = 32;
  const float* c = nullptr;  // lane 0's, by which the sums are known
  const uint32_t* a[kLanes] = {};
  uint32_t a_words[kLanes][4] = {};  // as they were when it began
  std::vector<uint64_t> b_places;    // offsets in shared memory of pieces of 16 bytes
  std::vector<uint8_t> b_bytes;      // what stood there
  std::vector<uint8_t> b;            // what it multiplies with
  Site site;
};
/// Sums of such instructions: what they will be when all have ended.
struct RunningSums {
  float* of[RunningMatrix::kLanes] = {};
  std::vector<float> values;  // `count` of each lane
  uint32_t count = 0;
  uint32_t instructions = 0;  // that have not ended
};

/// A fiber's stack. Mapping one takes longer than running a small kernel, so stacks that are done
/// with wait for the thread's next machine.
class Stack {
 public:
  Stack();
  Stack(Stack&& other) noexcept : context_(std::exchange(other.context_, {})) {}
  Stack& operator=(Stack&&) = delete;
  ~Stack();
  const boost::context::stack_context& get() const { return context_; }

 private:
  boost::context::stack_context context_;
};

struct Block;
struct Warp;

struct Lane : LaneView {
  static constexpr uint32_t kWarpSize = 32;

  Context context = nullptr;
  bool started = false;  // the fiber stands between two runs of a kernel, or in one
  LaneState state = LaneState::kReturned;
  uint32_t lane = 0;  // of the warp
  Warp* warp = nullptr;
  Block* home = nullptr;
  Site site;  // of the barrier or call that it waits at

  // The warp call that it waits at.
  WarpCall call = WarpCall::kBarrier;
  Matrix matrix = Matrix::kCount;
  uint32_t mask = 0;
  uint32_t value = 0;
  uint32_t source = 0;
  void* c = nullptr;
  const uint32_t* a = nullptr;
  const uint32_t* b = nullptr;
  uint32_t scale_a = 0, scale_b = 0;
  uint32_t columns = 0;
  uint64_t matrix_b = 0;
  bool add = false;

  uint32_t polls = 0;  // atomic operations that changed nothing, one after another

  // Order.
  uint32_t clock = 1;
  uint32_t clock_epoch = 0;  // that clock and seen belong to
  uint32_t seen[kWarpSize] = {};
  Knowledge known;
  Knowledge pending;                          // brought by relaxed loads; a fence makes it known
  Knowledge released;                         // what was behind the last fence
  std::deque<std::vector<AsyncCopy>> copies;  // the last group is open
  std::vector<Stamp> proxy_fences;            // when it made them
  uint32_t shown_epoch = 0;                   // block barriers before the last
  Knowledge shown;                            // and what it knew then
};

struct Warp {
  static constexpr uint32_t kLanes = 32;
  Lane* lanes[kLanes] = {};
  uint32_t ready = 0, paused = 0, waiting = 0, returned = 0;
  uint32_t first = 0;  // lanes run from here on

  std::deque<std::vector<RunningMatrix>> matrices;  // the last group is open
  std::map<const float*, RunningSums> sums;         // by lane 0's
  bool matrix_fence = false;                        // since the last group
  uint32_t matrix_count = 0;
};

struct Block {
  uint32_t linear = 0;
  uint32_t epoch = 0;
  uint32_t threads = 0;
  uint32_t at_barrier = 0, returned = 0;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<Stack> stacks;
  std::vector<Warp> warps;
  std::vector<uint32_t> warp_order;
  Region shared;
  Knowledge known;
  std::map<uint64_t, PhaseBarrier> phases;  // by their place in shared memory
  std::vector<uint64_t> recent;             // sectors read, by a hash of their address
};

/// One launch while it runs; `running` points to it.
class Run {
 public:
  Run(std::vector<std::unique_ptr<Region>>& regions, HostRegions& host,
      std::vector<std::unique_ptr<Block>>& pool, const Kernel& kernel, const void* params,
      const Launch& launch, uint32_t number);
  Report finish();

  void fault(FaultKind kind, const Lane& of, Site site, const std::string& what);

  // Memory (access.cpp).
  void read(const void* from, void* to, uint32_t bytes, Site site);
  void write(void* to, const void* from, uint32_t bytes, Site site);
  uint64_t atomic(AtomicOp op, void* at, uint64_t operand, uint64_t expected, uint32_t bytes,
                  bool is_signed, Order order, Site site);
  void fence(Order order);
  void begin_copy(void* to, const void* from, uint32_t bytes, Site site);
  void close_copies();
  void wait_copies(uint32_t groups_left, Site site);
  void matrix_proxy_fence();

  // Barriers of phases, and the copies that they count (bulk.cpp).
  void phase_init(const void* barrier, uint32_t arrivals, Site site);
  void phase_arrive(const void* barrier, uint32_t expected_bytes, Site site);
  void phase_arrive_copied(const void* barrier, Site site);
  void phase_wait(const void* barrier, uint32_t parity, Site site);
  void bulk_copy(void* to, const void* from, uint32_t bytes, const void* barrier, Site site);

  // Waiting (run.cpp).
  void block_barrier(Site site);
  void warp_call(WarpCall call, uint32_t mask, Site site);
  void pause(Site site);
  uint64_t clock_ns() { return clock_ns_ += 1000; }

  Lane* lane = nullptr;  // that runs
  const Kernel& kernel;
  const void* params;

 private:
  friend void lane_entry(boost::context::detail::transfer_t);
  struct Place {
    Region* region = nullptr;
    uint64_t offset = 0;
    std::byte* bytes() const { return region->data() + offset; }
  };

  void run();
  void begin_block(Block& block, uint32_t linear);
  bool run_block(Block& block);
  void leave();  // to another lane, or to run()
  void enter(Lane& next, Context& from);
  void returned();
  void open_barrier(Block& block);
  bool release_paused(std::span<Block* const> blocks);
  void complete(Warp& warp, uint32_t mask);
  void sync_warp(Warp& warp, uint32_t mask);
  void run_matrix(Warp& warp);

  PhaseBarrier* phase_of(const void* barrier, Site site);
  void deliver(PhaseBarrier& barrier);
  void end_phase(PhaseBarrier& barrier);

  // Matrix instructions that run on (wgmma.cpp).
  void run_wgmma(Warp& warp);
  bool read_wgmma_matrix(const Lane& of, RunningMatrix& matrix);
  void end_wgmma(Warp& warp, const RunningMatrix& matrix);
  void wait_wgmma(Warp& warp, uint32_t groups_left);
  void check_wgmma_end(Block& block);
  bool check_proxy(const Place& place, uint32_t bytes, Site site);
  void report_stuck(std::span<Block* const> blocks);
  std::string lane_place(const Lane& of) const;

  Region* host_region(uint64_t address, uint64_t& offset) const;
  bool resolve(const void* address, uint32_t bytes, bool writes, Site site, Place& place);
  bool check_written(const Place& place, uint32_t bytes, Site site, const char* what);
  void count_read(const Place& place, uint64_t address, uint32_t bytes);
  void order_read(const Place& place, uint32_t bytes, bool atomic, Site site);
  void order_write(const Place& place, uint32_t bytes, bool atomic, Site site);
  void report_race(const Place& place, uint32_t bytes, Stamp other, Site other_site,
                   const char* mine, const char* theirs, Site site);
  bool ordered(Stamp access) const;
  Stamp stamp(bool atomic) const;
  void enter_epoch(Lane& of) const;
  void add_own(const Lane& of, Knowledge& to) const;

  std::vector<std::unique_ptr<Region>>& regions_;
  HostRegions& host_;
  std::vector<std::unique_ptr<Block>>& pool_;
  const Launch& launch_;
  uint32_t number_;
  uint32_t blocks_ = 0;
  Report report_;
  std::map<std::pair<FaultKind, std::pair<std::string, uint32_t>>, size_t> fault_index_;
  std::unordered_map<uint64_t, Knowledge> sync_;  // by address: what its writers released
  std::mt19937_64 random_;
  Context main_ = nullptr;
  uint64_t clock_ns_ = 0;
  bool advanced_ = false;  // a lane did more than pause
};

extern thread_local Run* running;

/// The arithmetic of a matrix instruction over the registers of 32 lanes (matrix.cpp). Returns
/// false if a replicated half differs.
bool run_matrix_instruction(Matrix kind, Lane* const* lanes);
/// One warp's part of a wgmma: values (`columns` / 2 of each lane) = (add ? values : 0) + A B. `b`
/// has `columns` rows of 16 elements.
void run_wgmma_instruction(Matrix kind, const uint32_t (*a)[4], const uint8_t* b, uint32_t columns,
                           bool add, float* values);
/// What stands for sums of such an instruction until it has ended: a NaN that arithmetic keeps.
inline constexpr uint32_t kUnderWayBits = 0x7fe1d0a5u;

}  // namespace atlas::simt
