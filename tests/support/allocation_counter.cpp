// malloc and its family in front of glibc's own, as its manual allows ("Replacing malloc").
#include "tests/support/allocation_counter.h"

#include <errno.h>

#include <atomic>
#include <cstddef>

#define ATLAS_EXPORTED __attribute__((visibility("default")))

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {
std::atomic<uint64_t> count{0};
void note() { count.fetch_add(1, std::memory_order_relaxed); }
}  // namespace

namespace atlas::test {
uint64_t allocation_count() { return count.load(std::memory_order_relaxed); }
}  // namespace atlas::test

extern "C" {

ATLAS_EXPORTED void* malloc(size_t bytes) {
  note();
  return __libc_malloc(bytes);
}

ATLAS_EXPORTED void* calloc(size_t items, size_t bytes) {
  note();
  return __libc_calloc(items, bytes);
}

ATLAS_EXPORTED void* realloc(void* old, size_t bytes) {
  note();
  return __libc_realloc(old, bytes);
}

ATLAS_EXPORTED void* memalign(size_t alignment, size_t bytes) {
  note();
  return __libc_memalign(alignment, bytes);
}

ATLAS_EXPORTED void* aligned_alloc(size_t alignment, size_t bytes) {
  note();
  return __libc_memalign(alignment, bytes);
}

ATLAS_EXPORTED int posix_memalign(void** result, size_t alignment, size_t bytes) {
  note();
  *result = __libc_memalign(alignment, bytes);
  return *result == nullptr ? ENOMEM : 0;
}

ATLAS_EXPORTED void free(void* block) { __libc_free(block); }

}  // extern "C"
