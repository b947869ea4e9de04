/// @file device_memory.hpp
/// A block of GPU memory for the yardsticks. Kernels' tensors live in harness::Buffer, which guards its ends.
#pragma once

#include <algorithm>
#include <vector>

#include "../cuda/harness/cuda_check.hpp"
#include "../cuda/harness/parallel.hpp"
#include "random.hpp"

namespace dsa::bench {

class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes) : bytes_(bytes) {
    DSA_CUDA_CHECK(cudaMalloc(&address_, std::size_t(bytes)));
  }
  ~DeviceMemory() { cudaFree(address_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* data() const { return address_; }

  /// Fills it with value(0), value(1), ..., elements of type T, on all cores.
  template <class T, class Value>
  void fill_random(const Value& value) {
    constexpr int64_t kChunk = 1 << 22, kGrain = 1 << 16;
    std::vector<T> host;
    const int64_t count = bytes_ / int64_t(sizeof(T));
    for (int64_t first = 0; first < count; first += kChunk) {
      host.resize(std::size_t(std::min(kChunk, count - first)));
      harness::parallel_for(int64_t(host.size()), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) host[std::size_t(i)] = value(uint64_t(first + i));
      });
      DSA_CUDA_CHECK(cudaMemcpy(static_cast<T*>(address_) + first, host.data(), host.size() * sizeof(T),
                                cudaMemcpyHostToDevice));
    }
  }

 private:
  void* address_ = nullptr;
  int64_t bytes_;
};

}  // namespace dsa::bench
