/// @file address.cuh
/// Addresses in shared memory: the 32-bit window that PTX operands use, the other CTAs of a cluster, swizzle modes.
///
/// The folder's rules. Every function is one instruction, named after it, with the emulator's body and the GPU's side
/// by side. The comment above says what the PTX is, who executes it and through which proxy it works; "PTX ISA" names
/// the section of the manual. On the GPU a function forwards to `cuda::ptx` where CCCL has the instruction. Functions
/// take generic pointers, for example `&s.full[stage]` of the kernel's shared struct, and convert them themselves.
#pragma once

#include "../device.cuh"

#if defined(DSA_EMULATOR)
#include "../emulator/hopper.hpp"
#else
#include <cuda/ptx>
#endif

namespace dsa::ptx {

/// How rows of 32, 64 or 128 bytes are spread over the banks: a tensor map, a matrix descriptor and a kernel that
/// writes tiles by hand must name the same mode. The permutation itself: cuda/common/swizzle.cuh.
enum class Swizzle { kNone, k32B, k64B, k128B };

/// Bytes of one row of the mode's atom (8 rows); kNone has "rows" of one 16-byte chunk.
__host__ __device__ constexpr unsigned swizzle_bytes(Swizzle swizzle) { return 16u << unsigned(swizzle); }

/// Address in the 32-bit shared window, of a place in this CTA's shared memory.
/// PTX `cvta.to.shared.u64`; any thread. PTX ISA: "Data Movement and Conversion Instructions: cvta".
DSA_DEVICE uint32_t smem_address(const void* smem) {
#if defined(DSA_EMULATOR)
  return emulator::shared_address(smem);
#else
  return uint32_t(__cvta_generic_to_shared(smem));
#endif
}

/// The place with this address: for addresses that a loop computes, which cost 32-bit arithmetic this way.
/// PTX `cvta.shared.u64`; any thread. PTX ISA: "Data Movement and Conversion Instructions: cvta".
template <class T> DSA_DEVICE T* smem_pointer(uint32_t address) {
#if defined(DSA_EMULATOR)
  char* begin = static_cast<char*>(emulator::shared_memory());
  return reinterpret_cast<T*>(begin + (address - emulator::shared_address(begin)));
#else
  return static_cast<T*>(__cvta_shared_to_generic(address));
#endif
}

/// The same place in the shared memory of CTA `rank` of the cluster. The result is good for plain loads and stores
/// (DSMEM) and for the functions here that ask for a mapped pointer.
/// PTX `mapa.u64`; any thread. PTX ISA: "Data Movement and Conversion Instructions: mapa".
template <class T> DSA_DEVICE T* map_to_cluster(T* smem, unsigned rank) {
#if defined(DSA_EMULATOR)
  return static_cast<T*>(emulator::map_to_cluster(smem, rank));
#else
  return static_cast<T*>(__cluster_map_shared_rank(smem, rank));
#endif
}

/// This CTA's rank in its cluster. PTX `mov.u32 %cluster_ctarank`; any thread. PTX ISA: "Special Registers".
DSA_DEVICE unsigned cluster_ctarank() {
#if defined(DSA_EMULATOR)
  return emulator::cluster_rank();
#else
  return cuda::ptx::get_sreg_cluster_ctarank();
#endif
}

/// CTAs in the cluster; 1 without one. PTX `mov.u32 %cluster_nctarank`; any thread. PTX ISA: "Special Registers".
DSA_DEVICE unsigned cluster_nctarank() {
#if defined(DSA_EMULATOR)
  return emulator::cluster_blocks();
#else
  return cuda::ptx::get_sreg_cluster_nctarank();
#endif
}

}  // namespace dsa::ptx
