// The pipeline, with the reference in the place of kernels: emulator memory is host memory.
#include <doctest/doctest.h>

#include "bench/pipeline_run.hpp"
#include "reference/indexer.hpp"
#include "reference/quantize.hpp"
#include "reference/sparse_mla_bwd.hpp"
#include "reference/sparse_mla_fwd.hpp"
#include "reference/topk.hpp"

using namespace dsa;
using namespace dsa::bench;
using harness::Status;

namespace {

const char* supports_all(const Args&) {
  return nullptr;
}
const char* supports_none(const Args&) {
  return "it never does";
}

template <class A, void (*compute)(const A&)>
int launch(const Args& args, void*) {
  compute(std::get<A>(args));
  return 0;
}

int select_nothing(const Args& args, void*) {
  const TopkArgs& a = std::get<TopkArgs>(args);
  std::fill_n(a.indices, int64_t(a.rows) * a.topk, kInvalid);
  return 0;
}
int leave_outputs_alone(const Args&, void*) {
  return 0;
}
int fail_to_launch(const Args&, void*) {
  return 1;
}

using Unsupported = const char* (*)(const Args&);
using Launch = int (*)(const Args&, void*);
bool add(Stage stage, const char* name, Accuracy accuracy, Unsupported unsupported, Launch launch) {
  register_rung({stage, Device::kEmulator, name, "", accuracy, true, "", unsupported, launch});
  return true;
}

// "00_..." stand before the right ones, so that they run only when named.
const bool registered[] = {
    add(Stage::kQuantize, "01_reference", Accuracy::kExact, supports_all,
        launch<QuantizeArgs, reference::quantize>),
    add(Stage::kIndexer, "01_reference", Accuracy::kF32, supports_all,
        launch<IndexerArgs, reference::indexer>),
    add(Stage::kIndexer, "02_unable", Accuracy::kF32, supports_none, leave_outputs_alone),
    add(Stage::kTopk, "00_nothing", Accuracy::kExact, supports_all, select_nothing),
    add(Stage::kTopk, "01_reference", Accuracy::kExact, supports_all, launch<TopkArgs, reference::topk>),
    add(Stage::kSparseMlaFwd, "00_lazy", Accuracy::kF32, supports_all, leave_outputs_alone),
    add(Stage::kSparseMlaFwd, "01_reference", Accuracy::kF32, supports_all,
        launch<SparseMlaFwdArgs, reference::sparse_mla_fwd>),
    add(Stage::kSparseMlaBwd, "00_crash", Accuracy::kF32, supports_all, fail_to_launch),
    add(Stage::kSparseMlaBwd, "01_reference", Accuracy::kF32, supports_all,
        launch<SparseMlaBwdArgs, reference::sparse_mla_bwd>)};

PipelineOptions small_options(Device device = Device::kEmulator) {
  PipelineOptions options;
  options.device = device;
  options.sizes = {3, 20, 2, 4, 32, 8};
  return options;
}

std::vector<PipelineLine> run(const PipelineOptions& options) {
  Pipeline pipeline(options);
  pipeline.run();
  return pipeline.lines();
}

}  // namespace

TEST_CASE("all stages pass, in order, on the emulator and on the cpu") {
  for (Device device : {Device::kEmulator, Device::kCpu}) {
    const std::vector<PipelineLine> lines = run(small_options(device));
    REQUIRE(lines.size() == 6);
    const char* labels[] = {"quantize q", "quantize k",     "indexer",
                            "topk",       "sparse_mla_fwd", "sparse_mla_bwd"};
    for (std::size_t i = 0; i < 6; ++i) {
      CAPTURE(lines[i].check.message);
      CHECK(lines[i].label == labels[i]);
      CHECK(lines[i].check.status == Status::kPassed);
      CHECK(lines[i].rung == (device == Device::kCpu ? "reference" : "01_reference"));
    }
    CHECK(lines[2].work.amount == 2.0 * 4 * 32 * (18 + 19 + 20));  // causal windows
    CHECK(lines[4].work.valid_amount == lines[4].work.amount);     // 8 rows were there to select
  }
}

