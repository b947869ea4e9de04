/// @file trace.cuh
/// Names for the parts of a kernel: they appear in the emulator's traces and reports, and are no instruction on the GPU.
#pragma once

#include "device.cuh"
#if defined(DSA_EMULATOR)
#include "emulator/trace.hpp"
#endif

namespace dsa {

/// The role of the calling warp, such as "producer". @param role a string literal
DSA_DEVICE void trace_role([[maybe_unused]] const char* role) {
#if defined(DSA_EMULATOR)
  emulator::trace_role(role);
#endif
}

/// From here on the calling warp does step `step`, such as "[C2] softmax": the label that the chapter's drawing has.
/// @param clocks  what the arithmetic of the step takes, in clocks of a warp: an estimate, for the drawing
DSA_DEVICE void trace_step([[maybe_unused]] const char* step, [[maybe_unused]] unsigned clocks = 0) {
#if defined(DSA_EMULATOR)
  emulator::trace_step(step, clocks);
#endif
}

}  // namespace dsa
