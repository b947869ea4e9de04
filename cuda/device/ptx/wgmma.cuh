/// @file wgmma.cuh
/// The tensor cores of Hopper: D = A B (+ D) by a warpgroup, asynchronously, B and mostly A from shared memory.
///
/// The pattern, by all 128 threads of an aligned warpgroup, converged:
///
///     wgmma_fence();                             // registers written before are safe to use
///     wgmma_m64n64k16_bf16_ss<0, 0>(d, ...);     // one or more, on the same or on other accumulators
///     wgmma_commit_group();
///     wgmma_wait_group<0>();
///     wgmma_keep(d);                             // keeps the compiler from reading d before the wait
///
/// Between issue and wait neither d nor the registers of an RS product may be touched, and the operands in shared
/// memory must not change. They are read through the async proxy: after generic writes, fence_proxy_async_shared().
///
/// **Fragments.** Thread t of the warpgroup: warp w = t / 32, g = t % 32 / 4, q = t % 4.
///
/// | registers     | hold                                                                                   |
/// |---------------|----------------------------------------------------------------------------------------|
/// | d[4j + 2h + i]| D, row 16 w + 8 h + g, column 8 j + 2 q + i                (h, i in 0, 1)              |
/// | a[2c + h], bf16 | A, row 16 w + 8 h + g, k = 8 c + 2 q + i, i = 0 in the lower half                    |
/// | a[2c + h], e4m3 | A, row 16 w + 8 h + g, k = 16 c + 4 q + i, i = 0 in the lowest byte                  |
///
/// PTX ISA: "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
#pragma once

#include "address.cuh"