TEST_CASE("a stage reads what the stage before it really wrote") {
  PipelineOptions options = small_options();
  options.steps[Stage::kTopk] = "00_nothing";
  const std::vector<PipelineLine> lines = run(options);
  REQUIRE(lines.size() == 6);
  CHECK(lines[3].check.status == Status::kIncorrect);
  CHECK(lines[4].work.valid_amount == 0);           // all slots are -1 now
  CHECK(lines[4].check.status == Status::kPassed);  // which the forward handles rightly
  CHECK(lines[5].check.status == Status::kPassed);
}

TEST_CASE("a rung that writes nothing is incorrect, and the stages after it still run") {
  PipelineOptions options = small_options();
  options.steps[Stage::kSparseMlaFwd] = "00_lazy";
  const std::vector<PipelineLine> lines = run(options);
  REQUIRE(lines.size() == 6);
  CHECK(lines[4].check.status == Status::kIncorrect);
}

TEST_CASE("--all runs every rung, the chosen one last, until one crashes") {
  PipelineOptions options = small_options();
  options.all = true;
  options.steps[Stage::kSparseMlaFwd] = "00_lazy";
  std::vector<std::string> order;
  for (const PipelineLine& line : run(options)) {
    order.push_back(line.label + "." + line.rung + " " + harness::status_name(line.check.status) +
                    (line.feeds_next ? "" : " aside"));
  }
  // The lazy one finds the right outputs of the rung before it in its buffers, but poisoned.
  CHECK(order == std::vector<std::string>{
                     "quantize q.01_reference PASSED", "quantize k.01_reference PASSED",
                     "indexer.01_reference PASSED", "topk.00_nothing INCORRECT aside",
                     "topk.01_reference PASSED", "sparse_mla_fwd.01_reference PASSED aside",
                     "sparse_mla_fwd.00_lazy INCORRECT", "sparse_mla_bwd.00_crash RUNTIME_ERROR aside"});
}

TEST_CASE("indexer weights carry the scale of their own q row") {
  const PipelineSizes sizes{2, 20, 2, 3, 32, 8};
  PipelineData data(nullptr);
  data.make_inputs(sizes);
  const std::vector<PipelineStep> steps = pipeline_steps(sizes);
  const auto weights_with = [&](float last_scale) {
    harness::Tensor scale(harness::DType::kF32, {2 * 3});
    std::fill_n(scale.data<float>(), 6, 1.0f);
    scale.data<float>()[5] = last_scale;
    data.keep(steps[0], {{"scale", scale}});
    data.make_index_weights(sizes);
    return data.problem(steps[2]).inputs.at("weights");
  };
  const harness::Tensor plain = weights_with(1), scaled = weights_with(4);
  REQUIRE(plain.shape == std::vector<int64_t>{2, 3});
  for (int64_t i = 0; i < 5; ++i) CHECK(scaled.at(i) == plain.at(i));
  CHECK(scaled.at(5) == 4 * plain.at(5));
}

TEST_CASE("rungs that do not exist or cannot do it") {
  PipelineOptions options = small_options();
  options.steps[Stage::kIndexer] = "07_absent";
  CHECK_THROWS_WITH_AS(run(options), doctest::Contains("no step '07_absent'"), harness::BadInput);
  options.steps[Stage::kIndexer] = "02_unable";
  CHECK_THROWS_WITH_AS(run(options), doctest::Contains("it never does"), NoSuchStep);
}

TEST_CASE("results carry the counts and the failures") {
  PipelineOptions options = small_options();
  options.steps[Stage::kTopk] = "00_nothing";
  Pipeline pipeline(options);
  pipeline.run();
  const Results results = pipeline.results();
  CHECK(results.context.at("device") == "emulator");
  const std::string sizes = "/s_q:3/s_kv:20/h_q:2/h_i:4/d_i:32/topk:8";
  const ResultRow* forward = results.find("pipeline/sparse_mla_fwd.01_reference" + sizes);
  REQUIRE(forward != nullptr);
  CHECK(forward->counter("flop").value() == 2.0 * 3 * 2 * 8 * 1088);
  const ResultRow* topk = results.find("pipeline/topk.00_nothing" + sizes);
  REQUIRE(topk != nullptr);
  CHECK_FALSE(topk->error.empty());
}
