/// @file roles.hpp
/// What each role of a block did on the modelled clock: a trace, summed up.
#pragma once

#include <string>
#include <vector>

#include "../device/emulator/trace.hpp"

namespace dsa::harness {

/// Whether the modelled clock has something to say of this launch: it had copies, products or named steps. Barriers alone
/// are not enough, as the work between them is not modelled.
bool is_timed(const emulator::Trace& trace);

/// Warps that do the same work.
struct Role {
  std::string name;                ///< what the kernel calls it (trace_role), else "warpgroup 1" or "warp 5"
  std::vector<std::size_t> warps;  ///< ascending; the first one stands for all of them
};

/// The roles of the traced block, in the order of their first warps.
std::vector<Role> roles_of(const emulator::Trace& trace);

/// "warps 0-3", "warps 4-7, 12-15", "warp 9".
std::string warps_text(const Role& role);

/// What a wait is for: "s.full[1]", "barrier 2", "wgmma". Without the words that say that it is a mbarrier or a wait.
std::string waited_for(const emulator::Span& wait);

struct Part {
  std::string name;
  uint64_t clocks;
};

/// Where the time of a role's first warp went; all of it together is the time of the block.
struct RoleTimes {
  std::vector<Part> steps;  ///< in the order in which they first came; without the waits inside them
  std::vector<Part> waits;  ///< by what was waited for, in the order in which it first came
  uint64_t rest = 0;        ///< neither; also after the warp has exited
};
RoleTimes times_of(const emulator::Trace& trace, const Role& role);

/// Clocks in which copies were made (Kind::kCopy), or the tensor cores worked (Kind::kProduct).
uint64_t busy_clocks(const emulator::Trace& trace, emulator::Span::Kind kind);

}  // namespace dsa::harness
