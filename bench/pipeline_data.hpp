/// @file pipeline_data.hpp
/// The tensors of the pipeline: on the host for judging, and on the device, where each stage's output stays
/// and is the next stage's input.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "../cuda/harness/execute.hpp"
#include "../cuda/harness/problem.hpp"

namespace dsa::bench {

/// Sizes of one pass: indexer [s_q, h_i, d_i] x [s_kv, d_i], then attention of h_q heads over topk rows.
struct PipelineSizes {
  int s_q = 0;
  int s_kv = 0;
  int h_q = 0;
  int h_i = 0;
  int d_i = 0;
  int topk = 0;
};

/// One stage of one pass.
struct PipelineStep {
  Stage stage;
  std::string label;  ///< "quantize q", "indexer", ...
  Args args;          ///< sizes; pointers null
  std::map<std::string, std::string>
      names;  ///< tensor that a binding means, where it is not of the same name

  const std::string& tensor_of(const std::string& binding) const;
};

/// Tensors by name. Without a machine (device cpu) only the host's half is there.
class PipelineData {
 public:
  explicit PipelineData(harness::Machine* machine) : machine_(machine) {}

  /// The random inputs: index vectors, q, kv and d_out nearly N(0, 1), and the causal windows ks = 0,
  /// ke = min(i + 1 + s_kv - s_q, s_kv).
  void make_inputs(const PipelineSizes& sizes);

  /// Indexer weights, random of either sign, with q's quantisation scale and the softmax scale folded in.
  /// Needs the tensor "index_q_scale", an output of the first step.
  void make_index_weights(const PipelineSizes& sizes);

  /// The step with the tensors as they are now, for the reference and the judge.
  harness::Problem problem(const PipelineStep& step) const;

  /// Args on the machine: inputs are the tensors there, outputs are allocated on first use.
  Args device_args(const PipelineStep& step);

  /// Overwrites the outputs on the machine with NaN patterns.
  void poison_outputs(const PipelineStep& step);
  /// Reads the outputs back, by binding name.
  harness::TensorMap read_outputs(const PipelineStep& step);
  /// "" or where the memory around an output was changed.
  std::string guard_report(const PipelineStep& step);

  /// Makes outputs of a step the tensors that later steps read on the host.
  void keep(const PipelineStep& step, const harness::TensorMap& outputs);

 private:
  void add(const std::string& name, harness::Tensor tensor);

  harness::Machine* machine_;
  harness::TensorMap host_;
  std::map<std::string, harness::Buffer> device_;
};

/// The steps in order: quantize q, quantize k, indexer, topk, sparse_mla_fwd, sparse_mla_bwd.
std::vector<PipelineStep> pipeline_steps(const PipelineSizes& sizes);

}  // namespace dsa::bench
