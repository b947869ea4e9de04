#include "roles.hpp"

#include <algorithm>

namespace dsa::harness {

namespace {

using emulator::Span;
using emulator::Trace;

constexpr std::size_t kWarpsOfGroup = 4;

/// Whether the warp belongs to a whole warpgroup in which nobody has a name.
bool in_nameless_group(const std::vector<std::string>& names, std::size_t warp) {
  const std::size_t first = warp / kWarpsOfGroup * kWarpsOfGroup;
  if (first + kWarpsOfGroup > names.size()) return false;
  return std::all_of(names.begin() + long(first), names.begin() + long(first + kWarpsOfGroup),
                     [](const std::string& name) { return name.empty(); });
}

uint64_t& clocks_of(std::vector<Part>& parts, const std::string& name) {
  for (Part& part : parts)
    if (part.name == name) return part.clocks;
  return parts.emplace_back(Part{name, 0}).clocks;
}

uint64_t overlap(const Span& a, const Span& b) {
  const uint64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
  return end > begin ? end - begin : 0;
}

}  // namespace

bool is_timed(const Trace& trace) {
  return std::any_of(trace.spans.begin(), trace.spans.end(),
                     [](const Span& span) { return span.kind != Span::Kind::kWait; });
}

std::vector<Role> roles_of(const Trace& trace) {
  std::vector<Role> roles;
  for (std::size_t warp = 0; warp < trace.roles.size(); ++warp) {
    std::string name = trace.roles[warp];
    if (name.empty()) {
      name = in_nameless_group(trace.roles, warp) ? "warpgroup " + std::to_string(warp / kWarpsOfGroup)
                                                  : "warp " + std::to_string(warp);
    }
    const auto known =
        std::find_if(roles.begin(), roles.end(), [&](const Role& role) { return role.name == name; });
    if (known == roles.end()) {
      roles.push_back({name, {warp}});
    } else {
      known->warps.push_back(warp);
    }
  }
  return roles;
}

std::string warps_text(const Role& role) {
  std::string text = role.warps.size() == 1 ? "warp " : "warps ";
  for (std::size_t i = 0; i < role.warps.size(); ++i) {
    const std::size_t first = i;
    while (i + 1 < role.warps.size() && role.warps[i + 1] == role.warps[i] + 1) ++i;
    text += (first > 0 ? ", " : "") + std::to_string(role.warps[first]);
    if (i > first) text += "-" + std::to_string(role.warps[i]);
  }
  return text;
}

std::string waited_for(const Span& wait) {
  constexpr std::string_view kBefore = "mbarrier ", kAfter = ".wait_group";
  std::string what = wait.label;
  if (what.starts_with(kBefore)) what.erase(0, kBefore.size());
  if (what.ends_with(kAfter)) what.resize(what.size() - kAfter.size());
  return what;
}

RoleTimes times_of(const Trace& trace, const Role& role) {
  RoleTimes times;
  std::vector<const Span*> steps, waits;
  for (const Span& span : trace.spans) {
    if (span.warp != role.warps.front()) continue;
    if (span.kind == Span::Kind::kStep) steps.push_back(&span);
    if (span.kind == Span::Kind::kWait) waits.push_back(&span);
  }
  uint64_t known = 0;
  for (const Span* step : steps) {
    uint64_t clocks = step->end - step->begin;
    for (const Span* wait : waits) clocks -= overlap(*step, *wait);
    clocks_of(times.steps, step->label) += clocks;
    known += clocks;
  }
  for (const Span* wait : waits) {
    clocks_of(times.waits, waited_for(*wait)) += wait->end - wait->begin;
    known += wait->end - wait->begin;
  }
  times.rest = trace.end - std::min(known, trace.end);
  return times;
}

uint64_t busy_clocks(const Trace& trace, Span::Kind kind) {
  uint64_t clocks = 0;
  for (const Span& span : trace.spans)
    if (span.kind == kind) clocks += span.end - span.begin;  // they do not overlap
  return clocks;
}

}  // namespace dsa::harness
