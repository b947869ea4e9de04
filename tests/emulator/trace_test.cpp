/// What the emulator records of a kernel on its modelled clock, and the drawing made of it; with the kernel of
/// tests/probe/hopper_path.cuh, which has every mechanism of a Hopper pipeline.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/device/emulator/memory.hpp"
#include "cuda/harness/explain.hpp"
#include "cuda/harness/roles.hpp"
#include "cuda/harness/tensor.hpp"
#include "cuda/harness/timeline.hpp"
#include "tests/probe/hopper_path.cuh"

using namespace dsa;
using namespace dsa::probe;
using emulator::Span;
using emulator::Trace;
using harness::Role;

namespace {

constexpr int kBankRows = 300;
constexpr int kTiles = 8;
constexpr uint64_t kRowBytes = kColumns * sizeof(bf16);

/// As cudaMalloc aligns it, so that a row is whole sectors.
template <class T> struct alignas(256) Aligned {
  std::vector<std::byte> bytes;
  T* data;
  explicit Aligned(std::size_t n)
      : bytes(n * sizeof(T) + 256), data(reinterpret_cast<T*>((uintptr_t(bytes.data()) + 255) / 256 * 256)) {}
};

struct Inputs {
  Aligned<bf16> q{kRows * kColumns}, k{kBankRows * kColumns};
  Aligned<int32_t> indices{kTiles * kRows};
  Aligned<float> out{kRows * kColumns};
  uint64_t valid = 0, distinct = 0;       // rows gathered, and different ones among them

  Inputs() {
    for (int i = 0; i < kRows * kColumns; ++i) q.data[i] = to_bf16(float(i % 3 - 1));
    for (int i = 0; i < kBankRows * kColumns; ++i) k.data[i] = to_bf16(float(i % 5 - 2));
    std::set<int> rows;
    for (int i = 0; i < kTiles * kRows; ++i) {
      const int row = i % 7 == 3 ? -1 : i * 37 % 250;
      indices.data[i] = row;
      if (row < 0) continue;
      ++valid;
      rows.insert(row);
    }
    distinct = rows.size();
  }
  HopperPathArgs args() { return {q.data, k.data, indices.data, out.data, kBankRows, kTiles}; }
};

Trace trace_of_path(Inputs& in) {
  emulator::set_schedule({});
  emulator::start_trace();
  const cudaError_t error = launch_hopper_path<Break::kNothing>(in.args());
  std::vector<Trace> traces = emulator::take_traces();
  REQUIRE(error == cudaSuccess);
  REQUIRE(traces.size() == 1);
  return std::move(traces[0]);
}

const Trace& path() {
  static const Trace trace = [] {
    Inputs in;
    return trace_of_path(in);
  }();
  return trace;
}

std::vector<Span> spans_of(const Trace& trace, Span::Kind kind, int warp = -1) {
  std::vector<Span> found;
  for (const Span& span : trace.spans)
    if (span.kind == kind && (warp < 0 || span.warp == std::size_t(warp))) found.push_back(span);
  std::sort(found.begin(), found.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  return found;
}

bool disjoint(const std::vector<Span>& spans) {
  for (std::size_t i = 1; i < spans.size(); ++i)
    if (spans[i].begin < spans[i - 1].end) return false;
  return true;
}

/// What is wrong with the tags of a document, or "".
std::string ill_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = 0; (at = xml.find('<', at)) != std::string::npos;) {
    const std::size_t end = xml.find('>', at);
    if (end == std::string::npos) return "an unfinished tag";
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos || std::count(tag.begin(), tag.end(), '"') % 2) return "bad tag " + tag;
    const std::string name = tag.substr(tag[0] == '/', tag.find_first_of(" /", 1) - (tag[0] == '/'));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "unexpected " + tag;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end;
  }
  return open.empty() ? "" : "not closed: " + open.back();
}

void empty_kernel() {}
void two_barriers() {
  __syncthreads();
  if (threadIdx.x < 32) trace_step("alone", 100);
  __syncthreads();
}

}  // namespace

