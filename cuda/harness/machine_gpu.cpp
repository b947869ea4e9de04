#include "machine_gpu.hpp"

#include "cuda_check.hpp"

namespace dsa::harness {

namespace {

class GpuMachine final : public Machine {
 public:
  GpuMachine() { DSA_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~GpuMachine() override { cudaStreamDestroy(stream_); }

  void* allocate(std::size_t bytes) override {
    void* address = nullptr;
    DSA_CUDA_CHECK(cudaMalloc(&address, bytes));  // aligned to 256 bytes at least
    return address;
  }
  void release(void* address) override { cudaFree(address); }
  // On our own stream and waited for: pageable host memory makes these synchronous anyway.
  void copy_in(void* to, const void* from, std::size_t bytes) override {
    DSA_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
    DSA_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  void copy_out(void* to, const void* from, std::size_t bytes) override {
    DSA_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
    DSA_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  void fill(void* address, unsigned char value, std::size_t bytes) override {
    DSA_CUDA_CHECK(cudaMemsetAsync(address, value, bytes, stream_));
  }
  void poison_shared_memory() override { poison_gpu_shared_memory(stream_); }
  std::string synchronize() override {
    const cudaError_t error = cudaStreamSynchronize(stream_);
    return error == cudaSuccess
               ? ""
               : std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
  }
  void* stream() override { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::string gpu_unavailable() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return std::string("no usable GPU: ") + cudaGetErrorString(error);
  if (count == 0) return "no GPU in this machine";
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return "the GPU does not answer";
  if (properties.major != 9 || properties.minor != 0) {
    return std::string("the kernels are built for Hopper (compute capability 9.0); this GPU is ") +
           properties.name + " (" + std::to_string(properties.major) + "." +
           std::to_string(properties.minor) + ")";
  }
  return "";
}

std::unique_ptr<Machine> open_gpu() {
  return std::make_unique<GpuMachine>();
}

}  // namespace dsa::harness
