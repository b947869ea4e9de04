#include "work.hpp"

#include <stdexcept>

#include "../cuda/harness/execute.hpp"
#include "../reference/selected.hpp"
#include "../reference/window.hpp"
#include "text.hpp"

namespace dsa::bench {

namespace {

constexpr double kForwardWidth = kDimQK + kDimV;           // Q K^T, P V
constexpr double kBackwardWidth = 3 * kDimQK + 2 * kDimV;  // Q K^T, dS K, dS^T Q; dO V^T, P^T dO

/// Sum over rows of the number of columns in [ks, ke).
double window_columns(const int32_t* ks, const int32_t* ke, int64_t rows, int n) {
  double columns = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const reference::Window window = reference::clamp_window(ks[i], ke[i], n);
    columns += window.end - window.begin;
  }
  return columns;
}

/// The fields that decide whether a slot is valid, which forward and backward share.
SparseMlaFwdArgs selection_of(const SparseMlaBwdArgs& a) {
  SparseMlaFwdArgs f;
  f.b = a.b, f.s_q = a.s_q, f.s_kv = a.s_kv, f.h_q = a.h_q, f.g = a.g, f.topk = a.topk;
  f.causal = a.causal, f.q_start = a.q_start, f.kv_stride = a.kv_stride;
  f.indices = a.indices, f.topk_length = a.topk_length;
  return f;
}

/// Number of valid (batch, query, head, slot).
double valid_slots(const SparseMlaFwdArgs& a) {
  int64_t valid = 0;
  for (int64_t batch = 0; batch < a.b; ++batch) {
    for (int64_t query = 0; query < a.s_q; ++query) {
      for (int64_t group = 0; group < a.g; ++group) {
        const int32_t* rows = reference::indices_of(a, batch, query, group);
        for (int slot = 0; slot < a.topk; ++slot) {
          valid += reference::is_valid_slot(a, batch, query, slot, rows[slot]);
        }
      }
    }
  }
  return double(valid) * (a.h_q / a.g);
}

/// @param width sum of the inner or outer extents of the matrix products, per slot
Work sparse_work(const SparseMlaFwdArgs& a, double width) {
  const double slots = double(a.b) * a.s_q * a.h_q * a.topk;
  return {Unit::kFlop, 2 * slots * width, 2 * valid_slots(a) * width};
}

Work all_valid(Unit unit, double amount) {
  return {unit, amount, amount};
}

Work count(const QuantizeArgs& a) {
  const double input = double(a.n) * (a.x_bf16 ? sizeof(bf16) : sizeof(float));
  return all_valid(Unit::kBytes, double(a.rows) * (input + a.n * sizeof(e4m3) + sizeof(float)));
}
template <class A>
Work scoring_work(const A& a) {
  return all_valid(Unit::kFlop, 2.0 * a.h_i * a.d_i * window_columns(a.ks, a.ke, a.s_q, a.s_kv));
}
Work count(const IndexerArgs& a) {
  return scoring_work(a);
}
Work count(const TopkArgs& a) {
  return all_valid(Unit::kBytes, sizeof(float) * window_columns(a.ks, a.ke, a.rows, a.n));
}
Work count(const IndexTopkArgs& a) {
  return scoring_work(a);
}
Work count(const SparseMlaFwdArgs& a) {
  return sparse_work(a, kForwardWidth);
}
Work count(const SparseMlaBwdArgs& a) {
  return sparse_work(selection_of(a), kBackwardWidth);
}

}  // namespace

Work work_of(const harness::Problem& problem) {
  return std::visit([](const auto& args) { return count(args); }, harness::host_args(problem));
}

const char* work_convention(Stage stage) {
  switch (stage) {
    case Stage::kQuantize:
      return "Bytes: the input read once, bytes and scales written once; the copy counts read and write too.";
    case Stage::kIndexer:
      return "FLOP: 2 h_i d_i for every (query, key) pair inside the windows; pairs outside count nothing.";
    case Stage::kTopk:
      return "Bytes: one read of every window, 4 sum(ke - ks), whatever a kernel really reads; the copy "
             "counts "
             "read and write.";
    case Stage::kIndexTopk:
      return "FLOP: 2 h_i d_i for every (query, key) pair inside the windows, scored or not; the selection counts "
             "nothing.";
    case Stage::kSparseMlaFwd:
      return "FLOP: 2 b s_q h_q topk (576 + 512); every slot counts, valid or not.";
    case Stage::kSparseMlaBwd:
      return "FLOP: 2 b s_q h_q topk (3 x 576 + 2 x 512); every slot counts, valid or not.";
  }
  return "";
}

double tensor_bytes(const harness::Problem& problem) {
  Args args = problem.args;
  double bytes = 0;
  for (const harness::Binding& binding : harness::bindings(args)) {
    if (!binding.output && !harness::input_of(problem, binding)) continue;
    double size = double(harness::size_of(binding.dtype));
    for (int64_t extent : binding.shape) size *= double(extent);
    bytes += size;
  }
  return bytes;
}

YardstickChoice yardstick_for(const Args& args, bool warm) {
  switch (harness::stage_of(args)) {
    case Stage::kQuantize:
    case Stage::kTopk:
      return {YardstickKind::kCopy, !warm};
    case Stage::kIndexer:
      return {YardstickKind::kCublasFp8, true};
    case Stage::kIndexTopk:
      return {YardstickKind::kCublasFp8, false};   // what is selected whole need not be scored
    case Stage::kSparseMlaFwd:
      return {YardstickKind::kCublasBf16, !std::get<SparseMlaFwdArgs>(args).fp8};
    case Stage::kSparseMlaBwd:
      return {YardstickKind::kCublasBf16, true};
  }
  throw std::logic_error("a stage without a yardstick");
}

Unit yardstick_unit(YardstickKind kind) {
  return kind == YardstickKind::kCopy ? Unit::kBytes : Unit::kFlop;
}

std::string yardstick_name(YardstickKind kind) {
  const std::string size = std::to_string(kYardstickSize);
  const std::string product = "/m:" + size + "/n:" + size + "/k:" + size;
  switch (kind) {
    case YardstickKind::kCublasBf16:
      return "cublaslt_bf16" + product;
    case YardstickKind::kCublasFp8:
      return "cublaslt_fp8" + product;
    case YardstickKind::kCopy:
      return "copy/bytes:" + std::to_string(kYardstickCopyBytes);
  }
  return "?";
}

const char* yardstick_title(YardstickKind kind) {
  switch (kind) {
    case YardstickKind::kCublasBf16:
      return "cuBLASLt bf16";
    case YardstickKind::kCublasFp8:
      return "cuBLASLt fp8";
    case YardstickKind::kCopy:
      return "copy";
  }
  return "?";
}

std::string above_ceiling(const YardstickChoice& yardstick, double ratio, const Work& work) {
  const double valid = work.amount > 0 ? ratio * work.valid_amount / work.amount : 0;
  if (!yardstick.ceiling || valid <= 1) return "";
  return text("%.3f x %s, which nothing can be: the measurement or the count is wrong", valid,
              yardstick_title(yardstick.kind));
}

}  // namespace dsa::bench