namespace dsa::ptx {

// ---- Operands in shared memory ------------------------------------------------------------------------------------
/// The 64-bit description of an operand in shared memory: where it starts and how its 16-byte pieces lie.
///
/// One instruction reads 32 bytes of K (16 bf16 or 32 e4m3) of 64 rows of A or n rows of B. With r the row (index along
/// M or N), k the index along K, e the bytes of an element, the element's offset from the start address is, before the
/// mode's swizzle (swizzle.cuh) is applied to the address,
///
/// | layout, mode    | offset of element (r, k)                               | when atoms lie side by side    |
/// |-----------------|--------------------------------------------------------|--------------------------------|
/// | K-major, kNone  | (r % 8) 16 + (k e) % 16 + (k e / 16) LBO + (r / 8) SBO | one of LBO, SBO is 128         |
/// | K-major, k32B   | (r % 8) 32 + k e + (r / 8) SBO                         | SBO 256; LBO is not read       |
/// | K-major, k64B   | (r % 8) 64 + k e + (r / 8) SBO                         | SBO 512; LBO is not read       |
/// | K-major, k128B  | (r % 8) 128 + k e + (r / 8) SBO                        | SBO 1024; LBO is not read      |
/// | MN-major, kNone | (k % 8) 16 + (r % 8) 2 + (k / 8) LBO + (r / 8) SBO     | one of LBO, SBO is 128         |
/// | MN-major, k32B  | (k % 8) 32 + (r % 16) 2 + (k / 8) SBO + (r / 16) LBO   | SBO 256 along K                |
/// | MN-major, k64B  | (k % 8) 64 + (r % 32) 2 + (k / 8) SBO + (r / 32) LBO   | SBO 512 along K                |
/// | MN-major, k128B | (k % 8) 128 + (r % 64) 2 + (k / 8) SBO + (r / 64) LBO  | SBO 1024 along K               |
///
/// LBO is leading_bytes, SBO stride_bytes. MN-major exists for bf16 only. The swizzle works on address bits, so tiles
/// start at multiples of 8 rows of the mode (256, 512, 1024 bytes); the descriptor's start address itself may lie
/// inside such an atom at a 16-byte step, which is how K advances within a 128-byte row: + 32 bytes per instruction.
/// V of the sparse kernels, 64 keys x 512 columns in eight K-major tiles of 64 rows x 128 bytes with 128B swizzle, is
/// an MN-major B as it lies: LBO 8192 from tile to tile, SBO 1024, + 2048 bytes per 16 keys.
/// PTX ISA: "Matrix Descriptor Format", "Strides", "Shared Memory Matrix Layout".
/// @param smem           where the operand starts; a multiple of 16
/// @param leading_bytes  multiple of 16
/// @param stride_bytes   multiple of 16
DSA_DEVICE uint64_t matrix_descriptor(const void* smem, Swizzle swizzle, unsigned leading_bytes,
                                      unsigned stride_bytes) {
  const uint64_t start = smem_address(smem) >> 4 & 0x3fff;
  const uint64_t leading = leading_bytes >> 4 & 0x3fff;
  const uint64_t stride = stride_bytes >> 4 & 0x3fff;
  const uint64_t mode = swizzle == Swizzle::kNone ? 0 : 4 - uint64_t(swizzle);   // 1: 128B, 2: 64B, 3: 32B
  uint64_t descriptor = start | leading << 16 | stride << 32 | mode << 62;       // base offset, bits 49-51: 0
#if !defined(DSA_EMULATOR)
  // Opaque, and anew wherever it stands: else the compiler keeps every advance of every descriptor in registers across the
  // loop, 36 of them for the scores of a tile, and spills.
  asm volatile("" : "+l"(descriptor));
#endif
  return descriptor;
}

/// The same operand `bytes` further on: a multiple of 16, and no carry out of the 14 bits of the address.
DSA_DEVICE uint64_t descriptor_advance(uint64_t descriptor, unsigned bytes) { return descriptor + (bytes >> 4); }

// ---- Order --------------------------------------------------------------------------------------------------------
/// `wgmma.fence.sync.aligned`: orders the warpgroup's register accesses before the following wgmma. Before the first
/// product, and whenever registers were written since. Whole warpgroup.
DSA_DEVICE void wgmma_fence() {
#if defined(DSA_EMULATOR)
  emulator::wgmma_fence();
#else
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

/// `wgmma.commit_group.sync.aligned`: closes the current group of products. Whole warpgroup.
DSA_DEVICE void wgmma_commit_group() {
#if defined(DSA_EMULATOR)
  emulator::wgmma_commit_group();
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/// `wgmma.wait_group.sync.aligned N`: until all but the N newest groups are done. Whole warpgroup. Then wgmma_keep()
/// the accumulators that are to be read.
template <int kPending> DSA_DEVICE void wgmma_wait_group() {
  static_assert(kPending >= 0 && kPending <= 7);
#if defined(DSA_EMULATOR)
  emulator::wgmma_wait_group(kPending);
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

/// No instruction: tells the compiler that the registers `d` change here, so that it does not move reads of `d` above
/// the wait; ptxas would have to serialise every product then (its messages C7510 to C7514). Only for accumulators
/// whose products are done.
template <int kCount> DSA_DEVICE void wgmma_keep([[maybe_unused]] float (&d)[kCount]) {
#if !defined(DSA_EMULATOR)
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
#endif
}
/// The same for the A registers of an RS product, which must stay until it is done.
template <int kCount> DSA_DEVICE void wgmma_keep([[maybe_unused]] uint32_t (&a)[kCount]) {
#if !defined(DSA_EMULATOR)
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(a[i])::"memory");
#endif
}

// ---- The products -------------------------------------------------------------------------------------------------
// For n of 32, 64, 96, 128, 192, 256:
//
//   wgmma_m64n<n>k16_bf16_ss<kAMnMajor, kBMnMajor>(float (&d)[n / 2], a_descriptor, b_descriptor, accumulate)
//   wgmma_m64n<n>k16_bf16_rs<kBMnMajor>(float (&d)[n / 2], const uint32_t (&a)[4], b_descriptor, accumulate)
//   wgmma_m64n<n>k32_e4m3_ss(float (&d)[n / 2], a_descriptor, b_descriptor, accumulate)
//   wgmma_m64n<n>k32_e4m3_rs(float (&d)[n / 2], const uint32_t (&a)[4], b_descriptor, accumulate)
//
// PTX `wgmma.mma_async.sync.aligned.m64n<n>k16.f32.bf16.bf16` and `...k32.f32.e4m3.e4m3`, A and B not negated.
// `accumulate` is scale-d: when it is false, the old d counts as zero. Whole warpgroup; operands in shared memory
// through the async proxy.

#if defined(DSA_EMULATOR)

#define DSA_WGMMA_N(n, ...)                                                                                           \
  template <bool kAMnMajor, bool kBMnMajor>                                                                           \
  DSA_DEVICE void wgmma_m64n##n##k16_bf16_ss(float (&d)[n / 2], uint64_t a, uint64_t b, bool accumulate) {            \
    emulator::wgmma({n, emulator::WgmmaShape::Type::kBf16, false, kAMnMajor, kBMnMajor}, d, nullptr, a, b,            \
                    accumulate);                                                                                      \
  }                                                                                                                   \
  template <bool kBMnMajor>                                                                                           \
  DSA_DEVICE void wgmma_m64n##n##k16_bf16_rs(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) { \
    emulator::wgmma({n, emulator::WgmmaShape::Type::kBf16, true, false, kBMnMajor}, d, a, 0, b, accumulate);          \
  }                                                                                                                   \
  DSA_DEVICE void wgmma_m64n##n##k32_e4m3_ss(float (&d)[n / 2], uint64_t a, uint64_t b, bool accumulate) {            \
    emulator::wgmma({n, emulator::WgmmaShape::Type::kE4m3, false, false, false}, d, nullptr, a, b, accumulate);       \
  }                                                                                                                   \
  DSA_DEVICE void wgmma_m64n##n##k32_e4m3_rs(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) { \
    emulator::wgmma({n, emulator::WgmmaShape::Type::kE4m3, true, false, false}, d, a, 0, b, accumulate);              \
  }

