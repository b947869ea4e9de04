// From the tensors and scalars of a file to a problem: shapes, left-out axes, and what is said when they do
// not fit.
#include <doctest/doctest.h>

#include "host_machine.hpp"

using namespace dsa;
using namespace dsa::harness;
using test::bad_input;
using test::contains;

namespace {

using Scalars = std::map<std::string, std::string>;
using Shape = std::vector<int64_t>;

TensorMap fwd_tensors(Shape q = {3, 8, 576}, Shape kv = {20, 576}, Shape indices = {3, 16}) {
  TensorMap tensors;
  tensors["q"] = Tensor(DType::kBF16, std::move(q));
  tensors["kv"] = Tensor(DType::kBF16, std::move(kv));
  tensors["indices"] = Tensor(DType::kI32, std::move(indices));
  return tensors;
}

TensorMap fp8_tensors() {
  TensorMap tensors = fwd_tensors();
  tensors["q"] = Tensor(DType::kE4M3, {3, 8, 576});
  tensors["kv"] = Tensor(DType::kE4M3, {20, 576});
  return tensors;
}

TensorMap bwd_tensors() {
  TensorMap tensors = fwd_tensors();
  tensors["out"] = tensors["d_out"] = Tensor(DType::kBF16, {3, 8, 512});
  tensors["lse"] = Tensor(DType::kF32, {3, 8});
  return tensors;
}

TensorMap indexer_tensors() {
  TensorMap tensors;
  tensors["q"] = Tensor(DType::kE4M3, {3, 64, 128});
  tensors["k"] = Tensor(DType::kE4M3, {20, 128});
  tensors["k_scale"] = Tensor(DType::kF32, {20});
  tensors["weights"] = Tensor(DType::kF32, {3, 64});
  tensors["ks"] = tensors["ke"] = Tensor(DType::kI32, {3});
  return tensors;
}

TensorMap topk_tensors() {
  TensorMap tensors;
  tensors["logits"] = Tensor(DType::kF32, {3, 20});
  tensors["ks"] = tensors["ke"] = Tensor(DType::kI32, {3});
  return tensors;
}

TensorMap quantize_tensors() {
  return {{"x", Tensor(DType::kBF16, {3, 20})}};
}

TensorMap tensors_of(Stage stage) {
  switch (stage) {
    case Stage::kQuantize:
      return quantize_tensors();
    case Stage::kIndexer:
    case Stage::kIndexTopk:
      return indexer_tensors();
    case Stage::kTopk:
      return topk_tensors();
    case Stage::kSparseMlaFwd:
      return fwd_tensors();
    case Stage::kSparseMlaBwd:
      return bwd_tensors();
  }
  return {};
}

const Scalars kTopk4{{"topk", "4"}};

std::string message(Stage stage, TensorMap tensors, const Scalars& scalars = kTopk4) {
  return bad_input([&] { make_problem(stage, std::move(tensors), scalars, "X.safetensors"); });
}

SparseMlaFwdArgs fwd_args(Shape q, Shape kv, Shape indices) {
  return std::get<SparseMlaFwdArgs>(
      make_problem(Stage::kSparseMlaFwd, fwd_tensors(q, kv, indices), {}, "X").args);
}

struct Wrong {
  Stage stage;
  const char* tensor;
  DType dtype;
  Shape shape;
  const char* says;
};

}  // namespace

TEST_CASE("problem: the sizes of every stage are read off its tensors") {
  const auto fwd =
      std::get<SparseMlaFwdArgs>(make_problem(Stage::kSparseMlaFwd, fwd_tensors(), {}, "X").args);
  CHECK(fwd.b == 1);
  CHECK(fwd.s_q == 3);
  CHECK(fwd.s_kv == 20);
  CHECK(fwd.h_q == 8);
  CHECK(fwd.topk == 16);
  CHECK(fwd.sm_scale == doctest::Approx(1 / 24.0));
  CHECK_FALSE(fwd.causal);
  CHECK_FALSE(fwd.fp8);

  const auto indexer = std::get<IndexerArgs>(make_problem(Stage::kIndexer, indexer_tensors(), {}, "X").args);
  CHECK(indexer.h_i == 64);
  CHECK(indexer.d_i == 128);
  CHECK(indexer.clean);
  CHECK(indexer.logits_stride >= 20);

  const auto topk = std::get<TopkArgs>(make_problem(Stage::kTopk, topk_tensors(), kTopk4, "X").args);
  CHECK(topk.topk == 4);
  CHECK(topk.n == 20);

  const Problem vector =
      make_problem(Stage::kQuantize, {{"x", Tensor(DType::kF32, {20})}}, {{"scale", "none"}}, "X");
  CHECK(std::get<QuantizeArgs>(vector.args).rows == 1);
  CHECK((std::get<QuantizeArgs>(vector.args).mode == ScaleMode::kNone));
  CHECK(vector.inputs.at("x").shape == Shape{1, 20});
  CHECK(vector.file_shapes.at("bytes") == Shape{20});
}

