#include "../device/device.cuh"
#include "cuda_check.hpp"
#include "machine_gpu.hpp"

namespace dsa::harness {

static __global__ void poison(int words) {
  uint32_t* memory = &shared_memory<uint32_t>();
  for (int i = threadIdx.x; i < words; i += blockDim.x) memory[i] = 0xffffffffu;
  __syncthreads();
  // The compiler must not drop stores that nobody reads.
  if (memory[threadIdx.x] == 0) __trap();
}

void poison_gpu_shared_memory(void* stream) {
  int sms = 0;
  DSA_CUDA_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  // One block takes a whole SM's shared memory, so as many blocks as SMs land on one SM each; twice as many in
  // case the first ones finish before the last are placed.
  const LaunchConfig config{dim3(unsigned(2 * sms)), dim3(1024), kMaxSharedMemory, static_cast<cudaStream_t>(stream)};
  DSA_CUDA_CHECK(launch(poison, config, int(kMaxSharedMemory / 4)));
  DSA_CUDA_CHECK(cudaStreamSynchronize(config.stream));
}

}  // namespace dsa::harness
