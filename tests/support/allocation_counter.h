// Counts heap allocations of the whole process, all threads and all loaded objects.
#pragma once

#include <cstdint>

namespace atlas::test {

/// Calls of malloc and its family since the program began. Link atlas_allocation_counter, which
/// takes the place of the C library's functions; a program with sanitizers cannot have it.
uint64_t allocation_count();

}  // namespace atlas::test
