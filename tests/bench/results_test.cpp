// Names and files of measurements.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "bench/results.hpp"
#include "cuda/harness/tensor.hpp"

using namespace dsa::bench;
using dsa::harness::BadInput;

namespace {

/// A file that is gone when the test is.
struct TemporaryFile {
  std::filesystem::path path = std::filesystem::temp_directory_path() / "dsa_results_test.json";
  ~TemporaryFile() { std::filesystem::remove(path); }
  void write(const std::string& content) const { std::ofstream(path) << content; }
};

Timing timing_of(double seconds) {
  return summarize(std::vector<double>(10, seconds), 1);
}

}  // namespace

TEST_CASE("the format of a name") {
  const ResultName parts{"sparse_mla_fwd", "05_seesaw", "s_q:4096/s_kv:8192/h_q:128/topk:2048", "sustained",
                         false};
  const std::string name = "sparse_mla_fwd/05_seesaw/s_q:4096/s_kv:8192/h_q:128/topk:2048/regime:sustained";
  CHECK(result_name(parts) == name);
  ResultName warm = parts;
  warm.warm = true;
  CHECK(result_name(warm) == name + "/warm:1");

  const auto parsed = parse_result_name(name + "/warm:1/iterations:1/manual_time");
  REQUIRE(parsed.has_value());
  CHECK(parsed->stage == "sparse_mla_fwd");
  CHECK(parsed->rung == "05_seesaw");
  CHECK(parsed->case_name == parts.case_name);
  CHECK(parsed->regime == "sustained");
  CHECK(parsed->warm);
  CHECK_FALSE(parse_result_name("alone").has_value());
}

TEST_CASE("the names of the yardsticks") {
  CHECK(yardstick_name(YardstickKind::kCublasBf16) == "cublaslt_bf16/m:8192/n:8192/k:8192");
  CHECK(yardstick_name(YardstickKind::kCublasFp8) == "cublaslt_fp8/m:8192/n:8192/k:8192");
  CHECK(yardstick_name(YardstickKind::kCopy) == "copy/bytes:2147483648");
}

TEST_CASE("stages are known by name") {
  CHECK(stage_by_name("topk") == dsa::Stage::kTopk);
  CHECK_THROWS_WITH_AS(stage_by_name("top_k"), doctest::Contains("unknown stage 'top_k'"), BadInput);
}

TEST_CASE("a row's rate and ratio come from the median") {
  const ResultRow row =
      make_row("topk/01_naive", {Unit::kBytes, 4e9, 4e9}, summarize({2e-3, 2e-3, 90e-3}, 1), 4e12);
  CHECK(row.counter("bytes_per_s").value() == doctest::Approx(2e12));
  CHECK(row.counter("yardstick_ratio").value() == doctest::Approx(0.5));
  CHECK(row.counter("bytes").value() == 4e9);
  CHECK_FALSE(row.counter("flop_per_s").has_value());
  CHECK_FALSE(row.counter("flop_valid").has_value());
  CHECK_FALSE(row.counter("sm_clock_mhz").has_value());

  const ResultRow half = make_row("sparse_mla_fwd/01_naive", {Unit::kFlop, 1e12, 5e11}, timing_of(1), {});
  CHECK(half.counter("flop_per_s").value() == doctest::Approx(1e12));
  CHECK(half.counter("flop_valid_per_s").value() == doctest::Approx(5e11));
  CHECK_FALSE(half.counter("yardstick_ratio").has_value());
}

TEST_CASE("what is written is what is read") {
  const TemporaryFile file;
  Results results;
  results.context = {{"gpu", "NVIDIA H200"}, {"date", "2026-01-31T12:00:00+00:00"}};
  results.put(
      make_row("topk/01_naive/rows:1/n:2/topk:1/regime:burst", {Unit::kBytes, 8, 8}, timing_of(2e-6), 1e12));
  ResultRow failed;
  failed.name = "topk/02_fast/rows:1/n:2/topk:1/regime:burst";
  failed.error = "INCORRECT before timing: \"quoted\"";
  results.put(failed);
  write_results(file.path, results);

  const Results read = read_results(file.path);
  CHECK(read.context == results.context);
  REQUIRE(read.rows.size() == 2);
  CHECK(read.rows[0].name == results.rows[0].name);
  CHECK(read.rows[0].mean_s == doctest::Approx(2e-6));
  CHECK(read.rows[0].iterations == 10);
  CHECK(read.rows[0].counters == results.rows[0].counters);
  CHECK(read.rows[1].error == failed.error);
}

TEST_CASE("a later row replaces an earlier one of its name, in place") {
  Results results;
  for (const char* name : {"a/1", "b/1", "a/1"}) {
    ResultRow row;
    row.name = name;
    row.mean_s = double(results.rows.size() + 1);
    results.put(row);
  }
  REQUIRE(results.rows.size() == 2);
  CHECK(results.rows[0].name == "a/1");
  CHECK(results.rows[0].mean_s == 3);
  CHECK(results.find("b/1") == &results.rows[1]);
  CHECK(results.find("c/1") == nullptr);
}

TEST_CASE("Google Benchmark's own output is read too") {
  const TemporaryFile file;
  file.write(R"({"context": {"num_cpus": 2, "gpu": "X"}, "benchmarks": [
    {"name": "topk/01_naive/n:2/regime:burst/iterations:1/manual_time", "run_type": "iteration",
     "iterations": 10, "real_time": 1500.0, "cpu_time": 1.0, "time_unit": "us", "bytes_per_s": 2e9},
    {"name": "topk/01_naive/n:2/regime:burst_mean", "run_type": "aggregate", "real_time": 1,
     "time_unit": "us"}]})");
  const Results results = read_results(file.path);
  REQUIRE(results.rows.size() == 1);
  CHECK(results.rows[0].mean_s == doctest::Approx(1.5e-3));
  CHECK(results.rows[0].counters.size() == 1);
  CHECK(results.context.at("num_cpus") == "2");
}

TEST_CASE("bad files are refused by name") {
  const TemporaryFile file;
  CHECK_THROWS_WITH_AS(read_results(file.path), doctest::Contains("dsa_results_test.json"), BadInput);
  file.write("{\"benchmarks\": [");
  CHECK_THROWS_AS(read_results(file.path), BadInput);
  file.write(R"({"context": {}, "benchmarks": [{"name": "a/b", "real_time": 1, "time_unit": "weeks"}]})");
  CHECK_THROWS_WITH_AS(read_results(file.path), doctest::Contains("weeks"), BadInput);
  CHECK_THROWS_AS(write_results("/nonexistent/folder/x.json", {}), BadInput);
}
