#include <nlohmann/json.hpp>

#include "explain.hpp"
#include "roles.hpp"

namespace dsa::harness {

namespace {

using emulator::Span;
using emulator::Trace;
using json = nlohmann::ordered_json;

json parts_json(const std::vector<Part>& parts) {
  json all = json::array();
  for (const Part& part : parts) all.push_back({{"name", part.name}, {"clocks", part.clocks}});
  return all;
}

json launch_json(const Trace& launch) {
  json roles = json::array();
  for (const Role& role : roles_of(launch)) {
    const RoleTimes times = times_of(launch, role);
    roles.push_back({{"name", role.name},
                     {"warps", role.warps},
                     {"steps", parts_json(times.steps)},
                     {"waits", parts_json(times.waits)},
                     {"rest_clocks", times.rest}});
  }
  return {{"grid", {launch.grid.x, launch.grid.y, launch.grid.z}},
          {"block", {launch.block.x, launch.block.y, launch.block.z}},
          {"shared_bytes", launch.shared_bytes},
          {"modelled_clocks", launch.end},
          {"copy_clocks", busy_clocks(launch, Span::Kind::kCopy)},
          {"tensor_clocks", busy_clocks(launch, Span::Kind::kProduct)},
          {"roles", std::move(roles)}};
}

}  // namespace

json explanation_json(const Explanation& e) {
  const emulator::MemoryCounts& m = e.memory;
  json conflicts = json::array(), launches = json::array();
  for (const Conflict& c : e.conflicts)
    conflicts.push_back({{"line", c.line}, {"wavefronts", c.wavefronts}, {"ideal", c.ideal}});
  for (const Trace& launch : e.launches) launches.push_back(launch_json(launch));
  return {{"stage", e.stage},
          {"step", e.step},
          {"case", e.case_name},
          {"problem", e.problem},
          {"plain_accesses_counted", e.plain_accesses_counted},
          {"global_memory",
           {{"read_bytes", m.global_read},
            {"read_distinct_bytes", m.global_read_distinct},
            {"written_bytes", m.global_written}}},
          {"shared_memory",
           {{"read_bytes", m.shared_read},
            {"written_bytes", m.shared_written},
            {"wavefronts", m.shared_wavefronts},
            {"wavefronts_ideal", m.shared_wavefronts_ideal},
            {"bank_conflicts", std::move(conflicts)}}},
          {"wgmma_flop", e.wgmma_flop()},
          {"copied_bytes", e.copied()},
          {"launches", std::move(launches)},
          {"clock", "modelled, not measured"}};
}

}  // namespace dsa::harness
