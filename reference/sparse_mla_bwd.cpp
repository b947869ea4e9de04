#include "sparse_mla_bwd.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention.hpp"
#include "load.hpp"
#include "selected.hpp"

namespace dsa::reference {

namespace {

/// The heads of one query that read one KV group, empty heads left out.
struct LiveHeads {
  std::vector<int64_t> heads;  ///< their numbers in [0, h_q)
  Matrix q;                    ///< [heads, 576]
  Matrix d_out;                ///< [heads, 512]
  Vector lse;                  ///< [heads] finite
  Vector delta;                ///< [heads]
  Vector sink;                 ///< [heads] factor of P, 1 without a sink
};

LiveHeads live_heads(const SparseMlaBwdArgs& args, int64_t batch, int64_t query, int64_t group) {
  const int64_t per_group = args.h_q / args.g;
  const int64_t first_row = (batch * args.s_q + query) * args.h_q;
  LiveHeads live;
  for (int64_t h = group * per_group; h < (group + 1) * per_group; ++h) {
    if (args.lse[first_row + h] != float(kInfinity)) live.heads.push_back(h);
  }
  const int64_t n = live.heads.size();
  live.q.resize(n, kDimQK);
  live.d_out.resize(n, kDimV);
  live.lse.resize(n);
  live.delta.resize(n);
  live.sink = Vector::Ones(n);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = first_row + live.heads[i];
    live.q.row(i) = load_rows(args.q, row, 1, kDimQK);
    live.d_out.row(i) = load_rows(args.d_out, row, 1, kDimV);
    live.lse[i] = args.lse[row];
    live.delta[i] = live.d_out.row(i).dot(load_rows(args.out, row, 1, kDimV).row(0));
    if (args.attn_sink) live.sink[i] = sink_factor(args.attn_sink[live.heads[i]], live.lse[i]);
  }
  return live;
}

/// P and dS of some heads and some KV rows.
struct ScoreGradient {
  Matrix p;   ///< [heads, n]
  Matrix ds;  ///< [heads, n]
};

ScoreGradient score_gradient(const LiveHeads& live, const Matrix& kv, double sm_scale) {
  const Matrix logits = sm_scale * (live.q * kv.transpose());
  const Matrix dp = live.d_out * kv.leftCols(kDimV).transpose();
  ScoreGradient gradient;
  gradient.p = (logits.colwise() - live.lse).array().exp().colwise() * live.sink.array();
  gradient.ds = gradient.p.array() * (dp.colwise() - live.delta).array() * sm_scale;
  return gradient;
}

/// What the given rows get from the given heads, [n, 576].
Matrix kv_gradient(const LiveHeads& live, const ScoreGradient& gradient) {
  Matrix dkv = gradient.ds.transpose() * live.q;
  dkv.leftCols(kDimV) += gradient.p.transpose() * live.d_out;
  return dkv;
}

/// Gradient of one query; adds its share of the gradient of kv to `dkv` unless that is null.
QueryGradient backward_query(const SparseMlaBwdArgs& args, int64_t batch, int64_t query, Matrix* dkv) {
  const SparseMlaFwdArgs forward = forward_of(args);
  const int64_t first_row = (batch * args.s_q + query) * args.h_q;

  QueryGradient result;
  result.dq = Matrix::Zero(args.h_q, kDimQK);
  result.delta = load_rows(args.out, first_row, args.h_q, kDimV)
                     .cwiseProduct(load_rows(args.d_out, first_row, args.h_q, kDimV))
                     .rowwise()
                     .sum();
  for (int64_t group = 0; group < args.g; ++group) {
    const LiveHeads live = live_heads(args, batch, query, group);
    const std::vector<int64_t> rows = selected_rows(forward, batch, query, group, 0, args.topk);
    const Matrix kv = load_kv(forward, batch, group, rows);
    const ScoreGradient gradient = score_gradient(live, kv, args.sm_scale);

    const Matrix dq = gradient.ds * kv;
    for (std::size_t i = 0; i < live.heads.size(); ++i) result.dq.row(live.heads[i]) = dq.row(i);

    if (dkv) {
      const Matrix share = kv_gradient(live, gradient);
      for (std::size_t j = 0; j < rows.size(); ++j) {
        dkv->row((batch * args.s_kv + rows[j]) * args.g + group) += share.row(j);
      }
    }
  }
  return result;
}

}  // namespace

