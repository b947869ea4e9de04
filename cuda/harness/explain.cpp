#include "explain.hpp"

#include <algorithm>

#include "../device/emulator/source.hpp"
#include "commands.hpp"
#include "roles.hpp"

namespace dsa::harness {

namespace {

/// In such a build the compiler's callbacks are the sanitizer's, not the emulator's.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitizer = true;
#elif defined(__has_feature)
constexpr bool kSanitizer = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitizer = false;
#endif

/// Counts and traces while it lives.
struct Watch {
  Watch() {
    emulator::count_memory(true);
    emulator::start_trace();
  }
  ~Watch() {
    emulator::count_memory(false);
    emulator::take_traces();
  }
};

/// Several instructions of a line, as unrolled loops have them, become one entry.
std::vector<Conflict> by_line(const std::vector<emulator::BankConflict>& instructions) {
  std::vector<Conflict> lines;
  for (const emulator::BankConflict& at : instructions) {
    const std::string line = emulator::source_line(at.pc);
    const auto known =
        std::find_if(lines.begin(), lines.end(), [&](const Conflict& c) { return c.line == line; });
    if (known == lines.end()) {
      lines.push_back({line, at.wavefronts, at.ideal});
    } else {
      known->wavefronts += at.wavefronts;
      known->ideal += at.ideal;
    }
  }
  std::stable_sort(lines.begin(), lines.end(), [](const Conflict& a, const Conflict& b) {
    return a.wavefronts - a.ideal > b.wavefronts - b.ideal;
  });
  return lines;
}

}  // namespace

uint64_t Explanation::wgmma_flop() const {
  uint64_t flop = 0;
  for (const emulator::Trace& launch : launches) flop += launch.wgmma_flop;
  return flop;
}

std::map<std::string, uint64_t> Explanation::copied() const {
  std::map<std::string, uint64_t> bytes;
  for (const emulator::Trace& launch : launches)
    for (const auto& [instruction, n] : launch.copied) bytes[instruction] += n;
  return bytes;
}

const emulator::Trace* Explanation::longest() const {
  const emulator::Trace* longest = nullptr;
  for (const emulator::Trace& launch : launches)
    if (is_timed(launch) && (!longest || launch.end > longest->end)) longest = &launch;
  return longest;
}

Explanation explain_run(const RungEntry& rung, const Problem& problem) {
  const std::unique_ptr<Machine> machine = open(Device::kEmulator);
  const Watch watch;
  const RunResult result = run_once(rung, *machine, problem);
  if (result.status == Status::kUnsupported)
    throw Failure(kUnsupportedShape,
                  rung.name + " does not support " + describe(problem.args) + ": " + result.message);
  if (result.status != Status::kPassed)
    throw Failure(kCheckFailed, rung.name + ": " + status_name(result.status) + ": " + result.message);
  Explanation explanation;
  explanation.stage = stage_name(rung.stage);
  explanation.step = rung.name;
  explanation.problem = describe(problem.args);
  explanation.plain_accesses_counted = !kSanitizer;
  explanation.memory = emulator::memory_counts();
  explanation.conflicts = by_line(emulator::bank_conflicts());
  explanation.launches = emulator::take_traces();
  return explanation;
}

}  // namespace dsa::harness
