#include "problem.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace dsa::harness {

namespace {

using Shape = std::vector<int64_t>;
using Scalars = std::map<std::string, std::string>;

/// Rows of a logits tensor begin on 256-byte boundaries unless a case says otherwise.
constexpr int64_t kLogitsAlignment = 64;
/// Positions stay this far from overflow, so that kernels may add to them freely.
constexpr int64_t kMaxPosition = int64_t(1) << 62;

int64_t aligned_stride(int64_t columns) {
  return (columns + kLogitsAlignment - 1) / kLogitsAlignment * kLogitsAlignment;
}

bool starts_with(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

/// One axis of an expected shape.
struct Axis {
  const char* label;
  int64_t extent;
  bool may_be_left_out = false;  ///< in files, where the extent is 1
};

/// "[b, s_kv, g, 576] = [1, 200, 1, 576]".
std::string axes_text(const std::vector<Axis>& axes) {
  std::string labels;
  Shape extents;
  for (const Axis& axis : axes) {
    labels += (labels.empty() ? "" : ", ") + std::string(axis.label);
    extents.push_back(axis.extent);
  }
  return "[" + labels + "] = " + shape_text(extents);
}

/// True if `shape` is that of `axes`, some axes of extent 1 left out where that is allowed.
bool matches(const Shape& shape, const std::vector<Axis>& axes, std::size_t from_shape = 0,
             std::size_t from_axis = 0) {
  if (from_axis == axes.size()) return from_shape == shape.size();
  const Axis& axis = axes[from_axis];
  if (from_shape < shape.size() && shape[from_shape] == axis.extent &&
      matches(shape, axes, from_shape + 1, from_axis + 1)) {
    return true;
  }
  return axis.may_be_left_out && axis.extent == 1 && matches(shape, axes, from_shape, from_axis + 1);
}

/// Takes tensors and scalars out of a file, checking each; every failure is a BadInput that names its
/// subject.
class Loader {
 public:
  Loader(TensorMap tensors, const Scalars& scalars, const std::string& source)
      : tensors_(std::move(tensors)), scalars_(scalars), source_(source) {}

  [[noreturn]] void fail(const std::string& tensor, const std::string& what) const {
    throw BadInput(source_ + ": tensor '" + tensor + "': " + what);
  }
  [[noreturn]] void fail_scalar(const std::string& name, const std::string& what) const {
    throw BadInput(source_ + ": scalar '" + name + "': " + what);
  }

  bool has(const std::string& name) const { return tensors_.count(name) != 0; }

  /// The tensor, of one of the given types.
  const Tensor& need(const std::string& name, const std::vector<DType>& dtypes) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw BadInput(source_ + ": tensor '" + name + "' is missing");
    const DType dtype = found->second.dtype;
    if (std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end()) {
      std::string expected;
      for (DType allowed : dtypes)
        expected += (expected.empty() ? "" : " or ") + std::string(dtype_name(allowed));
      fail(name, "expected " + expected + ", got " + dtype_name(dtype));
    }
    return found->second;
  }

  /// The extent of one axis as an int, at least `least`.
  int extent(const std::string& name, const char* label, int64_t value, int least = 0) const {
    if (value > std::numeric_limits<int32_t>::max()) {
      fail(name, std::string(label) + " = " + std::to_string(value) + " does not fit in 32 bits");
    }
    if (value < least) {
      fail(name, std::string(label) + " = " + std::to_string(value) + ", must be at least " +
                     std::to_string(least));
    }
    return int(value);
  }

  /// Moves the tensor into `problem` with the full shape.
  void take(Problem& problem, const std::string& name, DType dtype, const std::vector<Axis>& axes) {
    const Shape& shape = need(name, {dtype}).shape;
    if (!matches(shape, axes)) fail(name, "expected shape " + axes_text(axes) + ", got " + shape_text(shape));
    Tensor tensor = std::move(tensors_.at(name));
    tensors_.erase(name);
    tensor.shape.clear();
    for (const Axis& axis : axes) tensor.shape.push_back(axis.extent);
    problem.inputs.emplace(name, std::move(tensor));
  }

  void take_optional(Problem& problem, const std::string& name, DType dtype, const std::vector<Axis>& axes) {
    if (has(name)) take(problem, name, dtype, axes);
  }

  /// What is left must be there for a reason.
  void check_leftovers(Stage stage) const {
    for (const auto& [name, tensor] : tensors_) {
      if (!starts_with(name, "want_") && !starts_with(name, "unquantized_")) {
        fail(name, std::string("is not an input of ") + stage_name(stage));
      }
    }
  }

  int64_t integer(const std::string& name, int64_t fallback, int64_t least, int64_t most) const {
    const std::string* text = scalar(name);
    if (!text) return fallback;
    int64_t value = 0;
    const char* end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, value);
    if (error != std::errc() || stop != end) fail_scalar(name, "expected an integer, got '" + *text + "'");
    if (value < least || value > most) {
      fail_scalar(name, "expected an integer from " + std::to_string(least) + " to " + std::to_string(most) +
                            ", got '" + *text + "'");
    }
    return value;
  }

