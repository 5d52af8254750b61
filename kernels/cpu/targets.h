// Which instruction sets the CPU pack is built for. Include before Highway's headers, in every
// kernel source: all of them must agree, for they share one run-time choice.
#pragma once

// AVX-512 with VNNI (Zen 4, Ice Lake), AVX-512, AVX2 with FMA, NEON, and portable code for the
// rest.
#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
