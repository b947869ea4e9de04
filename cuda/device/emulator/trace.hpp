/// @file trace.hpp
/// What a block did and when, on a modelled clock: for `dsa explain` and for the figures of the chapters.
///
/// The model is coarse on purpose: a few constants, taken from measurements on an H200, for what dominates a Hopper pipeline.
/// It shows which role waits for which, and what can overlap. It is no substitute for a measurement: caches, the memory
/// system, instruction issue and ordinary arithmetic are not in it, except as far as a kernel states the clocks of a step.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "emulator.hpp"

namespace dsa::emulator {

/// Clocks, unless it says otherwise.
struct Model {
  static constexpr uint64_t kCall = 4;              ///< a call of the seam, by a warp
  static constexpr uint64_t kBytesPerClock = 36;    ///< rows gathered by one SM while all of them gather
  static constexpr uint64_t kLatency = 700;         ///< from issue to data, L2
  static constexpr uint64_t product(int n) { return uint64_t(n) / 2; }   ///< wgmma m64nN: 64 N k / (4 tensor cores)
};

struct Span {
  enum class Kind { kStep, kWait, kCopy, kProduct };
  Kind kind;
  std::size_t warp;         ///< that did it, waited, or issued it
  uint64_t begin, end;      ///< modelled clocks
  std::string label;        ///< kStep: the step; kWait: what for; else the instruction
  std::string step;         ///< that the warp was in; "" when it had named none
};

/// Of one launch.
struct Trace {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  std::vector<Span> spans;          ///< of the first block of the grid
  std::vector<std::string> roles;   ///< of its warps; "" when the kernel named none
  uint64_t end = 0;                 ///< modelled clocks that block took
  uint64_t wgmma_flop = 0;          ///< of all blocks
  std::map<std::string, uint64_t> copied;   ///< bytes by instruction, of all blocks
};

/// From now on, launches are traced; their threads run in the order of the modelled clock whatever the Schedule says.
void start_trace();
/// One trace for each launch since then, in their order; ends tracing.
std::vector<Trace> take_traces();

// ---- What kernels call (cuda/device/trace.cuh) -------------------------------------------------------------------
void trace_role(const char* role);
void trace_step(const char* step, unsigned clocks);

// ---- What the scheduler calls ------------------------------------------------------------------------------------
/// A launch begins.
void trace_launch(dim3 grid, dim3 block, std::size_t shared_bytes);

}  // namespace dsa::emulator