  bool flag(const std::string& name, bool fallback) const {
    const std::string* text = scalar(name);
    if (!text) return fallback;
    if (*text == "1" || *text == "true") return true;
    if (*text == "0" || *text == "false") return false;
    fail_scalar(name, "expected 0, 1, true or false, got '" + *text + "'");
  }

  float positive(const std::string& name, float fallback) const {
    const std::string* text = scalar(name);
    if (!text) return fallback;
    double value = 0;
    const char* end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, value);
    const float rounded = float(value);
    if (error != std::errc() || stop != end || !std::isfinite(rounded) || !(rounded > 0)) {
      fail_scalar(name, "expected a positive finite number, got '" + *text + "'");
    }
    return rounded;
  }

  ScaleMode scale_mode() const {
    const std::string* text = scalar("scale");
    if (!text || *text == "row") return ScaleMode::kRow;
    if (*text == "row_pow2") return ScaleMode::kRowPow2;
    if (*text == "none") return ScaleMode::kNone;
    fail_scalar("scale", "expected row, row_pow2 or none, got '" + *text + "'");
  }

  int topk() const {
    if (!has_scalar("topk")) fail_scalar("topk", "is missing: give it in the file's metadata or as --topk");
    return int(integer("topk", 0, 1, std::numeric_limits<int32_t>::max()));
  }

  bool has_scalar(const std::string& name) const { return scalar(name) != nullptr; }

 private:
  const std::string* scalar(const std::string& name) const {
    const auto found = scalars_.find(name);
    return found == scalars_.end() ? nullptr : &found->second;
  }

  TensorMap tensors_;
  const Scalars& scalars_;
  const std::string& source_;
};

// ---- One loader per stage --------------------------------------------------------------------------------

void load(Loader& in, QuantizeArgs& args, Problem& problem) {
  const Tensor& x = in.need("x", {DType::kBF16, DType::kF32});
  if (x.shape.size() != 1 && x.shape.size() != 2) {
    in.fail("x", "expected shape [rows, n] or [n], got " + shape_text(x.shape));
  }
  const bool one_row = x.shape.size() == 1;
  args.rows = one_row ? 1 : x.shape[0];
  args.n = in.extent("x", "n", x.shape.back());
  args.mode = in.scale_mode();
  if (one_row) problem.file_shapes = {{"bytes", x.shape}, {"scale", {1}}};
  in.take(problem, "x", x.dtype, {{"rows", args.rows, true}, {"n", args.n}});
}

