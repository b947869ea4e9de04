/// @file tensor_map.cuh
/// Tensor maps and the bulk tensor copies (TMA): one thread moves a box of a tensor, swizzled on the way, with zeros
/// for what lies outside.
///
/// The host makes a TensorMap with make_tensor_map() and passes it by value; the kernel declares the parameter
/// `const __grid_constant__ ptx::TensorMap map` and hands its address to the functions here.
#pragma once

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <stdexcept>
#include <type_traits>

#include "mbarrier.cuh"

#if defined(DSA_EMULATOR)
#if !defined(__grid_constant__)
#define __grid_constant__
#endif
#else
#include <cuda.h>
#endif

namespace dsa::ptx {

#if defined(DSA_EMULATOR)
using TensorMap = emulator::TensorMap;
#else
/// Opaque; 128 bytes, aligned to at least 64. CUDA driver API: CUtensorMap.
struct TensorMap {
  CUtensorMap native;
};
#endif

// ---- Host -------------------------------------------------------------------------------------------------------
namespace detail {

struct TensorMapShape {
  const void* base;
  int element_bytes;
  int rank;
  int64_t size[5], stride[5];   ///< elements; bytes, stride[0] = element_bytes
  int box[5];
  Swizzle swizzle;
};

/// What cuTensorMapEncodeTiled would refuse with no more than CUDA_ERROR_INVALID_VALUE, in words; throws.
static inline void check(const TensorMapShape& s) {
  // No std::string: kernel files are instrumented for the emulator, which would be handed their copies of its code.
  const auto require = [](bool holds, int dimension, const char* what, long long is) {
    if (holds) return;
    char text[160];
    std::snprintf(text, sizeof text, "make_tensor_map: dimension %d: %s, is %lld", dimension, what, is);
    throw std::invalid_argument(text);
  };
  const auto base = reinterpret_cast<uintptr_t>(s.base);
  require(base != 0 && base % 16 == 0, 0, "the base address must be a multiple of 16 and not null", (long long)base);
  for (int i = 0; i < s.rank; ++i) {
    require(s.size[i] >= 1 && s.size[i] <= int64_t(1) << 32, i, "the size must be from 1 to 2^32", s.size[i]);
    require(s.box[i] >= 1 && s.box[i] <= 256, i, "the box must have from 1 to 256 elements", s.box[i]);
    require(i == 0 || (s.stride[i] >= 0 && s.stride[i] % 16 == 0 && s.stride[i] < int64_t(1) << 40), i,
            "the stride must be a multiple of 16 bytes below 2^40", s.stride[i]);
  }
  const int row = s.box[0] * s.element_bytes;
  require(row % 16 == 0, 0, "the bytes of the box's row must be a multiple of 16", row);
  require(s.swizzle == Swizzle::kNone || row <= int(swizzle_bytes(s.swizzle)), 0,
          "the bytes of the box's row must not exceed those of the swizzle mode", row);
}

#if defined(DSA_EMULATOR)
static inline TensorMap encode(const TensorMapShape& s) {
  TensorMap map;
  map.base = const_cast<void*>(s.base);
  map.rank = s.rank;
  map.element_bytes = s.element_bytes;
  for (int i = 0; i < s.rank; ++i) {
    map.size[i] = uint64_t(s.size[i]);
    map.stride[i] = uint64_t(s.stride[i]);
    map.box[i] = uint32_t(s.box[i]);
  }
  map.swizzle = static_cast<TensorMap::Swizzle>(s.swizzle);
  return map;
}
static_assert(int(Swizzle::k128B) == int(TensorMap::Swizzle::k128), "the cast in encode()");
#else
static inline TensorMap encode(const TensorMapShape& s) {
  // Through the runtime, so that nothing links against libcuda. 12000: the version whose signature we call.
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess)
    throw std::runtime_error("make_tensor_map: the driver has no cuTensorMapEncodeTiled");
  const CUtensorMapDataType type = s.element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : s.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  cuuint64_t size[5], stride[5];
  cuuint32_t box[5], element_stride[5];
  for (int i = 0; i < s.rank; ++i) {
    size[i] = cuuint64_t(s.size[i]);
    stride[i] = cuuint64_t(s.stride[i]);
    box[i] = cuuint32_t(s.box[i]);
    element_stride[i] = 1;
  }
  TensorMap map;
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      &map.native, type, cuuint32_t(s.rank), const_cast<void*>(s.base), size, stride + 1, box, element_stride,
      CU_TENSOR_MAP_INTERLEAVE_NONE, static_cast<CUtensorMapSwizzle>(s.swizzle), CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);   // NONE: zeros
  if (result != CUDA_SUCCESS) throw std::runtime_error("make_tensor_map: cuTensorMapEncodeTiled refused the map");
  return map;
}
static_assert(int(Swizzle::k128B) == CU_TENSOR_MAP_SWIZZLE_128B, "the cast in encode()");
#endif

}  // namespace detail

