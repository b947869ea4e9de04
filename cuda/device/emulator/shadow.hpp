/// @file shadow.hpp
/// What memory.cpp keeps of every byte, laid out for the short cut that nearly every load and store takes. Internal to
/// memory.cpp and instrumentation.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory.hpp"

namespace dsa::emulator {

struct AddressRange {
  uintptr_t begin = 0;
  std::size_t bytes = 0;
  bool holds(uintptr_t address, std::size_t n) const {
    return address - begin < bytes && n <= bytes - (address - begin);
  }
};

/// The memory that an instruction was allowed to use last, which mostly it uses next; by a few bits of its address.
/// Global memory is not entered while it is counted.
extern std::array<AddressRange, 1024> last_hit;
inline AddressRange& last_hit_of(const void* pc) { return last_hit[uintptr_t(pc) / 4 % last_hit.size()]; }

/// Shared memory of one block, in granules of four bytes.
struct Shadow {
  static constexpr std::size_t kGranuleBytes = 4;
  static constexpr uint8_t kAllWritten = 0xf;
  /// An access to a granule.
  struct Touch {
    const void* pc = nullptr;
    uint32_t tick = 0;            // the warp's own count at that time; 0: there was none
    uint16_t warp = 0;            // or engine
    Access::Proxy proxy = Access::Proxy::kGeneric;
  };
  AddressRange span;
  std::size_t short_cut = 0;      // whole granules, unless memory is counted
  std::vector<uint8_t> written;   // one bit per byte of a granule
  std::vector<Touch> last_write;  // earlier ones are forgotten, also where they wrote other bytes
  std::vector<Touch> last_read;   // through the generic proxy, since that write
};
extern std::vector<Shadow> shadows;   // by slot

extern bool counting_memory;

/// Judges an access of the running thread to memory that is not its stack; faults when it is not sound.
void judge_plain(const void* address, std::size_t bytes, Access::Kind kind, const void* pc);
[[noreturn]] void fault_misaligned(const void* address, std::size_t bytes, Access::Kind kind, const void* pc);

}  // namespace dsa::emulator