void load(Loader& in, IndexerArgs& args, Problem& problem) {
  const Shape& q = in.need("q", {DType::kE4M3}).shape;
  if (q.size() != 3) in.fail("q", "expected shape [s_q, h_i, d_i], got " + shape_text(q));
  const Shape& k = in.need("k", {DType::kE4M3}).shape;
  if (k.size() != 2) in.fail("k", "expected shape [s_kv, d_i], got " + shape_text(k));
  args.s_q = in.extent("q", "s_q", q[0]);
  args.h_i = in.extent("q", "h_i", q[1], 1);
  args.d_i = in.extent("q", "d_i", q[2], 1);
  args.s_kv = in.extent("k", "s_kv", k[0]);
  args.clean = in.flag("clean", true);
  args.logits_stride = aligned_stride(args.s_kv);
  in.take(problem, "q", DType::kE4M3, {{"s_q", args.s_q}, {"h_i", args.h_i}, {"d_i", args.d_i}});
  in.take(problem, "k", DType::kE4M3, {{"s_kv", args.s_kv}, {"d_i", args.d_i}});
  in.take(problem, "k_scale", DType::kF32, {{"s_kv", args.s_kv}});
  in.take(problem, "weights", DType::kF32, {{"s_q", args.s_q}, {"h_i", args.h_i}});
  in.take(problem, "ks", DType::kI32, {{"s_q", args.s_q}});
  in.take(problem, "ke", DType::kI32, {{"s_q", args.s_q}});
}

void load(Loader& in, TopkArgs& args, Problem& problem) {
  const Shape& logits = in.need("logits", {DType::kF32}).shape;
  if (logits.size() != 2) in.fail("logits", "expected shape [rows, n], got " + shape_text(logits));
  args.rows = in.extent("logits", "rows", logits[0]);
  args.n = in.extent("logits", "n", logits[1]);
  args.topk = in.topk();
  args.deterministic = in.flag("deterministic", false);
  args.logits_stride = aligned_stride(args.n);
  in.take(problem, "logits", DType::kF32, {{"rows", args.rows}, {"n", args.n}});
  in.take(problem, "ks", DType::kI32, {{"rows", args.rows}});
  in.take(problem, "ke", DType::kI32, {{"rows", args.rows}});
}

void load(Loader& in, IndexTopkArgs& args, Problem& problem) {
  IndexerArgs indexer;
  load(in, indexer, problem);
  args.s_q = indexer.s_q, args.s_kv = indexer.s_kv, args.h_i = indexer.h_i, args.d_i = indexer.d_i;
  args.topk = in.topk();
  args.deterministic = in.flag("deterministic", false);
  args.logits_stride = indexer.logits_stride;
  const int64_t row_bytes = std::max<int64_t>(4 * args.logits_stride, 1);
  args.chunk = int(std::clamp<int64_t>(kLogitsScratchBytes / row_bytes, 1, std::max(args.s_q, 1)));
}

/// One way to read the shape of kv or indices: how many rows per batch, how many groups.
struct Reading {
  int64_t rows;
  int64_t groups;
};

/// The ways to read [b, rows, g, width] given b, axes of extent 1 possibly left out.
std::vector<Reading> readings(const Shape& shape, int64_t b) {
  std::vector<Reading> found;
  if (shape.size() == 4 && shape[0] == b) found.push_back({shape[1], shape[2]});
  if (shape.size() == 3 && shape[0] == b) found.push_back({shape[1], 1});
  if (shape.size() == 3 && b == 1) found.push_back({shape[0], shape[1]});
  if (shape.size() == 2 && b == 1) found.push_back({shape[0], 1});
  return found;
}

struct SparseSizes {
  int b, s_q, s_kv, h_q, g, topk;
};

