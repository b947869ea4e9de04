/// @file cuda_names.hpp
/// CUDA's own names for a compiler that has no CUDA: keywords, built-in variables, vector types, block and warp
/// collectives, atomics and intrinsics, as far as the kernels use them. Included by device.cuh under g++ only.
///
/// Everything with a state lives in emulator.cpp; the functions here only pass values through.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulator.hpp"

// ---- Keywords ----------------------------------------------------------------------------------------------
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
// A variable per block cannot be had from a C++ compiler; one struct per kernel can, and is clearer anyway.
#define __shared__ _Pragma("GCC error \"declare one struct and use dsa::shared_memory<T>() instead of __shared__\"")

// ---- Types and errors: the real ones live in the global namespace, so these are brought there ------------------
using dsa::emulator::cudaError_t;
using dsa::emulator::cudaErrorInvalidConfiguration;
using dsa::emulator::cudaErrorInvalidValue;
using dsa::emulator::cudaErrorLaunchFailure;
using dsa::emulator::cudaStream_t;
using dsa::emulator::cudaSuccess;
using dsa::emulator::dim3;
using dsa::emulator::uint3;

// ---- Built-in variables: rewritten by the scheduler at every switch, so a debugger can print them ---------------
using dsa::emulator::blockDim;
using dsa::emulator::blockIdx;
using dsa::emulator::gridDim;
using dsa::emulator::threadIdx;
inline constexpr int warpSize = 32;

namespace dsa::emulator {

struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

/// Shuffles move 4 or 8 bytes of any trivially copyable type.
template <class T> uint64_t pack(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T> T unpack(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace dsa::emulator

using dsa::emulator::float2;
using dsa::emulator::float4;
using dsa::emulator::int2;
using dsa::emulator::int4;
using dsa::emulator::uint2;
using dsa::emulator::uint4;
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- Block and warp collectives ------------------------------------------------------------------------------
inline void __syncthreads() { dsa::emulator::block_barrier(); }
inline int __syncthreads_count(int predicate) { return dsa::emulator::block_barrier_count(predicate != 0); }
inline int __syncthreads_or(int predicate) { return dsa::emulator::block_barrier_count(predicate != 0) != 0; }
inline int __syncthreads_and(int predicate) { return dsa::emulator::block_barrier_count(predicate == 0) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  dsa::emulator::warp_collective(dsa::emulator::WarpOp::kSync, mask, 0, 0, 32);
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }

template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  using namespace dsa::emulator;
  return unpack<T>(warp_collective(WarpOp::kShuffle, mask, pack(value), lane, width));
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  using namespace dsa::emulator;
  return unpack<T>(warp_collective(WarpOp::kShuffleXor, mask, pack(value), lane_mask, width));
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  using namespace dsa::emulator;
  return unpack<T>(warp_collective(WarpOp::kShuffleUp, mask, pack(value), int(delta), width));
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  using namespace dsa::emulator;
  return unpack<T>(warp_collective(WarpOp::kShuffleDown, mask, pack(value), int(delta), width));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return unsigned(dsa::emulator::warp_collective(dsa::emulator::WarpOp::kBallot, mask, predicate != 0, 0, 32));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
template <class T> unsigned __match_any_sync(unsigned mask, T value) {
  using namespace dsa::emulator;
  return unsigned(warp_collective(WarpOp::kMatchAny, mask, pack(value), 0, 32));
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return unsigned(dsa::emulator::warp_collective(dsa::emulator::WarpOp::kReduceAdd, mask, value, 0, 32));
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  return unsigned(dsa::emulator::warp_collective(dsa::emulator::WarpOp::kReduceMax, mask, value, 0, 32));
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  return unsigned(dsa::emulator::warp_collective(dsa::emulator::WarpOp::kReduceMin, mask, value, 0, 32));
}

// ---- Atomics: real ones, so that a thread sanitizer knows them for what they are --------------------------------
namespace dsa::emulator {
template <class T, class Update> T atomic_update(T* address, Update update) {
  preemption_point();
  std::atomic_ref<T> cell(*address);
  T old = cell.load(std::memory_order_relaxed);
  while (!cell.compare_exchange_weak(old, update(old), std::memory_order_relaxed)) {
  }
  return old;
}
}  // namespace dsa::emulator

template <class T> T atomicAdd(T* address, T value) {
  return dsa::emulator::atomic_update(address, [&](T old) { return T(old + value); });
}
template <class T> T atomicSub(T* address, T value) {
  return dsa::emulator::atomic_update(address, [&](T old) { return T(old - value); });
}
template <class T> T atomicMax(T* address, T value) {
  return dsa::emulator::atomic_update(address, [&](T old) { return old < value ? value : old; });
}
template <class T> T atomicMin(T* address, T value) {
  return dsa::emulator::atomic_update(address, [&](T old) { return value < old ? value : old; });
}
template <class T> T atomicOr(T* address, T value) {
  return dsa::emulator::atomic_update(address, [&](T old) { return T(old | value); });
}
template <class T> T atomicAnd(T* address, T value) {
  return dsa::emulator::atomic_update(address, [&](T old) { return T(old & value); });
}
template <class T> T atomicExch(T* address, T value) {
  return dsa::emulator::atomic_update(address, [&](T) { return value; });
}
template <class T> T atomicCAS(T* address, T expected, T value) {
  return dsa::emulator::atomic_update(address, [&](T old) { return old == expected ? value : old; });
}

// ---- Intrinsics ------------------------------------------------------------------------------------------------
template <class T> T __ldg(const T* address) { return *address; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(unsigned x) { return std::countl_zero(x); }
inline int __ffs(unsigned x) { return x ? std::countr_zero(x) + 1 : 0; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float x, float y) { return x / y; }
using std::max;
using std::min;
