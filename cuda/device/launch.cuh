/// @file launch.cuh
/// Starting a kernel: cudaLaunchKernelExC on the GPU, the fiber scheduler on the emulator.
#pragma once

#include <cstddef>

#include "limits.hpp"

namespace dsa {

/// What stands between `<<<` and `>>>`.
struct LaunchConfig {
  dim3 grid;                        ///< blocks; x up to 2^31-1, y and z up to 65535
  dim3 block;                       ///< threads, at most 1024
  std::size_t shared_bytes = 0;     ///< dynamic shared memory; past 48 KiB it is opted in to here
  cudaStream_t stream = nullptr;
  unsigned cluster = 1;             ///< blocks of a cluster, neighbours in x; divides grid.x, at most 8
  bool overlap = false;             ///< may begin while the kernel before it ends, see ptx::griddepcontrol_wait()
};

/// SMs of the current device, for kernels whose CTAs stay and take one piece of work after the other. On the emulator
/// 3, so that even small problems go round.
static inline int sm_count() {
#if defined(DSA_EMULATOR)
  return 3;
#else
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  return cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess ? count : 1;
#endif
}

/// Starts `kernel(arguments...)` and returns the launch's own error; errors inside the kernel surface at the
/// next synchronisation on the GPU, and here on the emulator.
template <class... Parameters, class... Arguments>
static cudaError_t launch(void (*kernel)(Parameters...), const LaunchConfig& config, const Arguments&... arguments) {
#if defined(DSA_EMULATOR)
  const auto call = [&] { kernel(static_cast<Parameters>(arguments)...); };
  // By reference, so that it stays on this stack, where the emulator expects a kernel's arguments.
  return emulator::run_grid(config.grid, config.block, config.cluster, config.shared_bytes, std::cref(call));
#else
  const void* entry = reinterpret_cast<const void*>(kernel);
  if (config.shared_bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, int(config.shared_bytes));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t native{};
  native.gridDim = config.grid;
  native.blockDim = config.block;
  native.dynamicSmemBytes = config.shared_bytes;
  native.stream = config.stream;
  cudaLaunchAttribute attributes[2]{};
  native.attrs = attributes;
  if (config.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[native.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {config.cluster, 1, 1};
  }
  if (config.overlap) {
    cudaLaunchAttribute& attribute = attributes[native.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  return cudaLaunchKernelEx(&native, kernel, static_cast<Parameters>(arguments)...);
#endif
}

}  // namespace dsa
