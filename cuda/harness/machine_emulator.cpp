#include <cstdlib>
#include <cstring>
#include <new>

#include "../device/emulator/emulator.hpp"
#include "machine_gpu.hpp"

namespace dsa::harness {

namespace {

/// The host itself: device memory is heap memory, and a launch has finished when it returns.
class EmulatorMachine final : public Machine {
 public:
  void* allocate(std::size_t bytes) override {
    void* address = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!address) throw std::runtime_error("the host has no " + std::to_string(bytes) + " bytes left");
    return address;
  }
  void release(void* address) override { std::free(address); }
  void copy_in(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_out(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void fill(void* address, unsigned char value, std::size_t bytes) override {
    std::memset(address, value, bytes);
  }
  void poison_shared_memory() override {}  // the scheduler does so before every block
  std::string synchronize() override { return emulator::last_error(); }
  void* stream() override { return nullptr; }
};

}  // namespace

void set_emulator_schedule(const std::string& kind, uint64_t seed) {
  using Kind = emulator::Schedule::Kind;
  if (kind == "round_robin") {
    emulator::set_schedule({Kind::kRoundRobin, seed});
  } else if (kind == "random") {
    emulator::set_schedule({Kind::kRandom, seed});
  } else {
    throw BadInput("unknown schedule '" + kind + "' (known: round_robin, random)");
  }
}

std::string unavailable(Device device) {
  switch (device) {
    case Device::kCpu:
      return "the reference runs on the cpu; kernels run on the emulator or on the gpu";
    case Device::kEmulator:
      return "";
    case Device::kGpu:
      return gpu_unavailable();
  }
  return "no such device";
}

std::unique_ptr<Machine> open(Device device) {
  if (const std::string reason = unavailable(device); !reason.empty()) throw std::runtime_error(reason);
  if (device == Device::kGpu) return open_gpu();
  return std::make_unique<EmulatorMachine>();
}

}  // namespace dsa::harness
