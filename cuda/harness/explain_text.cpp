#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "explain.hpp"
#include "roles.hpp"

namespace dsa::harness {

namespace {

using emulator::Span;
using emulator::Trace;

constexpr std::size_t kWorstLines = 5;
[[gnu::format(printf, 2, 3)]] void add(std::string& to, const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  to += line;
}

/// "12,345,678"
std::string number(uint64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

double ratio(uint64_t a, uint64_t b) {
  return b == 0 ? 0 : double(a) / double(b);
}

std::string size_text(const emulator::dim3& size) {
  std::string text = std::to_string(size.x);
  if (size.y > 1 || size.z > 1) text += " x " + std::to_string(size.y);
  if (size.z > 1) text += " x " + std::to_string(size.z);
  return text;
}

void add_row(std::string& out, const char* what, uint64_t value, const std::string& note = "") {
  add(out, "  %-24s%16s%s%s\n", what, number(value).c_str(), note.empty() ? "" : "   ", note.c_str());
}

void add_counts(std::string& out, const Explanation& e) {
  const emulator::MemoryCounts& m = e.memory;
  char note[128];
  out += "\nglobal memory, bytes\n";
  add_row(out, "read", m.global_read);
  std::snprintf(note, sizeof note, "each 32-byte sector once; read %.1f times on average",
                ratio(m.global_read, m.global_read_distinct));
  add_row(out, "read, distinct", m.global_read_distinct, m.global_read_distinct ? note : "");
  add_row(out, "written", m.global_written);
  out += "shared memory, bytes\n";
  add_row(out, "read", m.shared_read);
  add_row(out, "written", m.shared_written);
  if (!e.plain_accesses_counted) {
    out +=
        "  This build has a sanitizer: plain loads and stores, and their bank conflicts, are not counted.\n";
    return;
  }
  if (m.shared_wavefronts_ideal > 0) {
    out += "shared memory, wavefronts of plain loads and stores\n";
    add_row(out, "needed", m.shared_wavefronts);
    std::snprintf(note, sizeof note, "without bank conflicts; the factor is %.2f",
                  ratio(m.shared_wavefronts, m.shared_wavefronts_ideal));
    add_row(out, "ideal", m.shared_wavefronts_ideal, note);
  }
  for (std::size_t i = 0; i < std::min(e.conflicts.size(), kWorstLines); ++i) {
    const Conflict& c = e.conflicts[i];
    add(out, "    %5.1f ways  %14s too many  %s\n", ratio(c.wavefronts, c.ideal),
        number(c.wavefronts - c.ideal).c_str(), c.line.empty() ? "?" : c.line.c_str());
  }
  if (e.conflicts.size() > kWorstLines)
    add(out, "    and %zu lines with fewer\n", e.conflicts.size() - kWorstLines);
}

void add_engines(std::string& out, const Explanation& e) {
  const uint64_t flop = e.wgmma_flop();
  const auto bytes = e.copied();
  if (flop > 0) {
    out += "tensor cores, floating-point operations\n";
    add_row(out, "wgmma", flop);
  }
  if (!bytes.empty()) out += "asynchronous copies, bytes\n";
  for (const auto& [instruction, n] : bytes) add_row(out, instruction.c_str(), n);
}

void add_part(std::string& out, uint64_t clocks, const Trace& launch, const std::string& what) {
  add(out, "  %10s  %5.1f %%  %s\n", number(clocks).c_str(), 100 * ratio(clocks, launch.end), what.c_str());
}

void add_times(std::string& out, const Trace& launch) {
  add(out, "first block on the modelled clock: %s clocks\n", number(launch.end).c_str());
  for (const Role& role : roles_of(launch)) {
    add(out, " %s (%s)\n", role.name.c_str(), warps_text(role).c_str());
    const RoleTimes times = times_of(launch, role);
    for (const Part& step : times.steps) add_part(out, step.clocks, launch, step.name);
    for (const Part& wait : times.waits) add_part(out, wait.clocks, launch, "waits for " + wait.name);
    if (times.rest > 0)
      add_part(out, times.rest, launch, times.steps.empty() ? "in no named step" : "else, or done");
  }
  out += " engines\n";
  add_part(out, busy_clocks(launch, Span::Kind::kCopy), launch, "copies under way");
  add_part(out, busy_clocks(launch, Span::Kind::kProduct), launch, "tensor cores busy");
}

void add_model(std::string& out) {
  using emulator::Model;
  add(out,
      "\nThe clock is a model, not a measurement. In it are: copies (%d bytes per clock, %d clocks until "
      "data\n"
      "are there), products on the tensor cores (m64nN: N/2 clocks), %d clocks for each call of a CUDA or "
      "PTX\n"
      "function, and what the kernel states for a step. Not in it are caches, plain loads and stores,\n"
      "instruction issue and ordinary arithmetic.\n",
      int(Model::kBytesPerClock), int(Model::kLatency), int(Model::kCall));
}

}  // namespace

std::string explanation_text(const Explanation& e) {
  std::string out;
  add(out, "%s/%s on the emulator\n", e.stage.c_str(), e.step.c_str());
  add(out, "case %s: %s\n", e.case_name.c_str(), e.problem.c_str());
  add_counts(out, e);
  add_engines(out, e);
  bool timed = false;
  for (std::size_t i = 0; i < e.launches.size(); ++i) {
    const Trace& launch = e.launches[i];
    const std::string which = e.launches.size() == 1 ? "launch"
                                                     : "launch " + std::to_string(i + 1) + " of " +
                                                           std::to_string(e.launches.size());
    add(out, "\n%s: grid %s, %s threads, %s bytes of shared memory\n", which.c_str(),
        size_text(launch.grid).c_str(), size_text(launch.block).c_str(), number(launch.shared_bytes).c_str());
    if (is_timed(launch)) {
      add_times(out, launch);
      timed = true;
    } else {
      out += "nothing for the modelled clock: no asynchronous copies, products or named steps\n";
    }
  }
  if (timed) add_model(out);
  return out;
}

}  // namespace dsa::harness