/// Reads the sizes off q, kv and indices.
SparseSizes sparse_sizes(const Loader& in, DType dtype) {
  const Shape& q = in.need("q", {dtype}).shape;
  if ((q.size() != 3 && q.size() != 4) || q.back() != kDimQK) {
    in.fail("q", "expected shape [b, s_q, h_q, 576] (b may be left out), got " + shape_text(q));
  }
  SparseSizes sizes{};
  sizes.b = q.size() == 4 ? in.extent("q", "b", q[0], 1) : 1;
  sizes.s_q = in.extent("q", "s_q", q[q.size() - 3]);
  sizes.h_q = in.extent("q", "h_q", q[q.size() - 2], 1);

  const std::string batch = "b = " + std::to_string(sizes.b);
  const std::string may = sizes.b == 1 ? " (b, and g = 1, may be left out)" : " (g = 1 may be left out)";
  const Tensor& kv = in.need("kv", {DType::kBF16, DType::kE4M3});
  if (kv.dtype != dtype) {
    in.fail("kv", std::string("is ") + dtype_name(kv.dtype) + ", but q is " + dtype_name(dtype));
  }
  std::vector<Reading> kv_readings;
  if (!kv.shape.empty() && kv.shape.back() == kDimQK) kv_readings = readings(kv.shape, sizes.b);
  if (kv_readings.empty()) {
    in.fail("kv", "expected shape [b, s_kv, g, 576] with " + batch + may + ", got " + shape_text(kv.shape));
  }

  const Shape& indices = in.need("indices", {DType::kI32}).shape;
  std::vector<Reading> index_readings = readings(indices, sizes.b);
  std::erase_if(index_readings, [&](const Reading& reading) { return reading.rows != sizes.s_q; });
  if (index_readings.empty()) {
    in.fail("indices", "expected shape [b, s_q, g, topk] with " + batch +
                           ", s_q = " + std::to_string(sizes.s_q) + may + ", got " + shape_text(indices));
  }

  int64_t indivisible = 0;
  for (const Reading& of_kv : kv_readings) {
    for (const Reading& of_indices : index_readings) {
      if (of_kv.groups != of_indices.groups) continue;
      if (of_kv.groups < 1 || sizes.h_q % of_kv.groups != 0) {
        indivisible = of_kv.groups;
        continue;
      }
      sizes.s_kv = in.extent("kv", "s_kv", of_kv.rows);
      sizes.g = int(of_kv.groups);
      sizes.topk = in.extent("indices", "topk", indices.back(), 1);
      return sizes;
    }
  }
  if (indivisible > 0) {
    in.fail("kv", "h_q = " + std::to_string(sizes.h_q) + " is not a multiple of g = " +
                      std::to_string(indivisible) + " (shape " + shape_text(kv.shape) + ")");
  }
  in.fail("indices", "shape " + shape_text(indices) + " and kv's shape " + shape_text(kv.shape) +
                         " do not have the same number of groups g");
}

/// The part that forward and backward share.
template <class A>
void load_sparse(Loader& in, A& args, Problem& problem, DType dtype) {
  const SparseSizes sizes = sparse_sizes(in, dtype);
  args.b = sizes.b;
  args.s_q = sizes.s_q;
  args.s_kv = sizes.s_kv;
  args.h_q = sizes.h_q;
  args.g = sizes.g;
  args.topk = sizes.topk;
  args.sm_scale = in.positive("sm_scale", float(1 / std::sqrt(double(kDimQK))));
  args.causal = in.flag("causal", false);
  args.q_start = in.integer("q_start", 0, -kMaxPosition, kMaxPosition);
  args.kv_stride = in.integer("kv_stride", 1, 1, kMaxPosition);

  const Shape q_shape = in.need("q", {dtype}).shape;
  Shape head_shape(q_shape.begin(), q_shape.end() - 1);
  Shape out_shape = q_shape;
  out_shape.back() = kDimV;
  problem.file_shapes = {{"out", out_shape},    {"lse", head_shape}, {"max_logits", head_shape},
                         {"delta", head_shape}, {"dq", q_shape},     {"dkv", in.need("kv", {dtype}).shape}};

  const Axis b{"b", args.b, true}, g{"g", args.g, true}, s_q{"s_q", args.s_q}, h_q{"h_q", args.h_q};
  in.take(problem, "q", dtype, {b, s_q, h_q, {"576", kDimQK}});
  in.take(problem, "kv", dtype, {b, {"s_kv", args.s_kv}, g, {"576", kDimQK}});
  in.take(problem, "indices", DType::kI32, {b, s_q, g, {"topk", args.topk}});
  in.take_optional(problem, "topk_length", DType::kI32, {b, s_q});
  in.take_optional(problem, "attn_sink", DType::kF32, {h_q});
}

