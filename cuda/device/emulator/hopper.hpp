/// @file hopper.hpp
/// What the functions of cuda/device/ptx call on the emulator: Hopper's asynchronous instructions, one function each.
///
/// Every function acts for the running CUDA thread. A broken rule ends the launch with cudaErrorLaunchFailure and a
/// verdict in `last_error()`; these functions then do not return. Copies and matrix products happen later, at a time
/// the Schedule chooses within what PTX allows.
#pragma once

#include <cstdint>

#include "emulator.hpp"

namespace dsa::emulator {

// ---- Addresses and clusters ---------------------------------------------------------------------------------
/// Address in the shared window, as `cvta.to.shared` gives: the offset in the block's dynamic shared memory plus
/// kSharedWindowStart. Faults when `address` is not in the block's own shared memory.
uint32_t shared_address(const void* address);
/// As on the hardware, where the first KiB belongs to the system and dynamic shared memory follows.
inline constexpr uint32_t kSharedWindowStart = 1024;
/// mapa: the same place in the shared memory of block `rank` of the cluster.
void* map_to_cluster(const void* address, unsigned rank);
unsigned cluster_rank();
unsigned cluster_blocks();
void cluster_arrive();
void cluster_wait();

// ---- mbarrier -------------------------------------------------------------------------------------------------
void mbarrier_init(uint64_t* barrier, unsigned arrivals);
/// `barrier` may belong to another block of the cluster.
void mbarrier_arrive(uint64_t* barrier, unsigned count);
void mbarrier_expect_tx(uint64_t* barrier, unsigned bytes);
/// Waits for the phase of this parity to complete, for a while: false means try again.
bool mbarrier_try_wait_parity(uint64_t* barrier, unsigned parity);
/// Whether it has; does not wait.
bool mbarrier_test_wait_parity(uint64_t* barrier, unsigned parity);

// ---- Copies ---------------------------------------------------------------------------------------------------
/// cp.async: `bytes` (4, 8 or 16) to shared memory, of which only the first `source_bytes` are read, the rest are zero.
void cp_async(void* shared, const void* global, unsigned bytes, unsigned source_bytes);
void cp_async_commit_group();
void cp_async_wait_group(unsigned pending);
/// cp.async.mbarrier.arrive[.noinc]: arrives when all earlier cp.async of this thread have landed.
void cp_async_mbarrier_arrive(uint64_t* barrier, bool noinc);

/// cp.async.bulk to shared memory, of this block or (from shared memory) of another; completes `bytes` on `barrier`.
void bulk_load(void* shared, const void* source, unsigned bytes, uint64_t* barrier);
enum class BulkStore { kCopy, kAddF32 };
/// cp.async.bulk / cp.reduce.async.bulk from shared to global memory, in the thread's bulk group.
void bulk_store(void* global, const void* shared, unsigned bytes, BulkStore op);
void bulk_commit_group();
/// cp.async.bulk.wait_group[.read]: `only_read` waits until the sources have been read, not until all is written.
void bulk_wait_group(unsigned pending, bool only_read);

/// A tensor map (PTX: tensor-map; CUDA driver API: cuTensorMapEncodeTiled), tiled mode.
struct TensorMap {
  enum class Swizzle { kNone, k32, k64, k128 };
  void* base = nullptr;
  int rank = 0;                 ///< 1 to 5; dimension 0 is contiguous
  int element_bytes = 0;
  uint64_t size[5] = {};        ///< elements
  uint64_t stride[5] = {};      ///< bytes; stride[0] = element_bytes
  uint32_t box[5] = {};         ///< elements
  Swizzle swizzle = Swizzle::kNone;
};
/// cp.async.bulk.tensor to shared memory; elements outside the tensor are zero. Completes the whole box's bytes.
/// @param dimensions  coordinates given; must be the map's rank
void tensor_load(void* shared, const TensorMap* map, const int* coordinates, int dimensions, uint64_t* barrier);
/// cp.async.bulk.tensor from shared memory; elements outside are not written.
void tensor_store(const TensorMap* map, const int* coordinates, int dimensions, const void* shared);
/// st.async of 16 bytes to another block of the cluster; completes 16 bytes on its `barrier`.
void st_async(void* shared, const void* value, unsigned bytes, uint64_t* barrier);

// ---- Order ----------------------------------------------------------------------------------------------------
void fence_proxy_async();
/// bar.sync / bar.red.popc / bar.arrive on barrier `id` with `threads` participants.
void named_barrier_sync(unsigned id, unsigned threads);
int named_barrier_count(unsigned id, unsigned threads, bool predicate);
void named_barrier_arrive(unsigned id, unsigned threads);
void setmaxnreg_inc(unsigned registers);
void setmaxnreg_dec(unsigned registers);
/// elect.sync: true in one lane of the warp.
bool elect_sync();

// ---- wgmma ----------------------------------------------------------------------------------------------------
/// wgmma.mma_async.sync.aligned.m64nNkK.f32.TYPE.TYPE
struct WgmmaShape {
  enum class Type { kBf16, kE4m3 };
  int n;
  Type type;
  bool a_from_registers = false;
  bool a_mn_major = false;      ///< imm-trans-a; bf16 only
  bool b_mn_major = false;      ///< imm-trans-b; bf16 only
  constexpr int k() const { return type == Type::kBf16 ? 16 : 32; }
};
void wgmma_fence();
/// d: this thread's n/2 accumulators; a: its 4 registers, or nullptr when `a_descriptor` counts.
/// `accumulate` is scale-d: false overwrites d.
void wgmma(const WgmmaShape& shape, float* d, const uint32_t* a, uint64_t a_descriptor, uint64_t b_descriptor,
           bool accumulate);
void wgmma_commit_group();
void wgmma_wait_group(unsigned pending);

// ---- Matrices of 8x8 16-bit elements in shared memory ------------------------------------------------------------
/// ldmatrix.sync.aligned.m8n8.x{count}[.trans].shared.b16: `row` is this lane's row address.
void ldmatrix(uint32_t* registers, int count, bool transposed, const void* row);
/// stmatrix.sync.aligned.m8n8.x{count}[.trans].shared.b16
void stmatrix(void* row, const uint32_t* registers, int count, bool transposed);

// ---- Global memory ------------------------------------------------------------------------------------------------
/// red.global.add.v{count}.f32, relaxed; `address` aligned to the vector.
void red_add_f32(float* address, const float* values, int count);

}  // namespace dsa::emulator
