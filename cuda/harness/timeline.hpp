/// @file timeline.hpp
/// A trace as a drawing: one lane per role, then the copies, then the tensor cores; time goes to the right.
#pragma once

#include <string>

#include "../device/emulator/trace.hpp"

namespace dsa::harness {

struct TimelineOptions {
  std::string title;
  uint64_t from = 0;  ///< modelled clocks to draw; a `to` of 0 is the end
  uint64_t to = 0;
};

/// An SVG that needs nothing but itself, the same bytes for the same trace. Throws BadInput when there are no
/// clocks between `from` and `to`, or nothing happened in them.
std::string timeline_svg(const emulator::Trace& trace, const TimelineOptions& options);

}  // namespace dsa::harness
