#include <algorithm>
#include <cmath>
#include <mutex>
#include <random>

#include "../../reference/attention.hpp"
#include "../../reference/load.hpp"
#include "../../reference/selected.hpp"
#include "../../reference/sparse_mla_bwd.hpp"
#include "expectation.hpp"
#include "parallel.hpp"
#include "tolerance.hpp"

namespace dsa::harness {

namespace {

using reference::forward_of;
using reference::Matrix;
using reference::Vector;

/// Where the expected gradients come from. Autograd, which made the files, never rounds `out`; the contract
/// takes delta from the rounded `out` that it is given, and dS then differs by P sm_scale times the
/// difference.
enum class Origin { kReference, kAutograd };

/// What rounding alone may leave of dS = P (dP - delta) sm_scale: dP and delta are float32 sums whose
/// difference can cancel completely (it does where one slot has all the weight), so the error is relative to
/// the sizes of the vectors, not to dS. Of one query and group; rows are the group's heads.
struct Noise {
  std::vector<int64_t> rows;  ///< the valid KV rows
  Matrix of_ds;               ///< [heads, rows]
  Matrix q, kv;               ///< [heads, 576] and [rows, 576]
  Vector delta_size;          ///< [heads]
};

Noise noise_of(const SparseMlaBwdArgs& args, Origin origin, int64_t batch, int64_t query, int64_t group) {
  const SparseMlaFwdArgs forward = forward_of(args);
  const int64_t heads = args.h_q / args.g;
  const int64_t first = (batch * args.s_q + query) * args.h_q + group * heads;
  Noise noise;
  noise.rows = reference::selected_rows(forward, batch, query, group, 0, args.topk);
  const Matrix q = noise.q = reference::load_query(forward, batch, query, group);
  const Matrix kv = noise.kv = reference::load_kv(forward, batch, group, noise.rows);
  const Matrix d_out = reference::load_rows(args.d_out, first, heads, kDimV);
  const Matrix out = reference::load_rows(args.out, first, heads, kDimV);
  const Vector v_size = kv.leftCols(kDimV).rowwise().norm();
  const Matrix logits = args.sm_scale * (q * kv.transpose());
  noise.delta_size = d_out.rowwise().norm().cwiseProduct(out.rowwise().norm());
  noise.of_ds = Matrix::Zero(heads, kv.rows());
  for (int64_t h = 0; h < heads; ++h) {
    const double lse = args.lse[first + h];
    if (!std::isfinite(lse)) continue;
    const double sink = args.attn_sink ? reference::sink_factor(args.attn_sink[group * heads + h], lse) : 1;
    const reference::RowVector p = sink * (logits.row(h).array() - lse).exp();
    const double d_out_size = d_out.row(h).norm();
    const Vector dp = kv.leftCols(kDimV) * d_out.row(h).transpose();
    const double delta = out.row(h).dot(d_out.row(h));
    const double of_delta = origin == Origin::kAutograd ? std::fabs(p.dot(dp) - delta) : 0;
    for (int64_t j = 0; j < kv.rows(); ++j) {
      const double of_sums = kF32Sum * (d_out_size * v_size[j] + noise.delta_size[h]);
      const double of_p = logit_slack(lse) * std::fabs(dp[j] - delta);
      noise.of_ds(h, j) = args.sm_scale * p[j] * (of_sums + of_delta + of_p);
    }
  }
  return noise;
}

/// Calls visit(batch, query, group, noise) for all groups of the given queries.
template <class Visit>
void for_each_noise(const SparseMlaBwdArgs& args, Origin origin, const std::vector<int64_t>& queries,
                    const Visit& visit) {
  parallel_for(int64_t(queries.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = queries[std::size_t(i)] / args.s_q, query = queries[std::size_t(i)] % args.s_q;
      for (int64_t group = 0; group < args.g; ++group) {
        visit(i, batch, group, noise_of(args, origin, batch, query, group));
      }
    }
  });
}

/// Excuses of dq: [queries * h_q, 576].
std::vector<double> dq_noise(const SparseMlaBwdArgs& args, Origin origin,
                             const std::vector<int64_t>& queries) {
  const int64_t heads = args.h_q / args.g;
  std::vector<double> result(queries.size() * std::size_t(args.h_q) * kDimQK);
  for_each_noise(args, origin, queries, [&](int64_t i, int64_t, int64_t group, const Noise& noise) {
    const Matrix sums = noise.of_ds * noise.kv.cwiseAbs();
    std::copy_n(sums.data(), sums.size(), result.begin() + (i * args.h_q + group * heads) * kDimQK);
  });
  return result;
}

/// Excuses of delta: |out| |d_out|, [queries * h_q] elements, to be multiplied by kF32Sum.
std::vector<double> delta_scale(const SparseMlaBwdArgs& args, const std::vector<int64_t>& queries) {
  std::vector<double> result;
  for (int64_t query : queries) {
    const Matrix out = reference::load_rows(args.out, query * args.h_q, args.h_q, kDimV);
    const Matrix d_out = reference::load_rows(args.d_out, query * args.h_q, args.h_q, kDimV);
    for (int64_t h = 0; h < args.h_q; ++h) result.push_back(out.row(h).norm() * d_out.row(h).norm());
  }
  return result;
}

/// Excuses of dkv for all rows. (Sampled rows of large problems are random data, where nothing cancels.)
std::vector<double> dkv_noise(const SparseMlaBwdArgs& args, Origin origin) {
  std::vector<double> result(std::size_t(int64_t(args.b) * args.s_kv * args.g * kDimQK));
  std::mutex mutex;
  const auto add = [&](int64_t, int64_t batch, int64_t group, const Noise& noise) {
    const Matrix sums = noise.of_ds.transpose() * noise.q.cwiseAbs();
    const std::lock_guard lock(mutex);
    for (int64_t j = 0; j < sums.rows(); ++j) {
      const int64_t row = (batch * args.s_kv + noise.rows[std::size_t(j)]) * args.g + group;
      for (int64_t d = 0; d < kDimQK; ++d) result[std::size_t(row * kDimQK + d)] += sums(j, d);
    }
  };
  for_each_noise(args, origin, sample(int64_t(args.b) * args.s_q, 0, 0), add);
  return result;
}

/// Relative error that the largest |lse| excuses.
double slack_of(const SparseMlaBwdArgs& args) {
  double slack = 0;
  for (int64_t i = 0; i < int64_t(args.b) * args.s_q * args.h_q; ++i) {
    slack = std::max(slack, logit_slack(args.lse[i]));
  }
  return slack;
}

/// Sampled KV rows: the ends of the tensor, some that are selected, and some at random.
std::vector<int64_t> sample_kv_rows(const SparseMlaBwdArgs& args, int64_t n, uint64_t seed) {
  const int64_t count = int64_t(args.b) * args.s_kv * args.g;
  std::vector<int64_t> rows = sample(count, std::min(count, n / 2 + 2), seed);
  std::mt19937_64 random(seed);
  const int64_t slots = int64_t(args.b) * args.s_q * args.g * args.topk;
  for (int64_t i = 0; i < n / 2 && slots > 0; ++i) {
    const int64_t slot = std::uniform_int_distribution<int64_t>(0, slots - 1)(random);
    const int32_t row = args.indices[slot];
    if (row < 0 || row >= args.s_kv) continue;
    const int64_t group = slot / args.topk % args.g, batch = slot / args.topk / args.g / args.s_q;
    rows.push_back((batch * args.s_kv + row) * args.g + group);
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

Expectation expect_dkv(const SparseMlaBwdArgs& args, int64_t n, uint64_t seed) {
  const std::vector<int64_t> shape{args.b, args.s_kv, args.g, kDimQK};
  if (n == 0) {
    const int64_t count = int64_t(args.b) * args.s_kv * args.g;
    Expectation dkv = expectation("dkv", shape, sample(count, 0, 0));
    const Matrix all = reference::sparse_mla_bwd_dkv(args);
    std::copy_n(all.data(), all.size(), dkv.want.values.begin());
    dkv.noise = dkv_noise(args, Origin::kReference);
    return dkv;
  }
  Expectation dkv = expectation("dkv", shape, sample_kv_rows(args, n, seed));
  parallel_for(int64_t(dkv.want.rows.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t flat = dkv.want.rows[std::size_t(i)];
      const int64_t batch = flat / args.g / args.s_kv, row = flat / args.g % args.s_kv, group = flat % args.g;
      const reference::RowVector values = reference::sparse_mla_bwd_dkv_row(args, batch, row, group);
      std::copy(values.begin(), values.end(), dkv.want.values.begin() + i * kDimQK);
    }
  });
  return dkv;
}

}  // namespace

std::vector<Expectation> expect_bwd(const Problem& problem, int64_t n, uint64_t seed) {
  const auto args = std::get<SparseMlaBwdArgs>(host_args(problem));
  const std::vector<int64_t> queries = sample(int64_t(args.b) * args.s_q, n, seed);
  const std::vector<int64_t> heads = heads_of(queries, args.h_q);
  Expectation dq = expectation("dq", {args.b, args.s_q, args.h_q, kDimQK}, heads);
  Expectation delta = expectation("delta", {args.b, args.s_q, args.h_q}, queries);
  parallel_for(int64_t(queries.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t query = queries[std::size_t(i)];
      const reference::QueryGradient gradient =
          reference::sparse_mla_bwd_query(args, query / args.s_q, query % args.s_q);
      std::copy_n(gradient.dq.data(), gradient.dq.size(), dq.want.values.begin() + i * args.h_q * kDimQK);
      std::copy(gradient.delta.begin(), gradient.delta.end(), delta.want.values.begin() + i * args.h_q);
    }
  });
  const double slack = slack_of(args);
  dq.noise = dq_noise(args, Origin::kReference, queries);
  dq.row_slack.assign(heads.size(), slack);
  delta.element_scale = delta_scale(args, queries);

  Expectation dkv = expect_dkv(args, n, seed);
  dkv.row_slack.assign(dkv.want.values.size() / kDimQK, slack);
  Expectation dkv_f32 = dkv;
  dkv_f32.want.name = "dkv_f32";

  std::vector<Expectation> all;
  all.push_back(std::move(dq));
  all.push_back(std::move(delta));
  all.push_back(std::move(dkv));
  all.push_back(std::move(dkv_f32));
  return all;
}

void add_excuses_bwd(const Problem& problem, Expectation& output) {
  const auto args = std::get<SparseMlaBwdArgs>(host_args(problem));
  const std::vector<int64_t> queries = sample(int64_t(args.b) * args.s_q, 0, 0);
  if (output.want.name == "delta") {
    output.element_scale = delta_scale(args, queries);
    return;
  }
  output.noise = output.want.name == "dq" ? dq_noise(args, Origin::kAutograd, queries)
                                          : dkv_noise(args, Origin::kAutograd);
  output.row_slack.assign(output.want.values.size() / kDimQK, slack_of(args));
}

}  // namespace dsa::harness
