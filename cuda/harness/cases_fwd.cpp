#include <cmath>

#include "sparse_data.hpp"

namespace dsa::harness {

namespace {

using generate::name_of;
using generate::slots;
using generate::Sparse;
using generate::sparse_fwd;
using generate::valid_slots;

/// Identical keys with the logit c: lse = c + ln n. Heads have c = -3, 0 and 7, queries n = 1, 2 and 128.
Problem identical_keys() {
  Problem p = sparse_fwd({1, 3, 128, 8, 1, 128});
  set_logits(
      p,
      [](int64_t head) {
        constexpr float kLogits[] = {-3, 0, 7};
        return std::vector{8 * kLogits[head % 3]};
      },
      [](int64_t) { return std::vector{3.f}; });
  for (int64_t query : {0, 1}) keep_slots(p, 0, query, [=](int64_t slot) { return slot <= query; });
  return p;
}

bool lse_is_c_plus_ln_n(const Problem& p) {
  const Tensor lse = run_reference(p).at("lse");
  return std::fabs(lse.at(2) - 7) < 1e-3 && std::fabs(lse.at(16) - (-3 + std::log(128.0))) < 1e-3;
}

/// Head h gives all its weight to row h, by a gap of 64 between the logits. V[j][d] is a small integer made
/// of j and d.
Problem one_hot(bool fp8, int h_q) {
  Sparse s{1, 1, 64, h_q, 1, 64};
  s.fp8 = fp8;
  Problem p = sparse_fwd(s);
  p.inputs.erase("q_scale");
  p.inputs.erase("kv_scale");
  p.fp8_row_error = 1e-2;
  const auto unit = [](int64_t at, float size) {
    std::vector<float> v(64);
    v[std::size_t(at)] = size;
    return v;
  };
  set_logits(
      p, [=](int64_t head) { return unit(head, 64); }, [=](int64_t row) { return unit(row, 24); });
  for (int64_t row = 0; row < 64; ++row) {
    for (int64_t d = 0; d < kDimV; ++d)
      generate::set(p.inputs.at("kv"), row * kDimQK + d, float((row * 7 + d * 3) % 15 - 7));
  }
  return p;
}

bool weights_are_one_hot(const Problem& p) {
  const TensorMap outputs = run_reference(p);
  return std::fabs(outputs.at("lse").at(3) - 64) < 1e-3 &&
         outputs.at("out").at(3 * kDimV + 5) == (3 * 7 + 5 * 3) % 15 - 7;
}

/// V = 1, so that out = 1 for every softmax; one logit 0 and the others 7.2 lower: each is nothing in e4m3,
/// all together a seventh of the sum.
Problem all_ones(bool fp8, int h_q) {
  Sparse s{1, 1, 200, h_q, 1, 192};
  s.fp8 = fp8;
  Problem p = sparse_fwd(s);
  p.inputs.erase("q_scale");
  p.inputs.erase("kv_scale");
  p.fp8_row_error = 1e-2;
  const int32_t top = slots(p, 0, 0)[100];
  set_logits(
      p, [](int64_t) { return std::vector{12.f}; },
      [=](int64_t row) { return std::vector{row == top ? 0.f : -14.f}; });
  for (int64_t row = 0; row < 200; ++row)
    generate::fill(p.inputs.at("kv"), row * kDimQK, row * kDimQK + kDimV, 1);
  return p;
}

bool tail_matters(const Problem& p) {
  const TensorMap outputs = run_reference(p);
  return outputs.at("out").at(17) == 1 && outputs.at("lse").at(0) > 0.1 && outputs.at("lse").at(0) < 0.3;
}

/// Logits that rise by 2 from tile to tile: a maximum that is kept from an earlier tile is too small.
Problem rising(bool fp8, int h_q) {
  Sparse s{1, 1, 256, h_q, 1, 192};
  s.fp8 = fp8;
  Problem p = sparse_fwd(s);
  p.inputs.erase("q_scale");
  p.inputs.erase("kv_scale");
  std::vector<float> level(256);
  for (int64_t slot = 0; slot < 192; ++slot)
    level[std::size_t(slots(p, 0, 0)[slot])] = float(4 * (slot / 64));
  set_logits(
      p, [](int64_t) { return std::vector{12.f}; },
      [=](int64_t row) { return std::vector{level[std::size_t(row)]}; });
  return p;
}

/// Steps of 6.5 and 1 between the logits of tiles: a reference that is only raised by need is raised by even and by odd
/// tiles, an odd tile comes that fits the reference of before but not of after the even tile's raise, and at the end an even
/// tile raises for the last time; for the second query, the last tile does, an odd one.
Problem rising_steeply(bool fp8, int h_q) {
  Sparse s{1, 2, 1152, h_q, 1, 512};
  s.fp8 = fp8;
  Problem p = sparse_fwd(s);
  p.inputs.erase("q_scale");
  p.inputs.erase("kv_scale");
  constexpr float kLevels[2][8] = {{0, 13, 26, 24, 25, 39, 52, 51}, {0, 13, 26, 24, 25, 39, 38, 52}};
  std::vector<float> level(1152);
  for (int64_t slot = 0; slot < 512; ++slot) {
    slots(p, 0, 0)[slot] = int32_t(slot * 3 % 512), slots(p, 0, 1)[slot] = int32_t(512 + slot * 5 % 512);
    for (int64_t query : {0, 1}) level[std::size_t(slots(p, 0, query)[slot])] = kLevels[query][slot / 64];
  }
  set_logits(
      p, [](int64_t) { return std::vector{12.f}; },
      [=](int64_t row) { return std::vector{level[std::size_t(row)]}; });
  return p;
}

/// Scales that differ by powers of two and a bit, from row to row and from head to head.
Problem fp8_scales(int h_q) {
  Sparse s{1, 2, 100, h_q, 1, 128};
  s.fp8 = true;
  Problem p = sparse_fwd(s);
  for (const char* name : {"q_scale", "kv_scale"}) {
    Tensor& scale = p.inputs.at(name);
    for (int64_t i = 0; i < scale.elements(); ++i)
      scale.data<float>()[i] = 0.11f * std::ldexp(1.f, int(i % 5) - 2);
  }
  return p;
}

/// NaN bytes and NaN scales in rows that nobody selected.
Problem fp8_nan_unselected(int h_q) {
  Sparse s{1, 2, 100, h_q, 1, 64};
  s.fp8 = true;
  Problem p = sparse_fwd(s);
  for (int64_t query : {0, 1}) {
    for (int64_t slot = 0; slot < 64; ++slot) {
      int32_t& row = slots(p, 0, query)[slot];
      if (row % 2 == 0) row = slot % 3 ? -1 : 100;
    }
  }
  for (int64_t row = 0; row < 100; row += 2) {
    generate::fill(p.inputs.at("kv"), row * kDimQK, (row + 1) * kDimQK, NAN);
    generate::set(p.inputs.at("kv_scale"), row, NAN);
  }
  return p;
}

bool has_fp8_nan(const Problem& p) {
  return std::isnan(p.inputs.at("kv").at(0)) && std::isnan(p.inputs.at("kv_scale").at(0)) &&
         valid_slots(p, 0, 0) > 10;
}

std::string heads(int h_q) {
  return "/h_q:" + std::to_string(h_q);
}

}  // namespace

std::vector<Case> fwd_cases() {
  std::vector<Case> cases;
  const auto add = [&](CaseKind kind, std::string name, std::string what, std::function<Problem()> make,
                       std::function<bool(const Problem&)> holds = nullptr) {
    cases.push_back(
        {Stage::kSparseMlaFwd, kind, std::move(name), std::move(what), std::move(make), std::move(holds)});
  };
  for (SparseCase& shared : shared_sparse_cases()) {
    add(CaseKind::kSmall, shared.name, shared.what, std::move(shared.make), std::move(shared.holds));
  }
  add(CaseKind::kSmall, "identical_keys", "lse is c + ln n, natural logarithm", identical_keys,
      lse_is_c_plus_ln_n);
  for (int h_q : {8, 64}) {
    for (bool fp8 : {false, true}) {
      const std::string prefix = fp8 ? "fp8/" : "";
      add(
          CaseKind::kSmall, prefix + "one_hot" + heads(h_q),
          "each head picks one row: a permuted V or P shows", [=] { return one_hot(fp8, h_q); },
          weights_are_one_hot);
      add(
          CaseKind::kSmall, prefix + "all_ones" + heads(h_q),
          "V = 1 and a long tail of small weights: out is 1", [=] { return all_ones(fp8, h_q); },
          tail_matters);
      add(CaseKind::kSmall, prefix + "rising" + heads(h_q), "the maximum rises with every tile",
          [=] { return rising(fp8, h_q); });
      add(CaseKind::kSmall, prefix + "rising_steeply" + heads(h_q), "the maximum rises by far, and not in every tile",
          [=] { return rising_steeply(fp8, h_q); });
    }
    const auto fp8 = [&](const std::string& name, const char* what, Sparse s, bool scales) {
      s.h_q = h_q;
      s.fp8 = true;
      add(CaseKind::kSmall, "fp8/" + name + heads(h_q), what, [=] {
        Problem p = sparse_fwd(s);
        if (!scales) p.inputs.erase("q_scale"), p.inputs.erase("kv_scale");
        return p;
      });
    };
    fp8("scaled", "e4m3 inputs with scales", {1, 2, 200, 8, 1, 128}, true);
    fp8("unscaled", "e4m3 inputs without scales", {1, 2, 200, 8, 1, 128}, false);
    fp8("topk:100", "a tail of slots", {1, 2, 200, 8, 1, 100}, true);
    fp8("s_kv<topk", "fewer rows than slots", {1, 2, 10, 8, 1, 64}, true);
    fp8("causal", "the causal rule with q_start and kv_stride", {1, 3, 64, 8, 1, 64, true, 101, 4}, true);
    fp8("batch:2", "two batch elements", {2, 1, 70, 8, 1, 64}, true);
    add(CaseKind::kSmall, "fp8/odd_scales" + heads(h_q), "scales that differ from row to row",
        [=] { return fp8_scales(h_q); });
    add(
        CaseKind::kSmall, "fp8/nan_unselected" + heads(h_q),
        "NaN bytes and scales in rows that nobody selected", [=] { return fp8_nan_unselected(h_q); },
        has_fp8_nan);
  }

  const Sparse many{1, 70000, 512, 1, 1, 64}, many_heads{1, 70000, 512, 64, 1, 64};
  const Sparse far{1, 64, 3800000, 64, 1, 64};
  for (const Sparse& s : {many, many_heads}) {
    add(CaseKind::kLarge, name_of(s),
        "more queries than a grid's y axis may have; with 64 heads q has more than 2^31 elements",
        [=] { return sparse_fwd(s); });
  }
  for (bool fp8 : {false, true}) {
    add(
        CaseKind::kLarge, std::string("2^31_kv") + (fp8 ? "/fp8" : ""),
        "selected KV rows beyond 2^31 elements",
        [=] {
          Sparse s = far;
          s.fp8 = fp8;
          Problem p = sparse_fwd(s);
          Tensor& indices = p.inputs.at("indices");
          for (int64_t i = 0; i < indices.elements(); ++i)
            indices.data<int32_t>()[i] = int32_t(far.s_kv - 1 - i % 4000);
          return p;
        },
        [](const Problem& p) { return (p.inputs.at("indices").at(0) - 4000) * kDimQK > 0x1p31; });
  }
  Sparse eight_tiles{1, 1, 1024, 64, 1, 512}, eight_tiles_128 = eight_tiles, eight_tiles_fp8 = eight_tiles;
  eight_tiles_128.h_q = 128;
  eight_tiles_fp8.fp8 = true;
  for (const Sparse& s : {eight_tiles, eight_tiles_128, eight_tiles_fp8})
    add(CaseKind::kExplain, name_of(s), "one query, eight tiles of 64 slots", [=] { return sparse_fwd(s); });
  const auto deepseek = [](int s_q, int s_kv, int h_q = 128, int topk = 2048) {
    return Sparse{1, s_q, s_kv, h_q, 1, topk};
  };
  Sparse prefill_4096 = deepseek(4096, 4096), prefill_8192 = deepseek(8192, 8192);
  prefill_4096.causal = prefill_8192.causal = true;
  Sparse fp8_8192 = deepseek(4096, 8192), fp8_32768 = deepseek(4096, 32768);
  fp8_8192.fp8 = fp8_32768.fp8 = true;
  for (const Sparse& s : {deepseek(4096, 8192), prefill_4096, fp8_8192}) {
    add(CaseKind::kLarge, name_of(s), "DeepSeek-V3.2 shapes", [=] { return sparse_fwd(s); });
  }
  for (const Sparse& s :
       {deepseek(4096, 8192), deepseek(4096, 32768), deepseek(4096, 131072), prefill_4096, prefill_8192,
        deepseek(4096, 8192, 64), deepseek(4096, 8192, 128, 1024), deepseek(4096, 8192, 128, 512),
        deepseek(64, 8192), deepseek(1, 8192), fp8_8192, fp8_32768}) {
    add(CaseKind::kBench, name_of(s), s.causal ? "prefill from an empty cache" : "random rows",
        [=] { return sparse_fwd(s); });
  }
  return cases;
}

}  // namespace dsa::harness