/// A map of the tensor at `base`, tiled mode, rank 1 to 5, dimension 0 contiguous; outside elements read as zero.
/// Throws std::invalid_argument for what the hardware cannot do, and std::runtime_error when the driver refuses.
/// @tparam T            bf16, e4m3, uint8_t or float
/// @param size          elements of each dimension, the contiguous one first
/// @param stride_bytes  of dimensions 1 and up, multiples of 16: one entry fewer than `size`
/// @param box           elements of each dimension of the box, at most 256; its rows are multiples of 16 bytes, and
///                      with a swizzle mode no longer than that mode's 32, 64 or 128 bytes
template <class T>
static TensorMap make_tensor_map(const T* base, std::initializer_list<int64_t> size,
                          std::initializer_list<int64_t> stride_bytes, std::initializer_list<int> box,
                          Swizzle swizzle) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, e4m3> || std::is_same_v<T, uint8_t> ||
                std::is_same_v<T, float>);
  if (size.size() < 1 || size.size() > 5 || stride_bytes.size() + 1 != size.size() || box.size() != size.size())
    throw std::invalid_argument(
        "make_tensor_map: 1 to 5 dimensions; each needs a size and a box, and all but the first a stride");
  detail::TensorMapShape s{base, int(sizeof(T)), int(size.size()), {}, {int64_t(sizeof(T))}, {}, swizzle};
  for (int i = 0; i < s.rank; ++i) {
    s.size[i] = size.begin()[i];
    s.box[i] = box.begin()[i];
    if (i > 0) s.stride[i] = stride_bytes.begin()[i - 1];
  }
  detail::check(s);
  return detail::encode(s);
}

// ---- Device -----------------------------------------------------------------------------------------------------
// One thread; async proxy. smem is aligned to 128 bytes, and to 8 rows of the swizzle mode (1024 bytes for k128B) if
// the pattern is to start at its beginning. `at` is the box's first element, as many coordinates as the map's rank, the
// contiguous dimension x first. What an H200 does beyond the manual (tests/probe): x must be a multiple of 16 bytes, and
// a store takes no negative coordinate, or the chip stops with "illegal instruction"; a store writes whole 16-byte pieces,
// so the contiguous dimension of a tensor that is stored to must be a multiple of 16 bytes long.
// PTX ISA: "Data Movement and Conversion Instructions: cp.async.bulk.tensor".

/// `prefetch.tensormap`: fetches the map ahead of its first use. One thread.
DSA_DEVICE void prefetch_tensormap([[maybe_unused]] const TensorMap* map) {
#if !defined(DSA_EMULATOR)
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

/// cp.async.bulk.tensor from global memory to shared, .tile, completing bytes on a mbarrier: the box at `at` to this CTA's smem,
/// row after row without gaps; completes the bytes of the whole box on `bar`, outside elements included.
template <int kRank>
DSA_DEVICE void cp_async_bulk_tensor_load(void* smem, const TensorMap* map, const int (&at)[kRank], mbarrier* bar) {
#if defined(DSA_EMULATOR)
  emulator::tensor_load(smem, map, at, kRank, bar);
#else
  cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_cluster, cuda::ptx::space_global, smem, map, at, bar);
#endif
}

/// cp.async.bulk.tensor from shared memory to global, .tile, in a .bulk_group: smem to the box at `at`; outside elements are not
/// written. In the thread's current bulk group (async_copy.cuh).
template <int kRank>
DSA_DEVICE void cp_async_bulk_tensor_store(const TensorMap* map, const int (&at)[kRank], const void* smem) {
#if defined(DSA_EMULATOR)
  emulator::tensor_store(map, at, kRank, smem);
#else
  cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_global, cuda::ptx::space_shared, map, at, smem);
#endif
}

}  // namespace dsa::ptx
