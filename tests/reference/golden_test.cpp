// The golden files: small problems whose results were computed in float64 by PyTorch.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>

#include "brute_force.hpp"
#include "cuda/harness/tensor.hpp"
#include "reference/indexer.hpp"
#include "reference/load.hpp"
#include "reference/quantize.hpp"
#include "reference/sparse_mla_bwd.hpp"
#include "reference/sparse_mla_fwd.hpp"
#include "reference/topk.hpp"

using namespace dsa;
using harness::DType;
using harness::Tensor;
using harness::TensorFile;

namespace {

/// All golden files of a stage. The list is read from the folder, so that a new file is tested without an
/// edit.
std::vector<std::string> golden_files(const std::string& stage, std::size_t at_least) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(DSA_SOURCE_DIR "/tests/golden")) {
    if (entry.path().filename().string().starts_with(stage)) names.push_back(entry.path().string());
  }
  std::sort(names.begin(), names.end());
  REQUIRE(names.size() >= at_least);
  return names;
}

template <class T>
const T* optional(const TensorFile& file, const std::string& name) {
  const auto found = file.tensors.find(name);
  return found == file.tensors.end() ? nullptr : found->second.data<T>();
}

std::vector<double> doubles(const Tensor& tensor) {
  std::vector<double> values;
  for (int64_t i = 0; i < tensor.elements(); ++i) values.push_back(tensor.at(i));
  return values;
}

std::vector<double> row_of(const Tensor& tensor, int64_t row, int64_t width) {
  std::vector<double> values;
  for (int64_t i = 0; i < width; ++i) values.push_back(tensor.at(row * width + i));
  return values;
}

template <class Args>
Args sparse_mla_args(const TensorFile& file) {
  Args args;
  const Tensor& q = file.tensors.at("q");
  args.s_q = int(q.shape[0]);
  args.h_q = int(q.shape[1]);
  args.s_kv = int(file.tensors.at("kv").shape[0]);
  args.topk = int(file.tensors.at("indices").shape[1]);
  args.sm_scale = std::stof(file.metadata.at("sm_scale"));
  args.causal = file.metadata.at("causal") == "1";
  args.q_start = std::stoll(file.metadata.at("q_start"));
  args.kv_stride = std::stoll(file.metadata.at("kv_stride"));
  args.indices = file.tensors.at("indices").data<int32_t>();
  args.topk_length = optional<int32_t>(file, "topk_length");
  args.attn_sink = optional<float>(file, "attn_sink");
  return args;
}

}  // namespace

TEST_CASE("golden: quantize") {
  const TensorFile file = harness::read_safetensors(golden_files("quantize", 1)[0]);
  const Tensor& table = file.tensors.at("want_decode_table");
  for (int code = 0; code < 256; ++code) {
    CAPTURE(code);
    const double want = table.at(code), got = reference::decode(e4m3{uint8_t(code)});
    CHECK((std::isnan(want) ? std::isnan(got) : got == want));
  }
  const Tensor& x = file.tensors.at("x");
  const e4m3* saturated = file.tensors.at("want_saturated").data<e4m3>();
  for (int64_t i = 0; i < x.elements(); ++i) {
    CAPTURE(x.at(i));
    const e4m3 got = to_e4m3(float(x.at(i)));
    if (std::isnan(x.at(i))) {
      CHECK((got.bits & 0x7f) == 0x7f);
    } else {
      CHECK(int(got.bits) == int(saturated[i].bits));
    }
  }
  const Tensor& rows = file.tensors.at("rows");
  for (const bool pow2 : {false, true}) {
    CAPTURE(pow2);
    QuantizeArgs args;
    args.rows = rows.shape[0];
    args.n = int(rows.shape[1]);
    args.mode = pow2 ? ScaleMode::kRowPow2 : ScaleMode::kRow;
    args.x_bf16 = rows.data<bf16>();
    std::vector<e4m3> bytes(rows.elements());
    std::vector<float> scale(args.rows);
    args.bytes = bytes.data();
    args.scale = scale.data();
    reference::quantize(args);
    const e4m3* want = file.tensors.at(pow2 ? "want_bytes_pow2" : "want_bytes").data<e4m3>();
    const Tensor& want_scale = file.tensors.at(pow2 ? "want_scale_pow2" : "want_scale");
    int wrong = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) wrong += bytes[i].bits != want[i].bits;
    CHECK(wrong == 0);
    for (int64_t i = 0; i < args.rows; ++i) CHECK(double(scale[i]) == want_scale.at(i));
  }
}

TEST_CASE("golden: indexer") {
  for (const std::string& name : golden_files("indexer", 3)) {
    CAPTURE(name);
    const TensorFile file = harness::read_safetensors(name);
    IndexerArgs args;
    const Tensor& q = file.tensors.at("q");
    args.s_q = int(q.shape[0]);
    args.h_i = int(q.shape[1]);
    args.d_i = int(q.shape[2]);
    args.s_kv = int(file.tensors.at("k").shape[0]);
    args.logits_stride = args.s_kv;
    args.q = q.data<e4m3>();
    args.k = file.tensors.at("k").data<e4m3>();
    args.k_scale = file.tensors.at("k_scale").data<float>();
    args.weights = file.tensors.at("weights").data<float>();
    args.ks = file.tensors.at("ks").data<int32_t>();
    args.ke = file.tensors.at("ke").data<int32_t>();
    std::vector<float> logits(int64_t(args.s_q) * args.s_kv, std::nanf(""));
    args.logits = logits.data();
    reference::indexer(args);
    CHECK(test::worst_error(std::vector<double>(logits.begin(), logits.end()),
                            doubles(file.tensors.at("want_logits"))) < 1e-6);
  }
}

