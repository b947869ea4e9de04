/// @file probe.hpp
/// What the probes share: device memory, launches that report errors, lines of results, waits that end.
///
/// A result is one line, `name: words`, the same on both back ends when the emulator is right. Lines that start with
/// '#' tell something and are not compared.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../cuda/common/swizzle.cuh"
#include "../../cuda/device/ptx.cuh"

#if defined(DSA_EMULATOR)
#include "../../cuda/device/emulator/memory.hpp"
#endif

namespace dsa::probe {

// ---- Running ------------------------------------------------------------------------------------------------------
/// Set by the command line: only probes with this in their names run.
inline std::string wanted;
inline bool is_wanted(const std::string& name) { return name.find(wanted) != std::string::npos; }

inline int failures = 0;

/// Reports an error of a launch or of CUDA under the probe's name. On the GPU no later call can work, so it ends there.
inline bool succeeded(const std::string& name, cudaError_t error) {
#if defined(DSA_EMULATOR)
  if (error == cudaSuccess) return true;
  std::printf("%s: ERROR %d %s\n", name.c_str(), int(error), emulator::last_error().c_str());
  ++failures;
  return false;
#else
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error == cudaSuccess) return true;
  std::printf("%s: ERROR %d %s\n", name.c_str(), int(error), cudaGetErrorString(error));
  std::exit(1);
#endif
}

/// An array that kernels see.
template <class T> class Array {
 public:
  explicit Array(std::size_t count) : Array(std::vector<T>(count)) {}
  explicit Array(const std::vector<T>& values) : count_(values.size()) {
#if defined(DSA_EMULATOR)
    data_ = static_cast<T*>(std::aligned_alloc(256, (bytes() + 255) / 256 * 256));
    emulator::add_allocation(data_, bytes());
    std::memcpy(data_, values.data(), bytes());
#else
    succeeded("cudaMalloc", cudaMalloc(&data_, bytes()));
    succeeded("cudaMemcpy", cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
#endif
  }
  ~Array() {
#if defined(DSA_EMULATOR)
    emulator::remove_allocation(data_);
    std::free(data_);
#else
    cudaFree(data_);
#endif
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() const { return data_; }
  std::size_t bytes() const { return count_ * sizeof(T); }
  std::vector<T> read() const {
    std::vector<T> values(count_);
#if defined(DSA_EMULATOR)
    std::memcpy(values.data(), data_, bytes());
#else
    succeeded("cudaMemcpy", cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost));
#endif
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

/// Launches `kernel` on `blocks` blocks as one cluster; a struct per kernel lies in shared memory.
template <class Shared, class... Parameters, class... Arguments>
bool run(const std::string& name, void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
         const Arguments&... arguments) {
  LaunchConfig config{dim3(blocks), dim3(threads), sizeof(Shared)};
  config.cluster = blocks;
  return succeeded(name, launch(kernel, config, arguments...));
}

// ---- Results ------------------------------------------------------------------------------------------------------
/// FNV-1a, 64 bits.
inline uint64_t fnv(const void* data, std::size_t bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
  return hash;
}
template <class T> uint64_t fnv(const std::vector<T>& values) { return fnv(values.data(), values.size() * sizeof(T)); }

template <class T> void print_words(const std::string& name, const std::vector<T>& values) {
  std::printf("%s:", name.c_str());
  for (const T value : values) std::printf(" %0*x", int(2 * sizeof(T)), unsigned(value));
  std::printf("\n");
}

/// The hash, and whether the values are those of the probe's own model ("ok" or the first that is not).
template <class T> void print_hash(const std::string& name, const std::vector<T>& values, const std::vector<T>& model) {
  std::printf("%s: fnv %016llx", name.c_str(), static_cast<unsigned long long>(fnv(values)));
  std::size_t i = 0, bad = 0, first = 0;
  for (; i < values.size(); ++i)
    if (std::memcmp(&values[i], &model[i], sizeof(T)) != 0 && bad++ == 0) first = i;
  if (bad == 0) std::printf(" ok\n");
  else std::printf(" UNEXPECTED %zu of %zu, first at %zu\n", bad, values.size(), first);
}

// ---- Data ---------------------------------------------------------------------------------------------------------
/// The same numbers everywhere.
inline uint32_t scramble(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}
inline std::vector<unsigned char> scrambled_bytes(std::size_t count, uint32_t seed) {
  std::vector<unsigned char> bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<unsigned char>(scramble(uint32_t(i) + seed * 0x9e3779b9u));
  return bytes;
}

// ---- Device: waits that end -----------------------------------------------------------------------------------------
inline constexpr uint32_t kTimeout = 0x71e0071e;   // "TIMEOUT" in a word of results

/// False when the phase has not completed after a good while.
DSA_DEVICE bool completes(ptx::mbarrier* bar, unsigned parity) {
#if defined(DSA_EMULATOR)
  for (int tries = 0; tries < 1000; ++tries)
    if (ptx::mbarrier_try_wait_parity_cluster(bar, parity)) return true;
  return false;
#else
  const long long start = clock64();
  while (!ptx::mbarrier_try_wait_parity_cluster(bar, parity))
    if (clock64() - start > 50'000'000) return false;
  return true;
#endif
}

/// All threads: bytes of global memory to shared memory, ready for both proxies.
DSA_DEVICE void fill_shared(void* smem, const void* gmem, unsigned bytes) {
  for (unsigned i = threadIdx.x; i < bytes / 16; i += blockDim.x)
    static_cast<uint4*>(smem)[i] = static_cast<const uint4*>(gmem)[i];
  ptx::fence_proxy_async_shared();
  __syncthreads();
}
/// All threads: the way back.
DSA_DEVICE void dump_shared(void* gmem, const void* smem, unsigned bytes) {
  __syncthreads();
  for (unsigned i = threadIdx.x; i < bytes / 16; i += blockDim.x)
    static_cast<uint4*>(gmem)[i] = static_cast<const uint4*>(smem)[i];
}

}  // namespace dsa::probe
