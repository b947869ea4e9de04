#include "yardsticks.hpp"

#include "../cuda/harness/cuda_check.hpp"
#include "device_memory.hpp"

namespace dsa::bench {

namespace {

class Copy final : public Yardstick {
 public:
  Copy() : from_(kYardstickCopyBytes), to_(kYardstickCopyBytes) {
    // Random words: constant ones would let the memory's data bus rest.
    from_.fill_random<uint64_t>([](uint64_t i) { return random_bits(1, i); });
  }

  int enqueue(void* stream) override {
    return cudaMemcpyAsync(to_.data(), from_.data(), std::size_t(kYardstickCopyBytes),
                           cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream));
  }
  double amount() const override { return 2.0 * double(kYardstickCopyBytes); }

 private:
  DeviceMemory from_, to_;
};

}  // namespace

std::unique_ptr<Yardstick> make_yardstick(YardstickKind kind, void* stream) {
  if (kind == YardstickKind::kCopy) return std::make_unique<Copy>();
  return make_matrix_product(kind == YardstickKind::kCublasFp8, stream);
}

}  // namespace dsa::bench
