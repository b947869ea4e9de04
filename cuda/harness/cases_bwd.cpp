#include <cmath>
#include <set>

#include "sparse_data.hpp"

namespace dsa::harness {

namespace {

using generate::name_of;
using generate::slots;
using generate::Sparse;
using generate::sparse_bwd;
using generate::sparse_bwd_large;
using generate::sparse_fwd;

Problem shared_rows(int h_q) {
  Problem p = sparse_fwd({1, 6, 80, h_q, 1, 64});
  for (int64_t query = 1; query < 6; ++query) std::copy_n(slots(p, 0, 0), 64, slots(p, 0, query));
  return sparse_bwd(p);
}

/// Every KV row is selected once: a missing one cannot hide behind popular rows.
Problem each_row_once(int h_q) {
  Problem p = sparse_fwd({1, 3, 192, h_q, 1, 64});
  for (int64_t i = 0; i < 192; ++i) slots(p, 0, 0)[i] = int32_t(i * 5 % 192);
  return sparse_bwd(p);
}

bool selects_each_row_once(const Problem& p) {
  const int32_t* all = p.inputs.at("indices").data<int32_t>();
  return std::set<int32_t>(all, all + 192).size() == 192;
}

Problem zero_d_out(int h_q) {
  Problem p = sparse_bwd(sparse_fwd({1, 2, 96, h_q, 1, 64}));
  Tensor& d_out = p.inputs.at("d_out");
  generate::fill(d_out, 0, d_out.elements(), 0);
  return p;
}

/// Whole numbers in v and d_out, so that dP and delta are exact in float32, and one slot with all the weight:
/// dS is exactly 0, and the row's gradient is the sum of d_out in the latent columns and 0 in the rope
/// columns.
Problem one_hot(int h_q) {
  Problem p = sparse_fwd({1, 2, 96, h_q, 1, 64});
  const int32_t chosen = slots(p, 0, 0)[10];
  slots(p, 0, 1)[3] = chosen;
  slots(p, 0, 1)[10] = -1;
  set_logits(
      p, [](int64_t) { return std::vector{64.f}; },
      [=](int64_t row) { return std::vector{row == chosen ? 96.f : 0.f}; });
  for (int64_t row = 0; row < 96; ++row) {
    for (int64_t d = 0; d < kDimV; ++d)
      generate::set(p.inputs.at("kv"), row * kDimQK + d, float((row * 5 + d * 3) % 9 - 4));
  }
  Problem b = sparse_bwd(p);
  Tensor& d_out = b.inputs.at("d_out");
  for (int64_t i = 0; i < d_out.elements(); ++i)
    generate::set(d_out, i, float(int(generate::hash(3, uint64_t(i)) % 9) - 4));
  return b;
}

bool gradient_is_of_v_only(const Problem& p) {
  const Tensor dkv = run_reference(p).at("dkv_f32");
  double rope = 0, latent = 0;
  for (int64_t i = 0; i < dkv.elements(); ++i) (i % kDimQK < kDimV ? latent : rope) += std::fabs(dkv.at(i));
  return rope == 0 && latent > 100;
}

/// One large addend and many small ones on one row: a bf16 accumulator stops growing.
Problem small_addends() {
  Problem p = sparse_fwd({1, 40, 3, 8, 1, 1});
  for (int64_t query = 0; query < 40; ++query) slots(p, 0, query)[0] = 1;
  Problem b = sparse_bwd(p);
  Tensor& d_out = b.inputs.at("d_out");
  generate::fill(d_out, 0, d_out.elements(), 0x1p-9f);
  generate::fill(d_out, 0, kDimV, 8);
  return b;
}

bool sum_exceeds_largest(const Problem& p) {
  return run_reference(p).at("dkv_f32").at(kDimQK) > 8.5;
}

/// lse = +inf silences a query even when its slots are valid.
Problem infinite_lse(int h_q) {
  Problem p = sparse_bwd(sparse_fwd({1, 3, 96, h_q, 1, 64}));
  generate::fill(p.inputs.at("lse"), h_q, 2 * h_q, INFINITY);
  return p;
}

/// A softmax with a spread of logits, where roundings of P and dS count most.
Problem wide_logits(int h_q) {
  Problem p = sparse_fwd({1, 2, 96, h_q, 1, 64});
  Tensor& q = p.inputs.at("q");
  q = generate::normal(DType::kBF16, q.shape, 21, 30);  // logits of size 3
  return sparse_bwd(p);
}

}  // namespace

std::vector<Case> bwd_cases() {
  std::vector<Case> cases;
  const auto add = [&](CaseKind kind, std::string name, std::string what, std::function<Problem()> make,
                       std::function<bool(const Problem&)> holds = nullptr) {
    cases.push_back(
        {Stage::kSparseMlaBwd, kind, std::move(name), std::move(what), std::move(make), std::move(holds)});
  };
  for (const SparseCase& shared : shared_sparse_cases()) {
    if (shared.forward_only) continue;
    add(CaseKind::kSmall, shared.name, shared.what, [make = shared.make] { return sparse_bwd(make()); });
  }
  for (int h_q : {8, 64}) {
    const std::string suffix = "/h_q:" + std::to_string(h_q);
    add(CaseKind::kSmall, "shared_rows" + suffix, "all queries select the same rows",
        [=] { return shared_rows(h_q); });
    add(
        CaseKind::kSmall, "each_row_once" + suffix, "every KV row is selected once",
        [=] { return each_row_once(h_q); }, selects_each_row_once);
    add(CaseKind::kSmall, "zero_d_out" + suffix, "d_out = 0: all gradients are 0",
        [=] { return zero_d_out(h_q); });
    add(
        CaseKind::kSmall, "one_hot" + suffix, "dS = 0: dkv is the sum of d_out, and 0 in the rope columns",
        [=] { return one_hot(h_q); }, gradient_is_of_v_only);
    add(
        CaseKind::kSmall, "infinite_lse" + suffix, "lse = +inf silences a query with valid slots",
        [=] { return infinite_lse(h_q); },
        [](const Problem& p) { return generate::valid_slots(p, 0, 1) == 64; });
    add(CaseKind::kSmall, "wide_logits" + suffix, "a peaked softmax, where rounding of P and dS counts",
        [=] { return wide_logits(h_q); });
  }
  add(CaseKind::kSmall, "small_addends", "320 additions of 2^-9 to a sum of 8", small_addends,
      sum_exceeds_largest);

  const Sparse many{1, 70000, 512, 1, 1, 64}, many_heads{1, 70000, 512, 64, 1, 64},
      far{1, 64, 3800000, 64, 1, 64};
  for (const Sparse& s : {many, many_heads}) {
    add(CaseKind::kLarge, name_of(s),
        "more queries than a grid's y axis may have; with 64 heads q has more than 2^31 elements",
        [=] { return sparse_bwd_large(s); });
  }
  add(
      CaseKind::kLarge, "2^31_kv", "selected KV rows beyond 2^31 elements",
      [=] {
        Problem p = sparse_bwd_large(far);
        Tensor& indices = p.inputs.at("indices");
        for (int64_t i = 0; i < indices.elements(); ++i)
          indices.data<int32_t>()[i] = int32_t(far.s_kv - 1 - i % 4000);
        return p;
      },
      [](const Problem& p) { return (p.inputs.at("indices").at(0) - 4000) * kDimQK > 0x1p31; });
  for (int h_q : {64, 128}) {
    const Sparse s{1, 1, 1024, h_q, 1, 512};
    add(CaseKind::kExplain, name_of(s), "one query, eight tiles of 64 slots",
        [=] { return sparse_bwd(sparse_fwd(s)); });
  }
  const Sparse random_8192{1, 4096, 8192, 128, 1, 2048}, random_32768{1, 4096, 32768, 128, 1, 2048},
      heads_64{1, 4096, 8192, 64, 1, 2048}, prefill_4096{1, 4096, 4096, 128, 1, 2048, true},
      prefill_8192{1, 8192, 8192, 128, 1, 2048, true};
  for (const Sparse& s : {random_8192, prefill_4096}) {
    add(CaseKind::kLarge, name_of(s), "DeepSeek-V3.2 shapes", [=] { return sparse_bwd_large(s); });
  }
  for (const Sparse& s : {random_8192, random_32768, prefill_4096, prefill_8192, heads_64}) {
    add(CaseKind::kBench, name_of(s), s.causal ? "prefill from an empty cache" : "random rows",
        [=] { return sparse_bwd_large(s); });
  }
  return cases;
}

}  // namespace dsa::harness
