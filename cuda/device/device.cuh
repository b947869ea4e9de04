/// @file device.cuh
/// The seam: everything a kernel file needs besides plain C++. Include this one header.
///
/// A kernel is ordinary CUDA C++ plus the functions of this folder. It compiles twice, unchanged:
///
/// | compiler                | back end     | what the folder provides                                     |
/// |-------------------------|--------------|--------------------------------------------------------------|
/// | nvcc for sm_90a         | GPU          | CUDA's own names, and force-inlined PTX for the rest          |
/// | g++, no CUDA needed     | emulator     | stand-ins for CUDA's names; one fiber per CUDA thread         |
///
/// Rules that make this work:
/// - shared memory is one struct per kernel, reached through `shared_memory<T>()`, never a `__shared__` variable;
/// - no inline assembly outside this folder;
/// - kernels start through `launch()`;
/// - host functions in headers are `static`. One program holds both back ends, and of two inline functions of one name the
///   linker keeps one: the GPU would be handed what was made for the emulator.
#pragma once

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#define DSA_DEVICE __device__ __forceinline__
#else
#include "emulator/cuda_names.hpp"
#define DSA_DEVICE [[gnu::always_inline]] inline
#define DSA_EMULATOR 1
#endif

#include "launch.cuh"
#include "numeric.cuh"

namespace dsa {

#if defined(DSA_EMULATOR)
/// The block's dynamic shared memory as a T, aligned to 1024 bytes. Filled with NaN patterns when a block starts
/// on the emulator, and with whatever was there before on the GPU.
template <class T> T& shared_memory() {
  return *static_cast<T*>(emulator::shared_memory());
}
#else
extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
template <class T> __device__ __forceinline__ T& shared_memory() {
  return *reinterpret_cast<T*>(dynamic_shared_memory);
}
#endif

}  // namespace dsa
