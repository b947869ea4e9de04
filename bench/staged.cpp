#include "staged.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <stdexcept>

#include "build_info.hpp"
#include "ladder.hpp"
#include "timed_case.hpp"

namespace dsa::bench {

using harness::Case;
using harness::CaseKind;
using harness::Status;

namespace {

struct StagedOptions {
  std::string case_text;
  std::string regime = regime_name(Regime::kSustained);
  double seconds = 2;
};

const RungEntry& registered(Stage stage, Device device, const std::string& name) {
  const RungEntry* rung = find_rung(stage, device, name);
  if (!rung) throw std::logic_error(std::string(stage_name(stage)) + "/" + name + " is not in this build");
  return *rung;
}

/// The rung before this one in reading order, or null.
const RungEntry* rung_before(const RungEntry& rung) {
  const RungEntry* before = nullptr;
  for (const RungEntry& other : rungs()) {
    if (other.stage == rung.stage && other.device == rung.device && other.name < rung.name) before = &other;
  }
  return before;
}

/// Runs the small cases. Returns whether none is wrong.
bool check_small_cases(const RungEntry& rung, harness::Machine& machine) {
  int passed = 0, unsupported = 0;
  for (const Case* item : harness::cases_of(rung.stage, CaseKind::kSmall)) {
    const harness::Problem problem = item->make();
    const harness::CheckResult result = harness::check_rung(rung, machine, problem, harness::Judge(problem));
    passed += result.status == Status::kPassed;
    unsupported += result.status == Status::kUnsupported;
    if (result.status == Status::kIncorrect || result.status == Status::kRuntimeError) {
      std::printf("%s on %s (%s)\n%s\n", harness::status_name(result.status), item->name.c_str(),
                  item->what.c_str(), result.message.c_str());
      return false;
    }
  }
  std::printf("checked on %s: %d cases passed, %d not supported\n", device_name(rung.device), passed,
              unsupported);
  return true;
}

/// Times the rung and the one before it, one table per benchmark case. Returns whether all went well.
bool time_and_compare(const RungEntry& rung, harness::Machine& machine, const StagedOptions& options) {
  GpuTimer timer(machine);
  const Regime regime = options.regime == regime_name(Regime::kBurst) ? Regime::kBurst : Regime::kSustained;
  const MeasureOptions how = measure_options(regime, options.seconds);
  const RungEntry* before = rung_before(rung);
  Registry shown{rung};
  if (before) shown.insert(shown.begin(), *before);
  bool good = true;
  for (const Case* item : harness::cases_of(rung.stage, CaseKind::kBench)) {
    if (item->name.find(options.case_text) == std::string::npos) continue;
    TimedCase timed(machine, timer, *item);
    Results results;
    results.context = timer.context();
    add_build_context(results.context);
    for (const RungEntry& one : shown) {
      const Outcome outcome = timed.time(one, how);
      if (!outcome.complaint.empty())
        std::printf("ERROR %s: %s\n", one.name.c_str(), outcome.complaint.c_str());
      good = good && !outcome.failed;
      results.put(outcome.measured.row);
      if (outcome.gpu_lost) return false;
    }
    std::printf("\n%s",
                ladder_text(make_ladder(results, shown, rung.stage, item->name, options.regime)).c_str());
  }
  return good;
}

bool run(Stage stage, const std::string& name, const StagedOptions& options) {
  const std::string no_gpu = harness::unavailable(Device::kGpu);
  const Device device = no_gpu.empty() ? Device::kGpu : Device::kEmulator;
  const RungEntry& rung = registered(stage, device, name);
  std::printf("%s/%s: %s\n", stage_name(stage), rung.name.c_str(), rung.summary.c_str());
  if (!no_gpu.empty())
    std::printf("no gpu here (%s): checking on the emulator, not timing\n", no_gpu.c_str());
  const std::unique_ptr<harness::Machine> machine = harness::open(device);
  if (!check_small_cases(rung, *machine)) return false;
  return device != Device::kGpu || time_and_compare(rung, *machine, options);
}

}  // namespace

int run_staged(const char* stage, const char* rung, int argc, char** argv) {
  CLI::App app{std::string("Checks and times ") + stage + "/" + rung};
  StagedOptions options;
  app.add_option("--case", options.case_text, "Time only on cases whose name contains this");
  app.add_option("--regime", options.regime, "burst or sustained (default)")
      ->check(CLI::IsMember({"burst", "sustained"}));
  app.add_option("--seconds", options.seconds, "GPU time per measurement, default 2")
      ->check(CLI::Range(0.01, 600.0));
  try {
    app.parse(argc, argv);
    return run(stage_by_name(stage), rung, options) ? 0 : 1;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s_%s: %s\n", stage, rung, error.what());
    return 1;
  }
}

}  // namespace dsa::bench
