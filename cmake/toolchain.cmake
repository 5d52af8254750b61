# Compiler flags for every target: warnings are errors, ccache and a fast linker where they exist.

add_library(atlas_flags INTERFACE)
target_compile_options(atlas_flags INTERFACE
  -Wall -Wextra -Werror -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers
  $<$<CONFIG:Release>:-g1>)

# Highway's NEON code is for this target; g++ 12 makes a class's implicit functions for the file's own, and
# refuses to inline the one into the other unless they agree. All arm64 servers have these instructions.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  target_compile_options(atlas_flags INTERFACE -march=armv8-a+crypto)
endif()

# Contraction would let the compiler decide where a rounding happens; kernels spell out each fma.
target_compile_options(atlas_flags INTERFACE -ffp-contract=off)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG")

# g++ takes the sanitizers' own checks for reads of uninitialised memory, so that warning is off there.
if(ATLAS_SANITIZE STREQUAL "address")
  add_compile_options(-Wno-maybe-uninitialized -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1)
  add_link_options(-fsanitize=address,undefined)
elseif(ATLAS_SANITIZE STREQUAL "thread")
  add_compile_options(-Wno-maybe-uninitialized -fsanitize=thread -fno-omit-frame-pointer -O1)
  add_link_options(-fsanitize=thread)
elseif(NOT ATLAS_SANITIZE STREQUAL "")
  message(FATAL_ERROR "ATLAS_SANITIZE is '${ATLAS_SANITIZE}': it takes nothing, 'address' or 'thread'")
endif()

find_program(ATLAS_CCACHE ccache)
if(ATLAS_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${ATLAS_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ATLAS_CCACHE})
endif()

find_program(ATLAS_LLD ld.lld)
# A cross compiler looks for an ld.lld of its own target.
if(ATLAS_LLD AND NOT CMAKE_CROSSCOMPILING)
  add_link_options(-fuse-ld=lld)
endif()
