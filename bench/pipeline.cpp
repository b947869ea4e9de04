#include "pipeline.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "bench.hpp"
#include "pipeline_run.hpp"
#include "row_text.hpp"
#include "text.hpp"

namespace dsa::bench {

using harness::Status;

namespace {

constexpr int kIncorrect = 1;
constexpr int kUnsupportedShape = 3;
constexpr PipelineSizes kGpuSizes = {4096, 4096, 128, 64, 128, 2048};  // DeepSeek-V3.2
constexpr PipelineSizes kSmallSizes = {4, 160, 8, 32, 64, 64};         // seconds on the emulator

struct CommandLine {
  std::string device;
  PipelineOptions options;
  std::string quantize, indexer, topk, fwd, bwd;  ///< names of steps
  std::string json;
};

Device device_by_name(const std::string& name) {
  for (Device device : {Device::kCpu, Device::kEmulator, Device::kGpu}) {
    if (name == device_name(device)) return device;
  }
  throw harness::BadInput("unknown device '" + name + "' (known: cpu, emulator, gpu)");
}

/// Sizes that were not given are those of the device.
PipelineSizes with_defaults(PipelineSizes sizes, Device device) {
  const PipelineSizes& defaults = device == Device::kGpu ? kGpuSizes : kSmallSizes;
  for (int PipelineSizes::*member : {&PipelineSizes::s_q, &PipelineSizes::s_kv, &PipelineSizes::h_q,
                                     &PipelineSizes::h_i, &PipelineSizes::d_i, &PipelineSizes::topk}) {
    if (sizes.*member == 0) sizes.*member = defaults.*member;
  }
  return sizes;
}

/// Times and rates, as measured.
Table timed_table(const std::vector<PipelineLine>& lines) {
  Table table{{"stage", "rung", "time", "rate", "% of yardstick", "check"},
              {false, false, true, true, true, false},
              {}};
  double total_s = 0;
  for (const PipelineLine& line : lines) {
    const auto seconds = line.row.counter("median_s"), ratio = line.row.counter("yardstick_ratio");
    const auto rate = rate_of(line.row);
    if (seconds && line.feeds_next) total_s += *seconds;
    table.rows.push_back({line.label, line.rung, seconds ? time_text(*seconds) : "",
                          rate ? rate_text(rate->per_s, rate->unit) : "",
                          ratio ? text("%.1f %%", 100 * *ratio) : "",
                          harness::status_name(line.check.status)});
  }
  table.rows.push_back({"all", "", time_text(total_s), "", "", ""});
  return table;
}

/// Counts instead of times: those of an emulator would mislead.
Table counted_table(const std::vector<PipelineLine>& lines) {
  Table table{
      {"stage", "rung", "FLOP", "bytes of all tensors", "check"}, {false, false, true, true, false}, {}};
  for (const PipelineLine& line : lines) {
    table.rows.push_back({line.label, line.rung,
                          line.work.unit == Unit::kFlop ? text("%.0f", line.work.amount) : "",
                          text("%.0f", line.tensor_bytes), harness::status_name(line.check.status)});
  }
  return table;
}

void run_pipeline(CommandLine command) {
  PipelineOptions& options = command.options;
  const bool gpu_absent = !harness::unavailable(Device::kGpu).empty();
  options.device = !command.device.empty() ? device_by_name(command.device)
                   : gpu_absent            ? Device::kEmulator
                                           : Device::kGpu;
  options.sizes = with_defaults(options.sizes, options.device);
  for (const auto& [stage, name] : {std::pair(Stage::kQuantize, command.quantize),
                                    {Stage::kIndexer, command.indexer},
                                    {Stage::kTopk, command.topk},
                                    {Stage::kSparseMlaFwd, command.fwd},
                                    {Stage::kSparseMlaBwd, command.bwd}}) {
    if (!name.empty()) options.steps[stage] = name;
  }
  if (options.device == Device::kCpu && !options.steps.empty()) {
    throw harness::BadInput("the cpu has only the reference; steps run on --device emulator or gpu");
  }
  if (options.device == Device::kGpu && gpu_absent) {
    std::fprintf(stderr, "dsa pipeline: no gpu here: %s\n", harness::unavailable(Device::kGpu).c_str());
    throw CLI::RuntimeError(kNoDevice);
  }

  Pipeline pipeline(options);
  try {
    pipeline.run();
  } catch (const NoSuchStep& error) {
    std::fprintf(stderr, "dsa pipeline: %s\n", error.what());
    throw CLI::RuntimeError(kUnsupportedShape);
  }
  std::printf("%s on %s\n", sizes_name(options.sizes).c_str(), device_name(options.device));
  const bool timed = options.device == Device::kGpu;
  std::fputs((timed ? timed_table(pipeline.lines()) : counted_table(pipeline.lines())).aligned().c_str(),
             stdout);
  if (!command.json.empty()) write_results(command.json, pipeline.results());
  for (const PipelineLine& line : pipeline.lines()) {
    if (line.check.status != Status::kPassed) throw CLI::RuntimeError(kIncorrect);
  }
}

}  // namespace

void add_pipeline_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("pipeline", "Run all stages, each on the outputs of the one before");
  const auto line = std::make_shared<CommandLine>();
  command->add_option("--device", line->device,
                      "gpu, emulator or cpu; default gpu if there is one, else emulator");
  PipelineSizes& sizes = line->options.sizes;
  const auto add_size = [&](const char* name, int& value, const char* help) {
    command->add_option(name, value, help)->check(CLI::Range(1, 1 << 24));
  };
  add_size("--s_q", sizes.s_q, "Queries");
  add_size("--s_kv", sizes.s_kv, "KV rows");
  add_size("--h_q", sizes.h_q, "Query heads of the attention");
  add_size("--h_i", sizes.h_i, "Heads of the indexer");
  add_size("--d_i", sizes.d_i, "Width of the indexer");
  add_size("--topk", sizes.topk, "KV rows selected per query");
  command->add_option("--quantize", line->quantize,
                      "Step of quantize; default the last that supports the sizes");
  command->add_option("--indexer", line->indexer, "Step of the indexer");
  command->add_option("--topk-step", line->topk, "Step of the top-k selector");
  command->add_option("--fwd", line->fwd, "Step of the forward");
  command->add_option("--bwd", line->bwd, "Step of the backward");
  command->add_flag("--all", line->options.all,
                    "Run every step that supports the sizes, the chosen one last");
  command->add_option("--json", line->json, "Write the results here");
  command->callback([line] { run_pipeline(*line); });
}

}  // namespace dsa::bench