TEST_CASE("problem: axes b and g of extent 1 may be left out, each tensor on its own") {
  for (const Shape& q : {Shape{3, 8, 576}, Shape{1, 3, 8, 576}}) {
    for (const Shape& kv : {Shape{20, 576}, Shape{1, 20, 576}, Shape{20, 1, 576}, Shape{1, 20, 1, 576}}) {
      for (const Shape& indices : {Shape{3, 16}, Shape{1, 3, 16}, Shape{3, 1, 16}, Shape{1, 3, 1, 16}}) {
        const SparseMlaFwdArgs args = fwd_args(q, kv, indices);
        CHECK(args.b == 1);
        CHECK(args.g == 1);
        CHECK(args.s_q == 3);
        CHECK(args.s_kv == 20);
        CHECK(args.topk == 16);
      }
    }
  }
}

TEST_CASE("problem: groups and batches are told apart") {
  CHECK(fwd_args({3, 8, 576}, {20, 2, 576}, {3, 2, 16}).g == 2);
  CHECK(fwd_args({1, 3, 8, 576}, {20, 2, 576}, {1, 3, 2, 16}).g == 2);
  CHECK(fwd_args({3, 8, 576}, {1, 20, 2, 576}, {3, 2, 16}).s_kv == 20);
  const SparseMlaFwdArgs batches = fwd_args({5, 3, 8, 576}, {5, 20, 576}, {5, 3, 16});
  CHECK(batches.b == 5);
  CHECK(batches.g == 1);
  CHECK(fwd_args({5, 3, 8, 576}, {5, 20, 4, 576}, {5, 3, 4, 16}).g == 4);
  // One query, one KV row: whichever way it is read, the other tensor decides.
  CHECK(fwd_args({1, 8, 576}, {1, 8, 576}, {1, 16}).s_kv == 8);
  CHECK(fwd_args({1, 8, 576}, {1, 8, 576}, {1, 8, 16}).g == 8);
}

TEST_CASE("problem: shapes that contradict each other") {
  CHECK(contains(message(Stage::kSparseMlaFwd, fwd_tensors({3, 8, 576}, {20, 3, 576}, {3, 3, 16})),
                 "tensor 'kv': h_q = 8 is not a multiple of g = 3"));
  CHECK(contains(message(Stage::kSparseMlaFwd, fwd_tensors({3, 8, 576}, {20, 2, 576}, {3, 16})),
                 "do not have the same number of groups"));
  CHECK(contains(message(Stage::kSparseMlaFwd, fwd_tensors({3, 8, 576}, {20, 576}, {4, 16})),
                 "tensor 'indices': expected shape [b, s_q, g, topk] with b = 1, s_q = 3"));
  CHECK(contains(message(Stage::kSparseMlaFwd, fwd_tensors({2, 3, 8, 576}, {20, 576}, {2, 3, 16})),
                 "tensor 'kv': expected shape [b, s_kv, g, 576] with b = 2"));
  CHECK(contains(
      message(Stage::kSparseMlaFwd, fwd_tensors({3, 8, 576}, {200, 575})),
      "X.safetensors: tensor 'kv': expected shape [b, s_kv, g, 576] with b = 1 (b, and g = 1, may be left "
      "out), got [200, 575]"));
}