void load(Loader& in, SparseMlaFwdArgs& args, Problem& problem) {
  const DType dtype = in.need("q", {DType::kBF16, DType::kE4M3}).dtype;
  args.fp8 = dtype == DType::kE4M3;
  load_sparse(in, args, problem, dtype);
  const Axis b{"b", args.b, true};
  for (const char* scale : {"q_scale", "kv_scale"}) {
    if (in.has(scale) && !args.fp8) in.fail(scale, "belongs to F8_E4M3 inputs, but q is BF16");
  }
  in.take_optional(problem, "q_scale", DType::kF32, {b, {"s_q", args.s_q}, {"h_q", args.h_q}});
  in.take_optional(problem, "kv_scale", DType::kF32, {b, {"s_kv", args.s_kv}, {"g", args.g, true}});
}

void load(Loader& in, SparseMlaBwdArgs& args, Problem& problem) {
  load_sparse(in, args, problem, DType::kBF16);
  const Axis b{"b", args.b, true}, s_q{"s_q", args.s_q}, h_q{"h_q", args.h_q}, d_v{"512", kDimV};
  in.take(problem, "out", DType::kBF16, {b, s_q, h_q, d_v});
  in.take(problem, "lse", DType::kF32, {b, s_q, h_q});
  in.take(problem, "d_out", DType::kBF16, {b, s_q, h_q, d_v});
}

Args empty_args(Stage stage) {
  switch (stage) {
    case Stage::kQuantize:
      return QuantizeArgs{};
    case Stage::kIndexer:
      return IndexerArgs{};
    case Stage::kTopk:
      return TopkArgs{};
    case Stage::kIndexTopk:
      return IndexTopkArgs{};
    case Stage::kSparseMlaFwd:
      return SparseMlaFwdArgs{};
    case Stage::kSparseMlaBwd:
      return SparseMlaBwdArgs{};
  }
  return QuantizeArgs{};
}

}  // namespace

const std::vector<std::string>& scalar_names(Stage stage) {
  static const std::vector<std::string> quantize{"scale"}, indexer{"clean"}, topk{"topk", "deterministic"},
      sparse{"sm_scale", "causal", "q_start", "kv_stride"};
  switch (stage) {
    case Stage::kQuantize:
      return quantize;
    case Stage::kIndexer:
      return indexer;
    case Stage::kTopk:
    case Stage::kIndexTopk:
      return topk;
    default:
      return sparse;
  }
}

Problem make_problem(Stage stage, TensorMap tensors, const Scalars& scalars, const std::string& source) {
  Problem problem{empty_args(stage), {}};
  Loader in(std::move(tensors), scalars, source);
  std::visit([&](auto& args) { load(in, args, problem); }, problem.args);
  in.check_leftovers(stage);
  return problem;
}

Stage detect_stage(const TensorMap& tensors, const std::string& source) {
  const auto has = [&](const char* name) { return tensors.count(name) != 0; };
  if (has("d_out")) return Stage::kSparseMlaBwd;
  if (has("kv") && has("indices")) return Stage::kSparseMlaFwd;
  if (has("weights") && has("k")) return Stage::kIndexer;
  if (has("logits")) return Stage::kTopk;
  if (has("x")) return Stage::kQuantize;
  throw BadInput(source +
                 ": its tensors fit no stage (sparse_mla_bwd has 'd_out', sparse_mla_fwd 'kv' and "
                 "'indices', indexer 'k' and 'weights', topk 'logits', quantize 'x')");
}

}  // namespace dsa::harness