TEST_CASE("trace: what one engine or one warp does comes one after the other, and inside the block's time") {
  const Trace& trace = path();
  CHECK(disjoint(spans_of(trace, Span::Kind::kCopy)));
  CHECK(disjoint(spans_of(trace, Span::Kind::kProduct)));
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    CHECK(disjoint(spans_of(trace, Span::Kind::kStep, warp)));
    CHECK(disjoint(spans_of(trace, Span::Kind::kWait, warp)));
  }
  CHECK(std::all_of(trace.spans.begin(), trace.spans.end(),
                    [&](const Span& span) { return span.begin < span.end && span.end <= trace.end; }));
  CHECK(trace.grid.x == 1);
  CHECK(trace.block.x == kThreads);
  CHECK(trace.shared_bytes == sizeof(HopperPathStorage));
}

TEST_CASE("trace: the pipeline shows") {
  const Trace& trace = path();
  const auto waits = spans_of(trace, Span::Kind::kWait, 0);
  const auto waits_for = [&](const std::string& what) {
    return std::any_of(waits.begin(), waits.end(), [&](const Span& wait) { return harness::waited_for(wait) == what; });
  };
  CHECK(waits_for("s.empty[0]"));          // the ring is full: the producer is ahead
  CHECK(waits_for("s.empty[1]"));
  CHECK(waits_for("s.indices_full"));
  for (const Span& product : spans_of(trace, Span::Kind::kProduct)) {
    const bool left = product.step == "[C1] scores" || product.step == "[C3] left half";
    CHECK((left ? product.warp / 4 == 1 : product.warp / 4 == 2 && product.step == "[R1] right half"));
    CHECK(product.end - product.begin == emulator::Model::product(64));
  }
}

TEST_CASE("trace: flop and bytes are those of the kernel, to the last one") {
  Inputs in;
  emulator::count_memory(true);
  const Trace trace = trace_of_path(in);
  const emulator::MemoryCounts counts = emulator::memory_counts();
  emulator::count_memory(false);

  constexpr uint64_t kQBytes = kRows * kRowBytes, kListBytes = kTiles * kRows * sizeof(int32_t);
  CHECK(trace.wgmma_flop == uint64_t(kTiles) * 16 * 2 * 64 * 64 * 16);   // 8 products of scores, 4 of each half
  CHECK(trace.copied.at("cp.async") == kQBytes + in.valid * kRowBytes);
  CHECK(trace.copied.at("cp.async.bulk") == kListBytes + kRows * 64 * sizeof(float));
  CHECK(counts.global_read == kQBytes + kListBytes + in.valid * kRowBytes);
  CHECK(counts.global_read_distinct == kQBytes + kListBytes + in.distinct * kRowBytes);
  CHECK(in.distinct < in.valid);
}

TEST_CASE("roles: named by the kernel, and their times add up") {
  const Trace& trace = path();
  const std::vector<Role> roles = harness::roles_of(trace);
  REQUIRE(roles.size() == 3);
  CHECK(roles[0].name == "producer");
  CHECK(roles[1].name == "left consumer");
  CHECK(harness::warps_text(roles[1]) == "warps 4-7");
  for (const Role& role : roles) {
    const harness::RoleTimes times = harness::times_of(trace, role);
    uint64_t sum = times.rest;
    for (const auto* parts : {&times.steps, &times.waits})
      for (const harness::Part& part : *parts) sum += part.clocks;
    CHECK(sum == trace.end);
  }
  CHECK(harness::busy_clocks(trace, Span::Kind::kProduct) == uint64_t(kTiles) * 16 * 32);
}

TEST_CASE("roles: warpgroups and warps where the kernel names none") {
  Trace trace;
  trace.roles = {"", "", "", "", "loader", "", "", "", "", ""};
  std::vector<std::string> names;
  for (const Role& role : harness::roles_of(trace)) names.push_back(role.name + ": " + harness::warps_text(role));
  CHECK(names == std::vector<std::string>{"warpgroup 0: warps 0-3", "loader: warp 4", "warp 5: warp 5",
                                          "warp 6: warp 6", "warp 7: warp 7", "warp 8: warp 8",
                                          "warp 9: warp 9"});
  trace.roles = {"a", "b", "a", "a", "b"};
  CHECK(harness::warps_text(harness::roles_of(trace)[0]) == "warps 0, 2-3");
}

