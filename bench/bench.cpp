#include "bench.hpp"

#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>

#include "../cuda/harness/commands.hpp"
#include "build_info.hpp"
#include "row_text.hpp"
#include "timed_case.hpp"

namespace dsa::bench {

using harness::BadInput;
using harness::Case;

namespace {

struct BenchOptions {
  std::string stage, case_text, regime = "sustained", json;
  std::vector<std::string> steps;
  bool warm = false;
  bool append = false;
  double seconds = 2;
  std::vector<std::string> flags;
};

/// One run of the command: the GPU, the results so far, and the case at hand.
class Session {
 public:
  explicit Session(const BenchOptions& options)
      : json_(options.json), machine_(harness::open(Device::kGpu)), timer_(*machine_) {
    if (options.append && std::filesystem::exists(json_)) results_ = read_results(json_);
    results_.context = timer_.context();
    add_build_context(results_.context);
  }

  Outcome time_yardstick(YardstickKind kind, const MeasureOptions& options) {
    return keep([&] { return Outcome{timer_.time_yardstick(kind, options), false, false, ""}; });
  }

  Outcome time_rung(const Case& item, const RungEntry& rung, const MeasureOptions& options) {
    return keep([&] {
      Outcome outcome;
      outcome.measured.row.name = TimedCase::name(item, rung.name, options);
      if (gpu_lost_) {
        outcome.failed = true;
        outcome.measured.row.error = "skipped: an earlier kernel left the GPU in an error";
        return outcome;
      }
      if (case_ != &item) {
        timed_case_.reset();  // frees its memory before the next one takes some
        timed_case_ = std::make_unique<TimedCase>(*machine_, timer_, item);
        case_ = &item;
      }
      return timed_case_->time(rung, options);
    });
  }

  const Results& results() const { return results_; }
  int failures() const { return failures_; }

 private:
  /// Files the outcome at once: a run that is cut short keeps what it has.
  template <class Body>
  Outcome keep(const Body& body) {
    Outcome outcome = body();
    failures_ += outcome.failed;
    gpu_lost_ = gpu_lost_ || outcome.gpu_lost;
    if (!outcome.complaint.empty()) {
      std::fprintf(stderr, "ERROR %s: %s\n", outcome.measured.row.name.c_str(), outcome.complaint.c_str());
    }
    results_.put(outcome.measured.row);
    if (!json_.empty()) write_results(json_, results_);
    return outcome;
  }

  std::filesystem::path json_;
  std::unique_ptr<harness::Machine> machine_;
  GpuTimer timer_;
  Results results_;
  const Case* case_ = nullptr;
  std::unique_ptr<TimedCase> timed_case_;
  int failures_ = 0;
  bool gpu_lost_ = false;
};

/// One line per row, as soon as it is there.
class LineReporter final : public benchmark::BenchmarkReporter {
 public:
  explicit LineReporter(const Session& session) : session_(session) {}

  bool ReportContext(const Context&) override {
    for (const auto& [key, value] : session_.results().context)
      std::printf("%s: %s\n", key.c_str(), value.c_str());
    return true;
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      const ResultRow* row = session_.results().find(run.run_name.function_name);
      if (row && run.run_type == Run::RT_Iteration) std::printf("%s\n", row_text(*row).c_str());
    }
    std::fflush(stdout);
  }

 private:
  const Session& session_;
};

/// Hands an outcome to Google Benchmark: one manual time per sample. The number of samples is known only now,
/// so they are one batch of a benchmark registered with a single iteration.
void report(benchmark::State& state, const Outcome& outcome) {
  const Measured& measured = outcome.measured;
  if (!measured.row.error.empty()) {
    state.SkipWithError(measured.row.error.c_str());
    return;
  }
  while (state.KeepRunningBatch(benchmark::IterationCount(measured.samples_s.size()))) {
    for (double seconds : measured.samples_s) state.SetIterationTime(seconds);
  }
  for (const auto& [key, value] : measured.row.counters) state.counters[key] = value;
}

void register_one(const std::string& name, const std::function<Outcome()>& body) {
  benchmark::RegisterBenchmark(name.c_str(), [body](benchmark::State& state) { report(state, body()); })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMillisecond);
}

