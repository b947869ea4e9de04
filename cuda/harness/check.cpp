#include "check.hpp"

#include <atomic>
#include <limits>
#include <optional>

#include "expectation.hpp"
#include "parallel.hpp"
#include "tolerance.hpp"

namespace dsa::harness {

// ---- Judge -----------------------------------------------------------------------------------------------

struct Judge::Impl {
  const Problem& problem;
  std::vector<Expectation> expectations;
  std::optional<TopkExpectation> topk;
  std::optional<IndexTopkExpectation> index_topk;

  Tolerance tolerance(const Expectation& e, Accuracy accuracy) const {
    const Stage stage = stage_of(problem.args);
    const auto* fwd = std::get_if<SparseMlaFwdArgs>(&problem.args);
    Tolerance t = tolerance_of(stage, e.want.name, accuracy, fwd && fwd->fp8);
    if (accuracy == Accuracy::kFp8 && e.want.name == "out") t.row_error = problem.fp8_row_error;
    double factor = kF32Sum;
    if (stage == Stage::kIndexer) factor = accuracy == Accuracy::kF32 ? kIndexerBoundF32 : kIndexerBoundFp8;
    for (double scale : e.element_scale) t.element_bound.push_back(factor * scale);
    t.noise = e.noise;
    t.row_slack = e.row_slack;
    return t;
  }
};

namespace {

std::vector<Expectation> expect(const Problem& problem, int64_t n, uint64_t seed) {
  switch (stage_of(problem.args)) {
    case Stage::kQuantize:
      return expect_quantize(problem, n, seed);
    case Stage::kIndexer:
      return expect_indexer(problem, n, seed);
    case Stage::kTopk:
    case Stage::kIndexTopk:
      return {};
    case Stage::kSparseMlaFwd:
      return expect_fwd(problem, n, seed);
    case Stage::kSparseMlaBwd:
      return expect_bwd(problem, n, seed);
  }
  return {};
}

std::vector<int64_t> without_ones(std::vector<int64_t> shape) {
  std::erase(shape, 1);
  return shape;
}

/// The expected values of one output from a file; its shape may lack axes of extent 1.
Expectation from_file(const std::string& name, std::vector<int64_t> shape, const std::string& want_name,
                      const Tensor& want, const std::string& source) {
  if (without_ones(want.shape) != without_ones(shape)) {
    throw BadInput(source + ": tensor '" + want_name + "': expected shape " + shape_text(shape) + ", got " +
                   shape_text(want.shape));
  }
  Expectation e = expectation(name, std::move(shape), {});
  e.want.values.resize(std::size_t(want.elements()));
  for (int64_t i = 0; i < want.elements(); ++i) e.want.values[std::size_t(i)] = want.at(i);
  return e;
}

}  // namespace

Judge::Judge(const Problem& problem, int64_t sample_rows, uint64_t seed)
    : impl_(new Impl{problem, expect(problem, sample_rows, seed), {}, {}}) {
  if (stage_of(problem.args) == Stage::kTopk) impl_->topk.emplace(problem, sample_rows, seed);
  if (stage_of(problem.args) == Stage::kIndexTopk) impl_->index_topk.emplace(problem, sample_rows, seed);
}

Judge::Judge(const Problem& problem, const TensorMap& want, const std::string& source)
    : impl_(new Impl{problem, {}, {}, {}}) {
  const Stage stage = stage_of(problem.args);
  if (stage == Stage::kTopk) {
    impl_->topk.emplace(problem, want, source);
    return;
  }
  if (stage == Stage::kIndexTopk) {
    throw BadInput(source + ": index_topk is judged by the reference alone; its files have no want_ tensors");
  }
  Args args = host_args(problem);
  for (const Binding& binding : bindings(args)) {
    const std::string want_name = "want_" + (binding.name == "dkv_f32" ? "dkv" : binding.name);
    const auto found = want.find(want_name);
    if (!binding.output || found == want.end()) continue;
    Expectation e = from_file(binding.name, binding.shape, want_name, found->second, source);
    if (stage == Stage::kIndexer) add_excuses_indexer(problem, e);
    if (stage == Stage::kSparseMlaFwd) add_excuses_fwd(want, e);
    if (stage == Stage::kSparseMlaBwd) add_excuses_bwd(problem, e);
    impl_->expectations.push_back(std::move(e));
  }
  if (impl_->expectations.empty()) {
    throw BadInput(source + ": none of its want_ tensors is an output of " + stage_name(stage));
  }
}

Judge::~Judge() = default;

Verdict Judge::judge(const TensorMap& outputs, Accuracy accuracy) const {
  if (impl_->topk) {
    const auto found = outputs.find("indices");
    return found == outputs.end() ? Verdict{false, "no output 'indices'"} : impl_->topk->judge(found->second);
  }
  if (impl_->index_topk) {
    const auto found = outputs.find("indices");
    return found == outputs.end() ? Verdict{false, "no output 'indices'"}
                                  : impl_->index_topk->judge(found->second, accuracy);
  }
  Verdict all;
  for (const Expectation& e : impl_->expectations) {
    const auto found = outputs.find(e.want.name);
    const Verdict one = found == outputs.end()
                            ? Verdict{false, "no output '" + e.want.name + "'"}
                            : compare(found->second, e.want, impl_->tolerance(e, accuracy));
    if (one.passed) continue;
    all.message += (all.passed ? "" : "\n") + one.message;
    all.passed = false;
  }
  return all;
}

Accuracy reference_accuracy(Stage stage) {
  return stage == Stage::kQuantize || stage == Stage::kTopk ? Accuracy::kExact : Accuracy::kF32;
}

// ---- The blank twin --------------------------------------------------------------------------------------

namespace {

/// The same problem with inputs that select nothing, for which every output is one known value.
struct BlankTwin {
  TensorMap inputs;                                  ///< the inputs that differ
  std::vector<std::pair<std::string, double>> want;  ///< outputs and their value everywhere

