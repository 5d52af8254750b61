// What the emulated form of the device layer asks of the emulator: where a lane stands, and every
// access, barrier and instruction that it makes. Implemented in tests/support/simt.
//
// Addresses that an emulated kernel sees are no addresses of the host: bit 63 is set, bits 40..62
// name a buffer (0: the block's shared memory), the rest is an offset from kOrigin. So a pointer
// that leaves its buffer is told from every other, and an access past the layer stops the program.
#pragma once

#include <stdint.h>

#include <source_location>

namespace atlas::simt {

using Site = std::source_location;

struct LaneView {
  uint32_t thread = 0;  // of the block
  uint32_t threads = 0;
  uint32_t block[3] = {};
  uint32_t grid[3] = {};
};

inline constexpr uint64_t kDeviceBit = uint64_t{1} << 63;
inline constexpr uint32_t kBufferShift = 40;
inline constexpr uint64_t kOrigin = uint64_t{1} << 32;

enum class Order : uint32_t { kRelaxed, kAcquire, kRelease, kAcqRel };
enum class AtomicOp : uint32_t {
  kLoad,
  kStore,
  kAdd,
  kOr,
  kAnd,
  kMax,
  kMin,
  kExchange,
  kCompareExchange
};
enum class Matrix : uint32_t {
  kMmaF16,
  kMmaBf16,
  kMmaS8,
  kMmaE4m3,
  kMmaNvfp4,
  kWmmaF16,
  kWmmaBf16,
  kWmmaIu8,
  kWgmmaF16,
  kWgmmaBf16,
  kCount
};
inline constexpr uint32_t kMatrixKinds = static_cast<uint32_t>(Matrix::kCount);

#define ATLAS_SIMT __attribute__((visibility("default")))

/// The running lane. Fibers stay on the thread that made them.
extern ATLAS_SIMT thread_local const LaneView* lane_view __attribute__((tls_model("initial-exec")));

ATLAS_SIMT void read(const void* from, void* to, uint32_t bytes, Site site);
ATLAS_SIMT void write(void* to, const void* from, uint32_t bytes, Site site);
ATLAS_SIMT uint64_t atomic(AtomicOp op, void* at, uint64_t operand, uint64_t expected,
                           uint32_t bytes, bool is_signed, Order order, Site site);
ATLAS_SIMT void fence(Order order, Site site);
ATLAS_SIMT void block_barrier(Site site);
ATLAS_SIMT void warp_barrier(uint32_t mask, Site site);
/// The value of lane `source` (0..31), which must be in the mask.
ATLAS_SIMT uint32_t shuffle(uint32_t value, uint32_t source, uint32_t mask, Site site);
ATLAS_SIMT uint32_t ballot(bool vote, uint32_t mask, Site site);
ATLAS_SIMT void async_copy(void* shared_to, const void* from, uint32_t bytes, Site site);
ATLAS_SIMT void async_commit(Site site);
ATLAS_SIMT void async_wait(uint32_t groups_left, Site site);
/// One matrix instruction of the whole warp: each lane brings its registers; `c` is read and
/// written.
ATLAS_SIMT void matrix(Matrix kind, void* c, const void* a, const void* b, uint32_t scale_a,
                       uint32_t scale_b, Site site);
/// Matrix instructions of four warps that run on while their lanes do: `c` has `columns` / 2 floats
/// of each lane, which count until a wait has taken the instruction's group only as what they are
/// then; `b` is the descriptor that the instruction takes (wgmma.h).
ATLAS_SIMT void wgmma(Matrix kind, float* c, uint32_t columns, const uint32_t* a, uint64_t b,
                      bool add, Site site);
ATLAS_SIMT void wgmma_fence(Site site);
ATLAS_SIMT void wgmma_commit(Site site);
ATLAS_SIMT void wgmma_wait(uint32_t groups_left, Site site);
/// What the lane wrote to shared memory before is seen by such instructions after.
ATLAS_SIMT void matrix_proxy_fence(Site site);
/// Barriers of phases in shared memory (phases.h), and copies that they count (bulk.h).
ATLAS_SIMT void phase_init(const void* barrier, uint32_t arrivals, Site site);
ATLAS_SIMT void phase_arrive(const void* barrier, uint32_t expected_bytes, Site site);
/// An arrival that comes with the copies that the lane has begun by async_copy.
ATLAS_SIMT void phase_arrive_copied(const void* barrier, Site site);
ATLAS_SIMT void phase_wait(const void* barrier, uint32_t parity, Site site);
ATLAS_SIMT void bulk_copy(void* shared_to, const void* from, uint32_t bytes, const void* barrier,
                          Site site);
ATLAS_SIMT void pause(Site site);
ATLAS_SIMT uint64_t clock_ns();

}  // namespace atlas::simt
