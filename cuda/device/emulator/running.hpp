/// @file running.hpp
/// The CUDA thread that runs now, for the parts of the emulator that judge it.
#pragma once

#include <cstddef>
#include <string>

#include "memory.hpp"

namespace dsa::emulator {

struct Running {
  std::size_t slot;              ///< of its block among the resident ones
  std::size_t warp;              ///< kWritersPerBlock * slot + warp in the block: index into clocks
  std::size_t thread;            ///< number in the block
  const char* stack_low;         ///< its stack
  const char* stack_high;
  const Clock* clock;            ///< of its warp
};
/// nullptr while the host or the emulator itself runs. The object is the same for the whole process; its contents change.
extern const Running* running;

/// Ends the launch with this verdict; `pc` is where in the kernel. Does not return to the kernel.
[[noreturn]] void fault(const std::string& verdict, const void* pc);

}  // namespace dsa::emulator