  explicit BlankTwin(const Problem& problem) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    const auto replace = [&](const char* name, int32_t value) {
      const Tensor& original = problem.inputs.at(name);
      Tensor& blank = inputs[name] = Tensor(original.dtype, original.shape);
      if (original.dtype == DType::kI32) std::fill_n(blank.data<int32_t>(), blank.elements(), value);
    };
    if (const auto* a = std::get_if<QuantizeArgs>(&problem.args)) {
      replace("x", 0);
      const double scale = double(1e-4f / kE4m3Max);  // of a row of zeros; 2^-22 is the next power of two
      want = {{"bytes", 0},
              {"scale", a->mode == ScaleMode::kNone  ? 1
                        : a->mode == ScaleMode::kRow ? scale
                                                     : 0x1p-22}};
    } else if (const auto* indexer = std::get_if<IndexerArgs>(&problem.args)) {
      replace("ke", 0);
      if (indexer->clean) want = {{"logits", -kInf}};
    } else if (std::holds_alternative<TopkArgs>(problem.args) ||
               std::holds_alternative<IndexTopkArgs>(problem.args)) {
      replace("ke", 0);
      want = {{"indices", kInvalid}};
    } else {
      replace("indices", kInvalid);
      want = std::holds_alternative<SparseMlaFwdArgs>(problem.args)
                 ? decltype(want){{"out", 0}, {"lse", kInf}, {"max_logits", -kInf}}
                 : decltype(want){{"dq", 0}, {"dkv", 0}, {"dkv_f32", 0}};
    }
  }

  /// "" or what is wrong.
  std::string judge(const TensorMap& outputs) const {
    for (const auto& [name, value] : want) {
      const Tensor& got = outputs.at(name);
      std::atomic<int64_t> wrong = -1;
      parallel_for(got.elements(), 1 << 20, [&, value = value](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          if (got.at(i) != value) wrong = i;
        }
      });
      if (wrong < 0) continue;
      return "with inputs that select nothing, every element of '" + name + "' must be " +
             std::to_string(value) + ", but element " + std::to_string(wrong) + " is " +
             std::to_string(got.at(wrong)) + ": an earlier result, or contributions of invalid slots";
    }
    return "";
  }
};

std::string differing_output(const TensorMap& a, const TensorMap& b) {
  for (const auto& [name, tensor] : a) {
    if (tensor.bytes != b.at(name).bytes) return name;
  }
  return "";
}

CheckResult check_resident(const RungEntry& rung, Machine& machine, const Problem& problem,
                           const Judge& judge, const CheckOptions& options) {
  Resident resident(machine, problem);
  TensorMap first;
  for (int launch = 1; launch <= options.repeats; ++launch) {
    const std::string which =
        "launch " + std::to_string(launch) + " of " + std::to_string(options.repeats) + ": ";
    RunResult run = launch_once(rung, machine, resident);
    if (run.status != Status::kPassed) return {run.status, which + run.message};
    const std::string changed = launch == 1 ? "" : differing_output(first, run.outputs);
    if (launch == 1 || !changed.empty()) {  // equal bits need no second judgement
      const Verdict verdict = judge.judge(run.outputs, rung.accuracy);
      if (!verdict.passed) return {Status::kIncorrect, which + verdict.message};
    }
    if (rung.repeatable && !changed.empty()) {
      return {Status::kIncorrect,
              which + "not repeatable: '" + changed + "' differs from that of the first launch"};
    }
    if (launch > 1) continue;
    first = std::move(run.outputs);
    if (options.repeats == 1) continue;

    const BlankTwin blank(problem);
    for (const auto& [name, tensor] : blank.inputs) resident.replace_input(name, tensor);
    run = launch_once(rung, machine, resident);
    if (run.status != Status::kPassed) return {run.status, "inputs that select nothing: " + run.message};
    const std::string wrong = blank.judge(run.outputs);
    if (!wrong.empty()) return {Status::kIncorrect, wrong};
    resident.restore_inputs();
  }
  return {};
}

}  // namespace

CheckResult check_rung(const RungEntry& rung, Machine& machine, const Problem& problem, const Judge& judge,
                       const CheckOptions& options) {
  if (const char* reason = rung.unsupported(problem.args)) return {Status::kUnsupported, reason};
  try {
    return check_resident(rung, machine, problem, judge, options);
  } catch (const std::runtime_error& error) {  // the machine's own failures
    return {Status::kRuntimeError, error.what()};
  }
}

}  // namespace dsa::harness