TEST_CASE("problem: every wrong tensor is named") {
  const std::vector<Wrong> wrong = {
      {Stage::kQuantize, "x", DType::kI32, {3, 20}, "expected BF16 or F32, got I32"},
      {Stage::kQuantize, "x", DType::kF32, {3, 20, 2}, "expected shape [rows, n] or [n]"},
      {Stage::kQuantize, "x", DType::kF32, {0, int64_t(1) << 31}, "does not fit in 32 bits"},
      {Stage::kIndexer, "q", DType::kBF16, {3, 64, 128}, "expected F8_E4M3, got BF16"},
      {Stage::kIndexer, "q", DType::kE4M3, {3, 8192}, "expected shape [s_q, h_i, d_i]"},
      {Stage::kIndexer, "q", DType::kE4M3, {3, 0, 128}, "h_i = 0, must be at least 1"},
      {Stage::kIndexer, "k", DType::kE4M3, {20, 64}, "expected shape [s_kv, d_i] = [20, 128], got [20, 64]"},
      {Stage::kIndexer, "k_scale", DType::kF32, {21}, "expected shape [s_kv] = [20], got [21]"},
      {Stage::kIndexer, "weights", DType::kF32, {64, 3}, "expected shape [s_q, h_i] = [3, 64]"},
      {Stage::kIndexer, "ke", DType::kI32, {3, 1}, "expected shape [s_q] = [3], got [3, 1]"},
      {Stage::kTopk, "logits", DType::kF32, {60}, "expected shape [rows, n]"},
      {Stage::kTopk, "logits", DType::kBF16, {3, 20}, "expected F32, got BF16"},
      {Stage::kTopk, "ks", DType::kF32, {3}, "expected I32, got F32"},
      {Stage::kSparseMlaFwd, "q", DType::kF32, {3, 8, 576}, "expected BF16 or F8_E4M3, got F32"},
      {Stage::kSparseMlaFwd, "q", DType::kBF16, {3, 8, 512}, "expected shape [b, s_q, h_q, 576]"},
      {Stage::kSparseMlaFwd, "q", DType::kBF16, {24, 576}, "expected shape [b, s_q, h_q, 576]"},
      {Stage::kSparseMlaFwd, "q", DType::kBF16, {3, 0, 576}, "h_q = 0, must be at least 1"},
      {Stage::kSparseMlaFwd, "kv", DType::kE4M3, {20, 576}, "is F8_E4M3, but q is BF16"},
      {Stage::kSparseMlaFwd, "indices", DType::kI32, {3, 0}, "topk = 0, must be at least 1"},
      {Stage::kSparseMlaFwd, "indices", DType::kF32, {3, 16}, "expected I32, got F32"},
      {Stage::kSparseMlaFwd, "topk_length", DType::kI32, {4}, "expected shape [b, s_q] = [1, 3], got [4]"},
      {Stage::kSparseMlaFwd, "attn_sink", DType::kF32, {8, 1}, "expected shape [h_q] = [8]"},
      {Stage::kSparseMlaFwd, "q_scale", DType::kF32, {3, 8}, "belongs to F8_E4M3 inputs"},
      {Stage::kSparseMlaFwd, "out", DType::kBF16, {3, 8, 512}, "is not an input of sparse_mla_fwd"},
      {Stage::kSparseMlaBwd, "q", DType::kE4M3, {3, 8, 576}, "expected BF16, got F8_E4M3"},
      {Stage::kSparseMlaBwd,
       "lse",
       DType::kF32,
       {3, 9},
       "expected shape [b, s_q, h_q] = [1, 3, 8], got [3, 9]"},
      {Stage::kSparseMlaBwd, "d_out", DType::kBF16, {3, 8, 576}, "expected shape [b, s_q, h_q, 512]"},
      {Stage::kSparseMlaBwd, "kv_scale", DType::kF32, {20}, "is not an input of sparse_mla_bwd"},
  };
  for (const Wrong& w : wrong) {
    TensorMap tensors = tensors_of(w.stage);
    tensors[w.tensor] = Tensor(w.dtype, w.shape);
    const std::string text = message(w.stage, std::move(tensors));
    CAPTURE(text);
    CAPTURE(std::string(w.says));
    CHECK(contains(text, std::string("X.safetensors: tensor '") + w.tensor + "': "));
    CHECK(contains(text, w.says));
  }
}

TEST_CASE("problem: every missing tensor is named") {
  for (Stage stage : kStages) {
    for (const auto& [name, tensor] : tensors_of(stage)) {
      TensorMap tensors = tensors_of(stage);
      tensors.erase(name);
      CHECK(contains(message(stage, std::move(tensors)), "X.safetensors: tensor '" + name + "' is missing"));
    }
    CHECK(message(stage, tensors_of(stage)).empty());
  }
}

TEST_CASE("problem: results in a file are not inputs, other tensors are an error") {
  TensorMap tensors = fwd_tensors();
  tensors["want_out"] = tensors["unquantized_out"] = Tensor(DType::kF32, {1});
  CHECK(message(Stage::kSparseMlaFwd, tensors).empty());
  tensors["Q"] = Tensor(DType::kF32, {1});
  CHECK(contains(message(Stage::kSparseMlaFwd, tensors), "tensor 'Q': is not an input"));
}