std::vector<MeasureOptions> regimes_of(const BenchOptions& options) {
  std::vector<MeasureOptions> all;
  for (Regime regime : {Regime::kBurst, Regime::kSustained}) {
    if (options.regime != "both" && options.regime != regime_name(regime)) continue;
    all.push_back(measure_options(regime, options.seconds));
    all.back().warm = options.warm;
  }
  return all;
}

/// Registers what the options ask for, case by case: making a case takes seconds. Returns the number of
/// rungs.
int register_rungs(const BenchOptions& options, Session& session) {
  int count = 0;
  for (const Case& item : harness::cases()) {
    if (item.kind != harness::CaseKind::kBench) continue;
    if (!options.stage.empty() && options.stage != stage_name(item.stage)) continue;
    if (item.name.find(options.case_text) == std::string::npos) continue;
    for (const RungEntry& rung : rungs()) {
      if (rung.stage != item.stage || rung.device != Device::kGpu) continue;
      if (!options.steps.empty() && std::find(options.steps.begin(), options.steps.end(), rung.name) == options.steps.end())
        continue;
      for (const MeasureOptions& how : regimes_of(options)) {
        register_one(TimedCase::name(item, rung.name, how),
                     [&session, &item, &rung, how] { return session.time_rung(item, rung, how); });
        ++count;
      }
    }
  }
  return count;
}

void register_yardsticks(const BenchOptions& options, Session& session) {
  for (YardstickKind kind : kYardsticks) {
    for (const MeasureOptions& how : regimes_of(options)) {
      register_one(result_name({"yardstick", yardstick_name(kind), "", regime_name(how.regime)}),
                   [&session, kind, how] { return session.time_yardstick(kind, how); });
    }
  }
}

/// Google Benchmark's own flags, after `--`.
void initialize_google_benchmark(const std::vector<std::string>& flags) {
  std::vector<std::string> words{"dsa"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  int argc = int(argv.size());
  argv.push_back(nullptr);
  benchmark::Initialize(&argc, argv.data());
  if (argc > 1) throw BadInput(std::string("'") + argv[1] + "' is not a flag of Google Benchmark");
}

void bench(const BenchOptions& options) {
  if (!options.stage.empty()) stage_by_name(options.stage);
  for (const std::string& step : options.steps) {
    harness::require_step(options.stage, step);
    if (step == harness::kReference) throw BadInput("the reference is not timed");
  }
  if (options.append && options.json.empty()) throw BadInput("--append needs --json FILE");
  if (const std::string reason = harness::unavailable(Device::kGpu); !reason.empty()) {
    std::fprintf(stderr, "dsa bench: no gpu here: %s\n", reason.c_str());
    throw CLI::RuntimeError(kNoDevice);
  }
  initialize_google_benchmark(options.flags);
  Session session(options);
  register_yardsticks(options, session);
  if (register_rungs(options, session) == 0) {
    throw BadInput("nothing to measure: no stage, step and case of these names on the gpu (see dsa list)");
  }
  for (const auto& [key, value] : session.results().context) benchmark::AddCustomContext(key, value);
  LineReporter reporter(session);
  benchmark::RunSpecifiedBenchmarks(&reporter);
  benchmark::Shutdown();
  if (session.failures() > 0) {
    std::fprintf(stderr, "dsa bench: %d failed\n", session.failures());
    throw CLI::RuntimeError(1);
  }
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "Time every rung on the GPU, beside its yardstick");
  const auto options = std::make_shared<BenchOptions>();
  command->add_option("--stage", options->stage, "Only this stage");
  command->add_option("--step", options->steps, "Only these steps (--step A --step B)")->allow_extra_args(false);
  command->add_option("--case", options->case_text, "Only cases whose name contains this");
  command->add_option("--regime", options->regime, "burst, sustained (default) or both")
      ->check(CLI::IsMember({"burst", "sustained", "both"}));
  command->add_flag("--warm", options->warm,
                    "One set of buffers instead of a rotation that leaves the cache cold");
  command->add_option("--seconds", options->seconds, "GPU time per measurement, default 2")
      ->check(CLI::Range(0.01, 600.0));
  command->add_option("--json", options->json, "Write the results here, after every measurement");
  command->add_flag("--append", options->append, "Keep the rows of FILE that this run does not measure");
  command->add_option("flags", options->flags, "After --: flags of Google Benchmark");
  command->callback([options] { bench(*options); });
}

}  // namespace dsa::bench
