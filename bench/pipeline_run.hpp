/// @file pipeline_run.hpp
/// One pass through all stages: choosing the rungs, running, judging and timing them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../cuda/harness/check.hpp"
#include "gpu_timer.hpp"
#include "pipeline_data.hpp"

namespace dsa::bench {

struct PipelineOptions {
  Device device = Device::kEmulator;
  PipelineSizes sizes;
  std::map<Stage, std::string> steps;  ///< the rung to use, for stages where one is named
  bool all = false;                    ///< every rung that supports the sizes; the chosen one last
};

/// What one rung did in the pass.
struct PipelineLine {
  std::string label;  ///< "quantize q", "indexer", ...
  std::string rung;
  bool feeds_next = false;  ///< its outputs are the next stage's inputs
  Work work;
  double tensor_bytes = 0;  ///< all tensors of the stage, each once
  harness::CheckResult check;
  ResultRow row;  ///< times, on the GPU; counts everywhere
};

/// No registered rung can run a stage at these sizes: exit status 3.
struct NoSuchStep : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Pipeline {
 public:
  /// Opens the device, which must be available.
  explicit Pipeline(const PipelineOptions& options);
  ~Pipeline();

  /// Runs all stages, one progress line each on stderr. An incorrect stage does not stop the pass, a crash
  /// does. Throws NoSuchStep, or harness::BadInput for a rung that does not exist.
  void run();

  const std::vector<PipelineLine>& lines() const { return lines_; }
  /// Rows `pipeline/STAGE.RUNG/s_q:.../...`.
  Results results() const;

 private:
  std::vector<const RungEntry*> choose_rungs(const PipelineStep& step) const;
  void run_step(const PipelineStep& step, const std::vector<const RungEntry*>& chosen);
  void run_rung(const PipelineStep& step, const RungEntry& rung, const harness::Judge& judge,
                PipelineLine& line);
  harness::CheckResult launch(const PipelineStep& step, const RungEntry& rung, const Args& args);
  void time(const RungEntry& rung, const Args& args, PipelineLine& line);
  void record(PipelineLine line);
  std::string row_name(const PipelineLine& line) const;
  bool crashed() const;

  PipelineOptions options_;
  std::unique_ptr<harness::Machine> machine_;  ///< none on the cpu, where the reference runs
  std::unique_ptr<GpuTimer> timer_;            ///< on the GPU only
  PipelineData data_;
  std::vector<PipelineLine> lines_;
};

/// "s_q:4096/s_kv:4096/h_q:128/h_i:64/d_i:128/topk:2048".
std::string sizes_name(const PipelineSizes& sizes);

}  // namespace dsa::bench
