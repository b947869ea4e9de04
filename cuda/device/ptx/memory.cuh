/// @file memory.cuh
/// Loads, stores and reductions in global memory that CUDA C++ has no name for, two arithmetic instructions, and
/// programmatic dependent launch. Any thread; generic proxy.
///
/// PTX ISA: "Data Movement and Conversion Instructions: ld.global.nc, st, prmt", "Parallel Synchronization and
/// Communication Instructions: red, griddepcontrol", "Floating Point Instructions: ex2".
#pragma once

#include "address.cuh"

namespace dsa::ptx {

// ---- Reductions -------------------------------------------------------------------------------------------------
/// `red.global.add.v4.f32`: four atomic additions, each for itself; nothing is returned. `gmem` aligned to 16. The
/// order of additions from different threads is not defined; subnormals count as 0 on the GPU (REDG...FTZ in SASS).
DSA_DEVICE void red_add_v4_f32(float* gmem, float4 value) {
#if defined(DSA_EMULATOR)
  const float values[] = {value.x, value.y, value.z, value.w};
  emulator::red_add_f32(gmem, values, 4);
#else
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(gmem)), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
#endif
}

/// `red.global.add.v2.f32`: two additions; `gmem` aligned to 8.
DSA_DEVICE void red_add_v2_f32(float* gmem, float2 value) {
#if defined(DSA_EMULATOR)
  const float values[] = {value.x, value.y};
  emulator::red_add_f32(gmem, values, 2);
#else
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(gmem)), "f"(value.x), "f"(value.y)
               : "memory");
#endif
}

// ---- Loads and stores ---------------------------------------------------------------------------------------------
/// `ld.global.nc.L1::no_allocate.v4.b32`: 16 bytes that no thread writes while the kernel runs, read once, so that L1
/// keeps what is read again. `gmem` aligned to 16.
DSA_DEVICE uint4 ld_global_nc_v4(const void* gmem) {
#if defined(DSA_EMULATOR)
  return *static_cast<const uint4*>(gmem);
#else
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(__cvta_generic_to_global(gmem))
               : "memory");
  return value;
#endif
}

/// `st.global.L1::no_allocate.v4.b32`: 16 bytes. `gmem` aligned to 16.
DSA_DEVICE void st_global_v4(void* gmem, uint4 value) {
#if defined(DSA_EMULATOR)
  *static_cast<uint4*>(gmem) = value;
#else
  asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(gmem)),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
#endif
}

/// `st.global.cs.v4.b32`: the same, first to leave L2 too: for results that this kernel does not read again.
DSA_DEVICE void st_global_cs_v4(void* gmem, uint4 value) {
#if defined(DSA_EMULATOR)
  *static_cast<uint4*>(gmem) = value;
#else
  asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(gmem)), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
#endif
}

// ---- Arithmetic: no side effects, so neither volatile nor a clobber -------------------------------------------------
/// `ex2.approx.ftz.f32`: 2^x with a relative error of about 2^-22; subnormal results become 0.
DSA_DEVICE float exp2_approx(float x) {
#if defined(DSA_EMULATOR)
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

/// `prmt.b32`: each nibble of `selector` picks one of the eight bytes of {b, a}, a's being 0 to 3; the nibble's top bit
/// replicates the picked byte's sign instead.
DSA_DEVICE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
#if defined(DSA_EMULATOR)
  const uint64_t bytes = uint64_t(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = selector >> (4 * i) & 15;
    const uint32_t byte = uint32_t(bytes >> (8 * (nibble & 7))) & 0xff;
    result |= (nibble & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << (8 * i);
  }
  return result;
#else
  return cuda::ptx::prmt(a, b, selector);
#endif
}

// ---- Programmatic dependent launch ----------------------------------------------------------------------------------
// For kernels launched with LaunchConfig::overlap. The emulator runs them one after the other, and does not see a missing wait.

/// `griddepcontrol.wait`: until the grids this one depends on are complete and their memory visible. Every thread that reads
/// what they write, or writes what they read; at once if the launch did not overlap.
DSA_DEVICE void griddepcontrol_wait() {
#if !defined(DSA_EMULATOR)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// `griddepcontrol.launch_dependents`: dependent grids may start once every CTA has said so or has exited.
DSA_DEVICE void griddepcontrol_launch_dependents() {
#if !defined(DSA_EMULATOR)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace dsa::ptx
