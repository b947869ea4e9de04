/// @file explain.hpp
/// What one run of a kernel on the emulator did: counts of all blocks, and the first block on a modelled clock.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <string>
#include <vector>

#include "../device/emulator/memory.hpp"
#include "../device/emulator/trace.hpp"
#include "execute.hpp"

namespace dsa::harness {

/// A line of a kernel whose accesses to shared memory meet in the same banks.
struct Conflict {
  std::string line;  ///< "04_warp_specialized.cu:123 (consume)"
  uint64_t wavefronts, ideal;
};

struct Explanation {
  std::string stage, step, case_name, problem;
  bool plain_accesses_counted = true;  ///< false in a build with a sanitizer
  emulator::MemoryCounts memory;
  std::vector<Conflict> conflicts;  ///< the worst first
  std::vector<emulator::Trace> launches;

  uint64_t wgmma_flop() const;                     ///< of all launches
  std::map<std::string, uint64_t> copied() const;  ///< bytes by instruction, of all launches
  /// The launch that is worth drawing: the longest that is_timed(); null when none is.
  const emulator::Trace* longest() const;
};

/// Runs the step once, on the emulator. Throws Failure when it cannot, or is at fault.
Explanation explain_run(const RungEntry& rung, const Problem& problem);

std::string explanation_text(const Explanation& explanation);
/// The same numbers.
nlohmann::ordered_json explanation_json(const Explanation& explanation);

}  // namespace dsa::harness