#else

// The accumulators' names in the assembly, and their constraints, which come first so that they are %0 to %(n/2 - 1).
#define DSA_NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define DSA_NAMES_32 DSA_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define DSA_NAMES_48 DSA_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define DSA_NAMES_64 DSA_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define DSA_NAMES_80 DSA_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define DSA_NAMES_96 DSA_NAMES_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define DSA_NAMES_112 DSA_NAMES_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define DSA_NAMES_128 DSA_NAMES_112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define DSA_ACC_8(i)                                                                                            \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define DSA_ACC_16 DSA_ACC_8(0), DSA_ACC_8(8)
#define DSA_ACC_32 DSA_ACC_16, DSA_ACC_8(16), DSA_ACC_8(24)
#define DSA_ACC_48 DSA_ACC_32, DSA_ACC_8(32), DSA_ACC_8(40)
#define DSA_ACC_64 DSA_ACC_48, DSA_ACC_8(48), DSA_ACC_8(56)
#define DSA_ACC_96 DSA_ACC_64, DSA_ACC_8(64), DSA_ACC_8(72), DSA_ACC_8(80), DSA_ACC_8(88)
#define DSA_ACC_128 DSA_ACC_96, DSA_ACC_8(96), DSA_ACC_8(104), DSA_ACC_8(112), DSA_ACC_8(120)

// `count` is n / 2; i0 to i6 are count to count + 6, the numbers of the operands after the accumulators.
#define DSA_WGMMA_N(n, count, i0, i1, i2, i3, i4, i5, i6)                                                              \
  template <bool kAMnMajor, bool kBMnMajor>                                                                            \
  DSA_DEVICE void wgmma_m64n##n##k16_bf16_ss(float (&d)[n / 2], uint64_t a, uint64_t b, bool accumulate) {             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #i2 ", 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" DSA_NAMES_##count "}, "                  \
                 "%" #i0 ", %" #i1 ", p, 1, 1, %" #i3 ", %" #i4 ";\n}\n"                                               \
                 : DSA_ACC_##count                                                                                     \
                 : "l"(a), "l"(b), "r"(int(accumulate)), "n"(int(kAMnMajor)), "n"(int(kBMnMajor))                      \
                 : "memory");                                                                                          \
  }                                                                                                                    \
  template <bool kBMnMajor>                                                                                            \
  DSA_DEVICE void wgmma_m64n##n##k16_bf16_rs(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #i5 ", 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" DSA_NAMES_##count "}, "                  \
                 "{%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", p, 1, 1, %" #i6 ";\n}\n"                         \
                 : DSA_ACC_##count                                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)), "n"(int(kBMnMajor))       \
                 : "memory");                                                                                          \
  }                                                                                                                    \
  DSA_DEVICE void wgmma_m64n##n##k32_e4m3_ss(float (&d)[n / 2], uint64_t a, uint64_t b, bool accumulate) {             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #i2 ", 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" DSA_NAMES_##count "}, "                  \
                 "%" #i0 ", %" #i1 ", p, 1, 1;\n}\n"                                                                   \
                 : DSA_ACC_##count                                                                                     \
                 : "l"(a), "l"(b), "r"(int(accumulate))                                                                \
                 : "memory");                                                                                          \
  }                                                                                                                    \
  DSA_DEVICE void wgmma_m64n##n##k32_e4m3_rs(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #i5 ", 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" DSA_NAMES_##count "}, "                  \
                 "{%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", p, 1, 1;\n}\n"                                   \
                 : DSA_ACC_##count                                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate))                            \
                 : "memory");                                                                                          \
  }

#endif

DSA_WGMMA_N(32, 16, 16, 17, 18, 19, 20, 21, 22)
DSA_WGMMA_N(64, 32, 32, 33, 34, 35, 36, 37, 38)
DSA_WGMMA_N(96, 48, 48, 49, 50, 51, 52, 53, 54)
DSA_WGMMA_N(128, 64, 64, 65, 66, 67, 68, 69, 70)
DSA_WGMMA_N(192, 96, 96, 97, 98, 99, 100, 101, 102)
DSA_WGMMA_N(256, 128, 128, 129, 130, 131, 132, 133, 134)

#undef DSA_WGMMA_N
#if !defined(DSA_EMULATOR)
#undef DSA_NAMES_16
#undef DSA_NAMES_32
#undef DSA_NAMES_48
#undef DSA_NAMES_64
#undef DSA_NAMES_80
#undef DSA_NAMES_96
#undef DSA_NAMES_112
#undef DSA_NAMES_128
#undef DSA_ACC_8
#undef DSA_ACC_16
#undef DSA_ACC_32
#undef DSA_ACC_48
#undef DSA_ACC_64
#undef DSA_ACC_96
#undef DSA_ACC_128
#endif

}  // namespace dsa::ptx