TEST_CASE("golden: topk") {
  for (const std::string& name : golden_files("topk", 2)) {
    for (const bool deterministic : {false, true}) {
      CAPTURE(name);
      const TensorFile file = harness::read_safetensors(name);
      const Tensor& logits = file.tensors.at("logits");
      TopkArgs args;
      args.rows = int(logits.shape[0]);
      args.n = int(logits.shape[1]);
      args.topk = std::stoi(file.metadata.at("topk"));
      args.deterministic = deterministic;
      args.logits_stride = args.n;
      args.logits = logits.data<float>();
      args.ks = file.tensors.at("ks").data<int32_t>();
      args.ke = file.tensors.at("ke").data<int32_t>();
      std::vector<int32_t> indices(int64_t(args.rows) * args.topk, 77);
      args.indices = indices.data();
      reference::topk(args);
      for (int64_t i = 0; i < args.rows; ++i) {
        CAPTURE(i);
        const int count = file.tensors.at("want_count").data<int32_t>()[i];
        const std::vector<int32_t> row(indices.begin() + i * args.topk,
                                       indices.begin() + (i + 1) * args.topk);
        std::vector<double> values;
        for (int j = 0; j < count; ++j) {
          REQUIRE((row[j] >= args.ks[i] && row[j] >= 0 && row[j] < args.ke[i] && row[j] < args.n));
          values.push_back(logits.at(i * args.n + row[j]));
        }
        CHECK(std::set<int32_t>(row.begin(), row.begin() + count).size() == std::size_t(count));
        CHECK(std::count(row.begin() + count, row.end(), -1) == args.topk - count);
        std::sort(values.rbegin(), values.rend());
        std::vector<double> want = row_of(file.tensors.at("want_values_desc"), i, args.topk);
        want.resize(count);
        CHECK(values == want);
        if (deterministic) CHECK(std::is_sorted(row.begin(), row.begin() + count));
      }
    }
  }
}

TEST_CASE("golden: sparse MLA forward") {
  for (const std::string& name : golden_files("sparse_mla_fwd", 7)) {
    CAPTURE(name);
    const TensorFile file = harness::read_safetensors(name);
    SparseMlaFwdArgs args = sparse_mla_args<SparseMlaFwdArgs>(file);
    const Tensor& q = file.tensors.at("q");
    args.fp8 = q.dtype == DType::kE4M3;
    args.q = q.bytes.data();
    args.kv = file.tensors.at("kv").bytes.data();
    args.q_scale = optional<float>(file, "q_scale");
    args.kv_scale = optional<float>(file, "kv_scale");
    for (int64_t query = 0; query < args.s_q; ++query) {
      CAPTURE(query);
      const reference::Attention got = reference::sparse_mla_fwd_query(args, 0, query);
      CHECK(test::worst_error(got.out.data(), row_of(file.tensors.at("want_out"), query, args.h_q * kDimV)) <
            1e-6);
      CHECK(test::worst_error(got.lse.data(), row_of(file.tensors.at("want_lse"), query, args.h_q)) < 1e-6);
      CHECK(test::worst_error(got.max_logits.data(),
                              row_of(file.tensors.at("want_max_logits"), query, args.h_q)) < 1e-6);
    }
  }
}

TEST_CASE("golden: sparse MLA backward") {
  for (const std::string& name : golden_files("sparse_mla_bwd", 3)) {
    CAPTURE(name);
    const TensorFile file = harness::read_safetensors(name);
    SparseMlaBwdArgs args = sparse_mla_args<SparseMlaBwdArgs>(file);
    args.q = file.tensors.at("q").data<bf16>();
    args.kv = file.tensors.at("kv").data<bf16>();
    args.out = file.tensors.at("out").data<bf16>();
    args.lse = file.tensors.at("lse").data<float>();
    args.d_out = file.tensors.at("d_out").data<bf16>();
    // The files hold autograd's gradient of the unrounded forward; the contract takes delta from the rounded
    // `out` that it is given. So the plain loops stand between: with the exact delta they must give the file,
    // and with the given one the reference.
    const test::BruteGradient exact = test::brute_backward(args, true);
    CHECK(test::worst_error(exact.dq, doubles(file.tensors.at("want_dq"))) < 1e-6);
    CHECK(test::worst_error(exact.dkv, doubles(file.tensors.at("want_dkv"))) < 1e-6);

    const test::BruteGradient want = test::brute_backward(args);
    for (int64_t query = 0; query < args.s_q; ++query) {
      CAPTURE(query);
      const reference::QueryGradient got = reference::sparse_mla_bwd_query(args, 0, query);
      const auto dq = want.dq.begin() + query * args.h_q * kDimQK;
      CHECK(test::worst_error(got.dq.data(), {dq, dq + args.h_q * kDimQK}) < 1e-12);
      CHECK(test::worst_error(got.delta.data(), row_of(file.tensors.at("want_delta"), query, args.h_q)) <
            1e-6);
    }
    const reference::Matrix dkv = reference::sparse_mla_bwd_dkv(args);
    CHECK(test::worst_error(std::vector<double>(dkv.data(), dkv.data() + dkv.size()), want.dkv) < 1e-12);
    for (int64_t row = 0; row < args.s_kv; row += 7) {
      const auto dkv_row = want.dkv.begin() + row * kDimQK;
      CHECK(test::worst_error(reference::sparse_mla_bwd_dkv_row(args, 0, row, 0).data(),
                              {dkv_row, dkv_row + kDimQK}) < 1e-12);
    }
  }
}
