#include "sparse_data.hpp"

#include <algorithm>
#include <climits>
#include <cmath>
#include <set>

namespace dsa::harness {

using generate::slots;
using generate::Sparse;
using generate::sparse_fwd;
using generate::valid_slots;

void keep_slots(Problem& problem, int64_t batch, int64_t query, const std::function<bool(int64_t)>& keep) {
  const auto& a = std::get<SparseMlaFwdArgs>(problem.args);
  for (int64_t group = 0; group < a.g; ++group) {
    int32_t* row = slots(problem, batch, query, group);
    for (int64_t slot = 0; slot < a.topk; ++slot) {
      if (!keep(slot)) row[slot] = kInvalid;
    }
  }
}

void set_logits(Problem& problem, const std::function<std::vector<float>(int64_t)>& q,
                const std::function<std::vector<float>(int64_t)>& k) {
  const auto& a = std::get<SparseMlaFwdArgs>(problem.args);
  Tensor& queries = problem.inputs.at("q");
  Tensor& rows = problem.inputs.at("kv");
  generate::fill(queries, 0, queries.elements(), 0);
  const auto put = [](Tensor& tensor, int64_t row, const std::vector<float>& values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      generate::set(tensor, row * kDimQK + kDimV + int64_t(i), values[i]);
  };
  for (int64_t i = 0; i < queries.elements() / kDimQK; ++i) put(queries, i, q(i % a.h_q));
  for (int64_t i = 0; i < rows.elements() / kDimQK; ++i) put(rows, i, k(i / a.g % a.s_kv));
}

namespace {

/// What FlashMLA's tests put into indices beside -1.
std::vector<int32_t> invalid_values(int32_t s_kv) {
  return {INT_MIN, -123456, -1, s_kv, s_kv + 1, INT_MAX};
}

Problem invalid_indices(int h_q) {
  Problem p = sparse_fwd({1, 2, 70, h_q, 1, 64});
  const std::vector<int32_t> bad = invalid_values(70);
  for (int64_t query : {0, 1}) {
    for (int64_t slot = query; slot < 64; slot += 2)
      slots(p, 0, query)[slot] = bad[std::size_t(slot / 2) % bad.size()];
  }
  return p;
}

bool has_every_invalid_value(const Problem& p) {
  const Tensor& indices = p.inputs.at("indices");
  std::set<int32_t> present(indices.data<int32_t>(), indices.data<int32_t>() + indices.elements());
  for (int32_t value : invalid_values(70)) {
    if (!present.count(value)) return false;
  }
  return valid_slots(p, 0, 0) == 32 && valid_slots(p, 0, 1) == 32;
}

const std::vector<int64_t> kCounts = {0, 1, 63, 64, 65, 128};

/// Rows with so many valid slots, in scattered places.
Problem row_counts(int h_q) {
  Problem p = sparse_fwd({1, 6, 200, h_q, 1, 128});
  for (int64_t query = 0; query < 6; ++query) {
    keep_slots(p, 0, query, [=](int64_t slot) { return slot * 37 % 128 < kCounts[std::size_t(query)]; });
  }
  return p;
}

bool has_row_counts(const Problem& p) {
  for (int64_t query = 0; query < 6; ++query) {
    if (valid_slots(p, 0, query) != kCounts[std::size_t(query)]) return false;
  }
  return true;
}

Problem empty_rows(int h_q) {
  Problem p = sparse_fwd({1, 5, 96, h_q, 1, 64});
  for (int64_t query : {0, 2, 4}) keep_slots(p, 0, query, [](int64_t) { return false; });
  return p;
}

bool has_empty_rows(const Problem& p) {
  return valid_slots(p, 0, 0) == 0 && valid_slots(p, 0, 1) == 64 && valid_slots(p, 0, 2) == 0 &&
         valid_slots(p, 0, 4) == 0;
}

/// KV rows that nobody selected are NaN, row 0 among them; invalid slots in the first, a middle and the last
/// tile.
Problem nan_unselected(int h_q) {
  Problem p = sparse_fwd({1, 2, 200, h_q, 1, 192});
  std::set<int32_t> selected;
  for (int64_t query : {0, 1}) {
    int32_t* row = slots(p, 0, query);
    for (int64_t slot = 0; slot < 192; ++slot) {
      if (row[slot] == 0 || row[slot] % 3 == 0 || slot % 64 == 5) row[slot] = slot % 2 ? -1 : 200;
      selected.insert(row[slot]);
    }
  }
  Tensor& kv = p.inputs.at("kv");
  for (int32_t i = 0; i < 200; ++i) {
    if (!selected.count(i)) generate::fill(kv, int64_t(i) * kDimQK, int64_t(i + 1) * kDimQK, NAN);
  }
  return p;
}

bool has_nan_row_zero(const Problem& p) {
  return std::isnan(p.inputs.at("kv").at(0)) && valid_slots(p, 0, 0) > 64 && valid_slots(p, 0, 0) < 192;
}

/// Batch 1 is all NaN and selects nothing; batch 0 pads with s_kv, which would be row 0 of batch 1.
Problem batch_of_nan(int h_q) {
  Problem p = sparse_fwd({2, 2, 80, h_q, 1, 64});
  Tensor& kv = p.inputs.at("kv");
  generate::fill(kv, kv.elements() / 2, kv.elements(), NAN);
  for (int64_t query : {0, 1}) {
    keep_slots(p, 1, query, [](int64_t) { return false; });
    for (int64_t slot = 40; slot < 64; ++slot) slots(p, 0, query)[slot] = 80;
  }
  return p;
}

bool has_nan_batch(const Problem& p) {
  return std::isnan(p.inputs.at("kv").at(80 * kDimQK)) && valid_slots(p, 1, 0) == 0 &&
         valid_slots(p, 0, 0) == 40;
}

/// Every query has its last visible row and the one after it among its slots, and rows from all over.
Problem causal(int h_q, int64_t q_start, int64_t kv_stride) {
  Sparse s{1, 3, 64, h_q, 1, 64};
  s.seed = 5;
  Problem p = sparse_fwd(s);  // all 64 rows for every query
  auto& a = std::get<SparseMlaFwdArgs>(p.args);
  a.causal = true;
  a.q_start = q_start;
  a.kv_stride = kv_stride;
  return p;
}

bool has_future_rows(const Problem& p) {
  const auto& a = std::get<SparseMlaFwdArgs>(p.args);
  for (int64_t query = 0; query < a.s_q; ++query) {
    if (valid_slots(p, 0, query) != last_visible_row(query, a.q_start, a.kv_stride) + 1) return false;
  }
  return true;
}

/// Nothing but the own position, and it with the next one.
Problem own_position(int h_q) {
  Problem p = causal(h_q, 37, 1);
  for (int64_t query = 0; query < 3; ++query) {
    int32_t* row = slots(p, 0, query);
    std::fill_n(row, 64, kInvalid);
    row[10] = int32_t(37 + query);
    if (query > 0) row[20] = int32_t(38 + query);
  }
  return p;
}

bool sees_only_itself(const Problem& p) {
  return valid_slots(p, 0, 0) == 1 && valid_slots(p, 0, 1) == 1 && valid_slots(p, 0, 2) == 1;
}

Problem lengths(int h_q) {
  Problem p = sparse_fwd({1, 6, 100, h_q, 1, 64});
  p.inputs["topk_length"] = generate::integers({1, 6}, {-5, 0, 1, 63, 65, 1000000});
  return p;
}

bool has_lengths(const Problem& p) {
  const std::vector<int64_t> expected = {0, 0, 1, 63, 64, 64};
  for (int64_t query = 0; query < 6; ++query) {
    if (valid_slots(p, 0, query) != expected[std::size_t(query)]) return false;
  }
  return true;
}

/// Sinks from -inf to +inf; query 1 is empty.
Problem sinks(int h_q) {
  Problem p = sparse_fwd({1, 2, 96, h_q, 1, 64});
  constexpr float kSinks[] = {-INFINITY, INFINITY, 2e38f, 2.4e38f, 0, 4, -3, -2e38f};
  Tensor& sink = p.inputs["attn_sink"] = Tensor(DType::kF32, {h_q});
  for (int64_t h = 0; h < h_q; ++h) sink.data<float>()[h] = kSinks[h % 8];
  keep_slots(p, 0, 1, [](int64_t) { return false; });
  return p;
}

/// |logit| ~ 1e4.
Problem large_logits(int h_q) {
  Problem p = sparse_fwd({1, 2, 96, h_q, 1, 64});
  for (const auto& [name, size] : {std::pair("q", 400.f), std::pair("kv", 10.f)}) {
    Tensor& t = p.inputs.at(name);
    t = generate::normal(DType::kBF16, t.shape, generate::hash(77, uint64_t(name[0])), size);
  }
  return p;
}

bool has_large_logits(const Problem& p) {
  const Tensor logits = run_reference(p).at("max_logits");
  double largest = 0;
  for (int64_t i = 0; i < logits.elements(); ++i) largest = std::max(largest, logits.at(i));
  return largest > 5e3;
}

/// All logits equal and very negative, but for one row that is higher: finite stand-ins for -inf would win.
Problem very_negative(int h_q, float q0, float k0, float q1, float k1) {
  Problem p = sparse_fwd({1, 2, 96, h_q, 1, 64});
  const int32_t higher = slots(p, 0, 0)[50];
  set_logits(
      p,
      [=](int64_t) {
        return std::vector{q0, q1};
      },
      [=](int64_t row) {
        return std::vector{k0, row == higher ? k1 : 0.f};
      });
  for (int64_t query : {0, 1}) keep_slots(p, 0, query, [](int64_t slot) { return slot < 20 || slot > 40; });
  return p;
}

bool has_max_below(const Problem& p, double limit) {
  return run_reference(p).at("max_logits").at(0) < limit && valid_slots(p, 0, 0) == 43;
}

/// A tile of 64 slots without a valid one.
Problem invalid_tile(int h_q, int64_t tile) {
  Problem p = sparse_fwd({1, 2, 200, h_q, 1, 192});
  keep_slots(p, 0, 0, [=](int64_t slot) { return slot / 64 != tile; });
  keep_slots(p, 0, 1, [=](int64_t slot) { return slot / 64 != tile && slot % 64 != 0; });
  return p;
}

Problem duplicates(int h_q) {
  Problem p = sparse_fwd({1, 2, 30, h_q, 1, 64});
  for (int64_t query : {0, 1}) {
    for (int64_t slot = 0; slot < 64; ++slot) slots(p, 0, query)[slot] = int32_t(slot * slot % 11);
  }
  return p;
}

bool has_duplicates(const Problem& p) {
  const int32_t* row = p.inputs.at("indices").data<int32_t>();
  return valid_slots(p, 0, 0) == 64 && std::set<int32_t>(row, row + 64).size() < 12;
}

/// Everything at once.
Problem everything(int h_q) {
  Problem p = sparse_fwd({2, 2, 100, h_q, 2, 100, false});
  auto& a = std::get<SparseMlaFwdArgs>(p.args);
  a.causal = true;
  a.q_start = 150;
  a.kv_stride = 2;
  a.sm_scale = 0.3f;
  p.inputs["topk_length"] = generate::integers({2, 2}, {90, 7, 0, 200});
  p.inputs["attn_sink"] = generate::normal(DType::kF32, {h_q}, 8);
  slots(p, 0, 1, 1)[3] = INT_MIN;
  slots(p, 1, 1, 0)[99] = INT_MAX;
  return p;
}

}  // namespace

std::vector<SparseCase> shared_sparse_cases() {
  std::vector<SparseCase> cases;
  for (int h_q : {1, 8, 16, 63, 64, 65, 128}) {
    cases.push_back({"h_q:" + std::to_string(h_q), "head counts around the tile size", [=] {
                       return sparse_fwd({1, h_q < 63 ? 2 : 1, 96, h_q, 1, 64});
                     }});
  }
  for (int topk : {1, 5, 64, 100, 128, 129, 200}) {
    cases.push_back({"topk:" + std::to_string(topk), "slot counts with and without a tail", [=] {
                       return sparse_fwd({1, 2, 256, 8, 1, topk});
                     }});
  }
  // Steps that handle whole tiles only take the second of each pair.
  for (int h_q : {8, 64}) {
    const std::string suffix = "/h_q:" + std::to_string(h_q);
    const auto add = [&](const std::string& name, const char* what, std::function<Problem()> make,
                         std::function<bool(const Problem&)> holds = nullptr) {
      cases.push_back({name + suffix, what, std::move(make), std::move(holds)});
    };
    add(
        "invalid_indices", "every invalid value between valid ones: none is followed",
        [=] { return invalid_indices(h_q); }, has_every_invalid_value);
    add(
        "row_counts", "0, 1, 63, 64, 65 and 128 valid slots in scattered places",
        [=] { return row_counts(h_q); }, has_row_counts);
    add(
        "empty_rows", "queries without a valid slot at the start, in the middle and at the end",
        [=] { return empty_rows(h_q); }, has_empty_rows);
    add(
        "all_invalid", "one query, and nothing for it",
        [=] {
          Problem p = sparse_fwd({1, 1, 96, h_q, 1, 64});
          keep_slots(p, 0, 0, [](int64_t) { return false; });
          return p;
        },
        [](const Problem& p) { return valid_slots(p, 0, 0) == 0; });
    add(
        "duplicates", "a row selected several times counts several times", [=] { return duplicates(h_q); },
        has_duplicates);
    add(
        "nan_unselected", "NaN in rows that nobody selected, row 0 among them: 0 * NaN is NaN",
        [=] { return nan_unselected(h_q); }, has_nan_row_zero);
    add(
        "batch_of_nan", "the KV of the next batch element is NaN", [=] { return batch_of_nan(h_q); },
        has_nan_batch);
    add("batch:3", "three batch elements", [=] { return sparse_fwd({3, 1, 70, h_q, 1, 64}); });
    add("groups:2", "two KV groups", [=] { return sparse_fwd({1, 2, 70, h_q, 2, 64}); });
    for (int64_t q_start : {0, 37}) {
      for (int64_t kv_stride : {1, 4}) {
        add(
            "causal/q_start:" + std::to_string(q_start) + "/kv_stride:" + std::to_string(kv_stride),
            "rows of the future among the slots, and the last visible one",
            [=] { return causal(h_q, q_start, kv_stride); }, has_future_rows);
      }
    }
    add(
        "own_position", "the own position is visible, the next is not", [=] { return own_position(h_q); },
        sees_only_itself);
    add(
        "topk_length", "lengths below 0, 0, 1, 63, topk + 1 and 10^6", [=] { return lengths(h_q); },
        has_lengths);
    add(
        "attn_sink", "sinks from -inf to +inf, and an empty row with a sink", [=] { return sinks(h_q); },
        [](const Problem& p) {
          return std::isinf(p.inputs.at("attn_sink").at(0)) && valid_slots(p, 0, 1) == 0;
        });
    add(
        "large_logits", "|logit| ~ 1e4", [=] { return large_logits(h_q); }, has_large_logits);
    add(
        "logits:-6e4", "raw logits all -6e4 but one higher by 64",
        [=] { return very_negative(h_q, -240, 250, 8, 8); },
        [](const Problem& p) { return has_max_below(p, -2400); });
    add(
        "logits:-2e9", "raw logits all -2e9 but one higher by 4096",
        [=] { return very_negative(h_q, -61440, 32768, 64, 64); },
        [](const Problem& p) { return has_max_below(p, -8e7); });
    cases.back().forward_only = true;  // lse is a float32: a step of it changes P by a factor of 2000
    for (int64_t tile : {0, 1, 2}) {
      add(
          "invalid_tile:" + std::to_string(tile), "a whole tile without a valid slot",
          [=] { return invalid_tile(h_q, tile); },
          [=](const Problem& p) {
            const int32_t* row = p.inputs.at("indices").data<int32_t>() + tile * 64;
            return valid_slots(p, 0, 0) == 128 &&
                   std::all_of(row, row + 64, [](int32_t i) { return i == -1; });
          });
    }
    add(
        "negative_tail", "all logits very negative and one slot in the last tile: an unmasked 0 would win",
        [=] {
          Problem p = sparse_fwd({1, 1, 96, h_q, 1, 128});
          set_logits(
              p, [](int64_t) { return std::vector{-30.f}; },
              [](int64_t row) { return std::vector{24.f + float(row % 4)}; });
          keep_slots(p, 0, 0, [](int64_t slot) { return slot < 65; });
          return p;
        },
        [](const Problem& p) {
          return run_reference(p).at("max_logits").at(0) < -29 && valid_slots(p, 0, 0) == 65;
        });
    add(
        "s_kv<topk", "fewer rows than slots",
        [=] {
          return sparse_fwd({1, 2, 10, h_q, 1, 64});
        },
        [](const Problem& p) { return valid_slots(p, 0, 0) == 10; });
    add("everything", "batch, groups, causal rule, lengths and sinks at once",
        [=] { return everything(h_q); });
  }
  cases.push_back({"s_q:0", "no queries", [] { return sparse_fwd({1, 0, 64, 8, 1, 64}); }});
  cases.push_back({"s_kv:0", "no KV rows: every slot is invalid",
                   [] {
                     Problem p = sparse_fwd({1, 2, 0, 8, 1, 64});
                     slots(p, 0, 0)[3] = 0;
                     return p;
                   },
                   [](const Problem& p) { return valid_slots(p, 0, 0) == 0; }});
  return cases;
}

}  // namespace dsa::harness
