/// @file dsa.cpp
/// The one program: `dsa list`, `dsa run`, `dsa check`, `dsa explain`, `dsa bench`.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>

#include "../../bench/bench.hpp"
#include "../../bench/ladder.hpp"
#include "../../bench/pipeline.hpp"
#include "commands.hpp"

namespace dsa::harness {
namespace {

/// The scalars of all stages as options.
void add_scalars(CLI::App& command, ScalarOptions& scalars) {
  static constexpr std::pair<const char*, const char*> kAll[] = {
      {"sm_scale", "sparse_mla: softmax scale, default 1/sqrt(576)"},
      {"causal", "sparse_mla: 0, 1, true or false"},
      {"q_start", "sparse_mla: absolute position of query 0"},
      {"kv_stride", "sparse_mla: one KV row is kept per so many tokens"},
      {"topk", "topk: how many columns to select"},
      {"deterministic", "topk: lowest columns win a tie, rows are sorted by column"},
      {"clean", "indexer: write -inf outside the window"},
      {"scale", "quantize: row, row_pow2 or none"}};
  for (const auto& [name, help] : kAll) {
    const std::string key = name;
    command.add_option_function<std::string>(
        "--" + key, [&scalars, key](const std::string& value) { scalars[key] = value; }, help);
  }
}

void add_run(CLI::App& app, RunCommand& run_command) {
  CLI::App* command = app.add_subcommand("run", "Run one stage on a file");
  command->add_option("stage", run_command.stage, "quantize, indexer, topk, sparse_mla_fwd or sparse_mla_bwd")
      ->required();
  command->add_option("--in", run_command.in, "Input, a safetensors file")->required();
  command->add_option("--out", run_command.out, "Output, a safetensors file")->required();
  command->add_option("--step", run_command.step,
                      "Step of the ladder, or reference (the default on the cpu)");
  command->add_option("--device", run_command.device, "cpu, emulator or gpu");
  add_scalars(*command, run_command.scalars);
  command->callback([&run_command] { run(run_command); });
}

void add_check(CLI::App& app, CheckCommand& check_command, ExitStatus& status) {
  struct Schedule {
    std::string kind;
    uint64_t seed = 1;
  };
  const auto schedule = std::make_shared<Schedule>();
  CLI::App* command = app.add_subcommand("check", "Check steps on the built-in cases or on files");
  command->add_option("files", check_command.files,
                      "Files with expected results (want_*); none: built-in cases");
  command->add_option("--stage", check_command.stage, "Only this stage");
  command->add_option("--step", check_command.step, "Only this step");
  command->add_option("--device", check_command.device, "cpu (the reference), emulator or gpu");
  command->add_option("--case", check_command.case_text, "Only cases whose name contains this");
  command->add_flag("--large", check_command.large, "The large cases instead of the small ones (gpu)");
  command->add_option("--repeats", check_command.options.repeats, "Launches per case")
      ->check(CLI::Range(1, 1000000));
  command->add_option("--schedule", schedule->kind, "How the emulator orders threads");
  command->add_option("--seed", schedule->seed, "Seed of the emulator's schedule");
  add_scalars(*command, check_command.scalars);
  command->callback([&check_command, &status, schedule] {
    if (!schedule->kind.empty()) set_emulator_schedule(schedule->kind, schedule->seed);
    status = check(check_command);
  });
}

void add_explain(CLI::App& app, ExplainCommand& explain_command) {
  CLI::App* command = app.add_subcommand(
      "explain", "Run a step on the emulator and say what it does and where its time goes");
  command
      ->add_option("stage", explain_command.stage,
                   "quantize, indexer, topk, sparse_mla_fwd or sparse_mla_bwd")
      ->required();
  command->add_option("step", explain_command.step, "Step of the ladder")->required();
  command->add_option("--case", explain_command.case_text, "The first case whose name contains this");
  command->add_option("--svg", explain_command.svg, "Also draw the first block's timeline to this file");
  command->add_option("--from", explain_command.from, "First modelled clock to draw");
  command->add_option("--to", explain_command.to, "Last modelled clock to draw, default the end");
  command->add_option("--json", explain_command.json, "Also write the numbers to this file");
  command->callback([&explain_command] { explain(explain_command); });
}

int run_program(int argc, char** argv) {
  CLI::App app{"DeepSeek Sparse Attention, step by step", "dsa"};
  app.require_subcommand(1);
  ExitStatus status = kDone;
  RunCommand run_command;
  CheckCommand check_command;
  ExplainCommand explain_command;
  app.add_subcommand("list", "Print every step of every stage")->callback(list_steps);
  add_run(app, run_command);
  add_check(app, check_command, status);
  add_explain(app, explain_command);
  bench::add_pipeline_command(app);
  bench::add_bench_command(app);
  bench::add_ladder_command(app);
  bench::add_tables_command(app);

  const auto fail = [](ExitStatus status, const char* what) {
    std::fprintf(stderr, "dsa: %s\n", what);
    return int(status);
  };
  try {
    app.parse(argc, argv);
    return status;
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kBadInput;  // --help is an error of status 0 to CLI11
  } catch (const BadInput& error) {
    return fail(kBadInput, error.what());
  } catch (const Failure& failure) {
    return fail(failure.status, failure.what());
  } catch (const std::bad_alloc&) {
    return fail(kUnsupportedShape, "not enough memory for these sizes");
  } catch (const std::exception& error) {
    return fail(kCheckFailed, error.what());
  }
}

}  // namespace
}  // namespace dsa::harness

int main(int argc, char** argv) {
  return dsa::harness::run_program(argc, argv);
}