TEST_CASE("trace: one for each launch, and none without start_trace") {
  emulator::set_schedule({});
  CHECK(emulator::take_traces().empty());
  CHECK(launch(two_barriers, {dim3(1), dim3(64)}) == cudaSuccess);
  emulator::start_trace();
  CHECK(launch(empty_kernel, {dim3(2, 3), dim3(40), 512}) == cudaSuccess);
  CHECK(launch(two_barriers, {dim3(4), dim3(64)}) == cudaSuccess);
  const std::vector<Trace> traces = emulator::take_traces();
  REQUIRE(traces.size() == 2);
  CHECK(traces[0].spans.empty());
  CHECK(traces[0].grid.y == 3);
  CHECK(traces[0].roles.size() == 2);
  const auto waits = spans_of(traces[1], Span::Kind::kWait, 1);
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].label == "__syncthreads");
  CHECK(waits[0].end - waits[0].begin >= 100);
}

TEST_CASE("timeline: well-formed, small, the same every time, and only of the clocks asked for") {
  Inputs in;
  const Trace again = trace_of_path(in);
  const std::string svg = harness::timeline_svg(path(), {"a < b & \"c\""});
  CHECK(svg == harness::timeline_svg(again, {"a < b & \"c\""}));
  CHECK(ill_formed(svg) == "");
  CHECK(svg.size() < 100000);
  CHECK(svg.find("a &lt; b &amp; &quot;c&quot;") != std::string::npos);
  for (const char* words : {"[P1] gather", "waits for s.empty[1]", "right consumer", "tensor cores", "wgmma"})
    CHECK_MESSAGE(svg.find(words) != std::string::npos, words);

  const std::string start = harness::timeline_svg(path(), {"", 0, 500});
  CHECK(ill_formed(start) == "");
  CHECK(start.find("load Q") != std::string::npos);
  CHECK(start.find("[R1]") == std::string::npos);
  CHECK_THROWS_AS(harness::timeline_svg(path(), {"", 500, 500}), harness::BadInput);
  CHECK_THROWS_AS(harness::timeline_svg(path(), {"", path().end, path().end + 10}), harness::BadInput);
}

TEST_CASE("explanation: the text and the JSON say the same") {
  harness::Explanation e;
  e.stage = "tests", e.step = "hopper_path", e.case_name = "eight tiles", e.problem = "64 x 128";
  e.memory.global_read = 3000000, e.memory.global_read_distinct = 1000000;
  e.memory.shared_wavefronts = 30, e.memory.shared_wavefronts_ideal = 10;
  e.conflicts = {{"03_slow.cu:12 (store)", 30, 10}};
  e.launches = {path()};
  const std::string text = harness::explanation_text(e);
  const nlohmann::ordered_json json = harness::explanation_json(e);
  CAPTURE(text);
  for (const char* words :
       {"3,000,000", "read 3.0 times", "the factor is 3.00", "3.0 ways", "03_slow.cu:12 (store)",
        "[P1] gather", "waits for s.empty[1]", "wgmma", "cp.async.bulk", "384 threads", "not a measurement"})
    CHECK_MESSAGE(text.find(words) != std::string::npos, words);
  CHECK(json["global_memory"]["read_distinct_bytes"] == 1000000);
  CHECK(json["shared_memory"]["bank_conflicts"][0]["wavefronts"] == 30);
  CHECK(json["wgmma_flop"] == path().wgmma_flop);
  CHECK(json["copied_bytes"]["cp.async"] == path().copied.at("cp.async"));
  CHECK(json["launches"][0]["modelled_clocks"] == path().end);
  CHECK(json["launches"][0]["roles"][0]["name"] == "producer");
  CHECK(json["launches"][0]["roles"][0]["steps"].size() == 2);   // load Q, gather

  e.plain_accesses_counted = false;
  e.launches[0].spans.clear();
  const std::string less = harness::explanation_text(e);
  CHECK(less.find("has a sanitizer") != std::string::npos);
  CHECK(less.find("nothing for the modelled clock") != std::string::npos);
  CHECK(e.longest() == nullptr);
}

/// DSA_UPDATE_FIGURES=1 emulator_tests --test-case="figure*" writes it anew.
TEST_CASE("figure: docs/figures/hopper_path_timeline.svg is what the emulator draws") {
  const std::string file = std::string(DSA_SOURCE_DIR) + "/docs/figures/hopper_path_timeline.svg";
  const std::string svg = harness::timeline_svg(
      path(), {"A pipeline in its steady state (tests/probe/hopper_path.cuh)", 3600, 6100});
  if (std::getenv("DSA_UPDATE_FIGURES")) std::ofstream(file, std::ios::binary) << svg;
  std::stringstream committed;
  committed << std::ifstream(file, std::ios::binary).rdbuf();
  CHECK(committed.str() == svg);
}
