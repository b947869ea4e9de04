#include <sys/mman.h>

#include <cstring>
#include <map>

#include "../device/emulator/emulator.hpp"
#include "../device/emulator/memory.hpp"
#include "machine_gpu.hpp"

namespace dsa::harness {

namespace {

/// The host itself: device memory is host memory, and a launch has finished when it returns. Allocations have a gap of
/// inaccessible addresses between them, so that a wild index meets no other tensor and its verdict names the right one.
class EmulatorMachine final : public Machine {
 public:
  void* allocate(std::size_t bytes) override {
    char* gap = static_cast<char*>(
        mmap(nullptr, kGapBytes + bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (gap == MAP_FAILED || mprotect(gap + kGapBytes, bytes, PROT_READ | PROT_WRITE) != 0)
      throw std::runtime_error("the host has no " + std::to_string(bytes) + " bytes left");
    char* address = gap + kGapBytes;
    bytes_[address] = bytes;
    emulator::add_allocation(address, bytes);
    return address;
  }
  void release(void* address) override {
    emulator::remove_allocation(address);
    munmap(static_cast<char*>(address) - kGapBytes, kGapBytes + bytes_.at(address));
    bytes_.erase(address);
  }
  void name(void* address, std::size_t bytes, const std::string& name) override {
    emulator::name_allocation(address, bytes, name);
  }
  void copy_in(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_out(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void fill(void* address, unsigned char value, std::size_t bytes) override {
    std::memset(address, value, bytes);
  }
  void poison_shared_memory() override {}  // the scheduler does so before every block
  std::string synchronize() override { return emulator::take_last_error(); }
  void* stream() override { return nullptr; }

 private:
  static constexpr std::size_t kGapBytes = std::size_t(1) << 30;
  std::map<void*, std::size_t> bytes_;  // of each allocation
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