TEST_CASE("problem: scalars are read strictly") {
  const auto scalar = [](Stage stage, const char* name, const char* value) {
    Scalars scalars = stage == Stage::kTopk || stage == Stage::kIndexTopk ? kTopk4 : Scalars{};
    scalars[name] = value;
    return message(stage, tensors_of(stage), scalars);
  };
  struct Text {
    Stage stage;
    const char* name;
    std::vector<const char*> good, bad;
  };
  const Stage fwd = Stage::kSparseMlaFwd;
  const std::vector<Text> texts = {
      {fwd,
       "sm_scale",
       {"1", "0.5", "1e-3"},
       {"", "0", "-1", "nan", "inf", "1e60", "1e-60", "1x", " 1", "0,5"}},
      {fwd, "causal", {"0", "1", "true", "false"}, {"", "2", "yes", "True", "-1"}},
      {fwd, "q_start", {"0", "37", "-5"}, {"", "1.5", "0x10", "9223372036854775807", "99999999999999999999"}},
      {fwd, "kv_stride", {"1", "4"}, {"0", "-1", "", "four"}},
      {Stage::kTopk, "topk", {"1", "2048"}, {"0", "-1", "2147483648", "", "4.0", "+4"}},
      {Stage::kTopk, "deterministic", {"0", "true"}, {"maybe"}},
      {Stage::kIndexTopk, "topk", {"1", "2048"}, {"0", "-1", "2147483648", "", "4.0", "+4"}},
      {Stage::kIndexer, "clean", {"0", "true"}, {"2"}},
      {Stage::kQuantize, "scale", {"row", "row_pow2", "none"}, {"", "Row", "column"}},
  };
  for (const Text& text : texts) {
    for (const char* value : text.good)
      CHECK_MESSAGE(scalar(text.stage, text.name, value).empty(), text.name, "=", value);
    for (const char* value : text.bad) {
      const std::string says = scalar(text.stage, text.name, value);
      CHECK_MESSAGE(contains(says, std::string("X.safetensors: scalar '") + text.name + "'"), text.name, "=",
                    value);
      CHECK_MESSAGE(contains(says, std::string("'") + value + "'"), says);
    }
  }
  CHECK(contains(message(Stage::kTopk, topk_tensors(), {}), "scalar 'topk': is missing"));
  CHECK(message(fwd, fwd_tensors(), {{"format", "pt"}, {"topk", "nonsense of another stage"}}).empty());
}

TEST_CASE("problem: FP8 scales are optional and shaped like rows") {
  TensorMap tensors = fp8_tensors();
  CHECK(message(Stage::kSparseMlaFwd, tensors).empty());
  tensors["q_scale"] = Tensor(DType::kF32, {3, 8});
  tensors["kv_scale"] = Tensor(DType::kF32, {20});
  CHECK(message(Stage::kSparseMlaFwd, tensors).empty());
  tensors["kv_scale"] = Tensor(DType::kF32, {21});
  CHECK(contains(message(Stage::kSparseMlaFwd, tensors),
                 "tensor 'kv_scale': expected shape [b, s_kv, g] = [1, 20, 1]"));
}

TEST_CASE("problem: empty problems are legal") {
  CHECK(fwd_args({0, 8, 576}, {20, 576}, {0, 16}).s_q == 0);
  CHECK(fwd_args({3, 8, 576}, {0, 576}, {3, 16}).s_kv == 0);
  TensorMap topk;
  topk["logits"] = Tensor(DType::kF32, {3, 0});
  topk["ks"] = topk["ke"] = Tensor(DType::kI32, {3});
  CHECK(message(Stage::kTopk, topk).empty());
}

TEST_CASE("problem: the stage of a file") {
  for (Stage stage : kStages) {
    if (stage == Stage::kIndexTopk) continue;   // has the indexer's tensors, and no files with results
    CHECK((detect_stage(tensors_of(stage), "X") == stage));
  }
  CHECK(contains(bad_input([] {
                   detect_stage({{"foo", Tensor()}}, "X.safetensors");
                 }),
                 "X.safetensors: its tensors fit no stage"));
}

TEST_CASE("problem: output shapes follow the file's") {
  const Problem without = make_problem(Stage::kSparseMlaBwd, bwd_tensors(), {}, "X");
  CHECK(without.file_shapes.at("dq") == Shape{3, 8, 576});
  CHECK(without.file_shapes.at("dkv") == Shape{20, 576});
  CHECK(without.file_shapes.at("delta") == Shape{3, 8});
  CHECK(without.inputs.at("kv").shape == Shape{1, 20, 1, 576});
  CHECK(describe(without.args) == "sparse_mla_bwd b=1 s_q=3 s_kv=20 h_q=8 topk=16 bf16");
}

TEST_CASE("problem: the table of pointers names every tensor once and reaches every pointer") {
  for (Stage stage : kStages) {
    Problem problem = make_problem(stage, tensors_of(stage), kTopk4, "X");
    std::map<std::pair<std::string, DType>, int> seen;
    std::map<void*, int> pointers;
    for (const Binding& binding : bindings(problem.args)) {
      ++seen[{binding.name, binding.dtype}];
      ++pointers[static_cast<void*>(binding.pointer)];
      set_pointer(binding, &seen);
    }
    for (const auto& [name, count] : seen) CHECK(count == 1);
    for (const auto& [pointer, count] : pointers) CHECK(count == 1);
  }
}