SparseMlaFwdArgs forward_of(const SparseMlaBwdArgs& args) {
  SparseMlaFwdArgs forward;
  forward.b = args.b;
  forward.s_q = args.s_q;
  forward.s_kv = args.s_kv;
  forward.h_q = args.h_q;
  forward.g = args.g;
  forward.topk = args.topk;
  forward.sm_scale = args.sm_scale;
  forward.causal = args.causal;
  forward.q_start = args.q_start;
  forward.kv_stride = args.kv_stride;
  forward.q = args.q;
  forward.kv = args.kv;
  forward.indices = args.indices;
  forward.topk_length = args.topk_length;
  forward.attn_sink = args.attn_sink;
  return forward;
}

QueryGradient sparse_mla_bwd_query(const SparseMlaBwdArgs& args, int64_t batch, int64_t query) {
  return backward_query(args, batch, query, nullptr);
}

Matrix sparse_mla_bwd_dkv(const SparseMlaBwdArgs& args) {
  Matrix dkv = Matrix::Zero(int64_t(args.b) * args.s_kv * args.g, kDimQK);
  for (int64_t batch = 0; batch < args.b; ++batch) {
    for (int64_t query = 0; query < args.s_q; ++query) backward_query(args, batch, query, &dkv);
  }
  return dkv;
}

RowVector sparse_mla_bwd_dkv_row(const SparseMlaBwdArgs& args, int64_t batch, int64_t row, int64_t group) {
  const SparseMlaFwdArgs forward = forward_of(args);
  const Matrix kv = load_kv(forward, batch, group, {row});
  RowVector dkv = RowVector::Zero(kDimQK);
  for (int64_t query = 0; query < args.s_q; ++query) {
    const int32_t* indices = indices_of(forward, batch, query, group);
    int64_t times = 0;
    for (int64_t slot = 0; slot < args.topk; ++slot) {
      if (indices[slot] == row && is_valid_slot(forward, batch, query, slot, indices[slot])) ++times;
    }
    if (times == 0) continue;
    const LiveHeads live = live_heads(args, batch, query, group);
    dkv += double(times) * kv_gradient(live, score_gradient(live, kv, args.sm_scale)).row(0);
  }
  return dkv;
}

void sparse_mla_bwd(const SparseMlaBwdArgs& args) {
  Matrix dkv = Matrix::Zero(int64_t(args.b) * args.s_kv * args.g, kDimQK);
  for (int64_t batch = 0; batch < args.b; ++batch) {
    for (int64_t query = 0; query < args.s_q; ++query) {
      const QueryGradient gradient = backward_query(args, batch, query, &dkv);
      const int64_t first_row = (batch * args.s_q + query) * args.h_q;
      for (int64_t h = 0; h < args.h_q; ++h) {
        if (args.delta) args.delta[first_row + h] = float(gradient.delta[h]);
        if (!args.dq) continue;
        for (int d = 0; d < kDimQK; ++d) {
          args.dq[(first_row + h) * kDimQK + d] = to_bf16(float(gradient.dq(h, d)));
        }
      }
    }
  }
  for (int64_t i = 0; i < dkv.size(); ++i) {
    if (args.dkv) args.dkv[i] = to_bf16(float(dkv.data()[i]));
    if (args.dkv_f32) args.dkv_f32[i] = float(dkv.data()[i]);
  }
}

}  // namespace dsa::reference
