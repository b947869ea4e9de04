#include "brute_force.hpp"

#include <cmath>
#include <cstring>
#include <limits>

namespace dsa::test {

namespace {
constexpr double kInf = std::numeric_limits<double>::infinity();
}

double value_of(bf16 x) {
  const int sign = x.bits >> 15, exponent = (x.bits >> 7) & 255, mantissa = x.bits & 127;
  double magnitude;
  if (exponent == 255) {
    magnitude = mantissa ? std::nan("") : kInf;
  } else if (exponent == 0) {
    magnitude = mantissa / 128.0 * std::pow(2.0, -126);
  } else {
    magnitude = (1 + mantissa / 128.0) * std::pow(2.0, exponent - 127);
  }
  return sign ? -magnitude : magnitude;
}

double value_of(e4m3 x) {
  const int code = x.bits % 128;
  if (code == 127) return std::nan("");
  const int exponent = code / 8, mantissa = code % 8;
  const double magnitude =
      exponent == 0 ? mantissa / 512.0 : (1 + mantissa / 8.0) * std::pow(2.0, exponent - 7);
  return x.bits >= 128 ? -magnitude : magnitude;
}

std::vector<double> brute_indexer_row(const IndexerArgs& args, int64_t query) {
  std::vector<double> logits;
  for (int j = 0; j < args.s_kv; ++j) {
    if (j < args.ks[query] || j >= args.ke[query]) {
      logits.push_back(-kInf);
      continue;
    }
    double logit = 0;
    for (int h = 0; h < args.h_i; ++h) {
      double dot = 0;
      for (int d = 0; d < args.d_i; ++d) {
        dot += value_of(args.q[(query * args.h_i + h) * args.d_i + d]) *
               value_of(args.k[int64_t(j) * args.d_i + d]);
      }
      if (dot > 0) logit += args.weights[query * args.h_i + h] * dot;  // a NaN is not greater than 0
    }
    logits.push_back(logit * args.k_scale[j]);
  }
  return logits;
}

std::vector<double> brute_q(const SparseMlaFwdArgs& args) {
  std::vector<double> values;
  const int64_t count = int64_t(args.b) * args.s_q * args.h_q * kDimQK;
  for (int64_t i = 0; i < count; ++i) {
    double value = args.fp8 ? value_of(static_cast<const e4m3*>(args.q)[i])
                            : value_of(static_cast<const bf16*>(args.q)[i]);
    if (args.fp8 && args.q_scale) value *= args.q_scale[i / kDimQK];
    values.push_back(value);
  }
  return values;
}

std::vector<double> brute_kv(const SparseMlaFwdArgs& args) {
  std::vector<double> values;
  const int64_t count = int64_t(args.b) * args.s_kv * args.g * kDimQK;
  for (int64_t i = 0; i < count; ++i) {
    double value = args.fp8 ? value_of(static_cast<const e4m3*>(args.kv)[i])
                            : value_of(static_cast<const bf16*>(args.kv)[i]);
    if (args.fp8 && args.kv_scale) value *= args.kv_scale[i / kDimQK];
    values.push_back(value);
  }
  return values;
}

bool brute_valid(const SparseMlaFwdArgs& args, int64_t batch, int64_t query, int64_t slot, int64_t row) {
  bool valid = true;
  if (row < 0) valid = false;
  if (row > args.s_kv - 1) valid = false;
  if (args.topk_length && slot + 1 > args.topk_length[batch * args.s_q + query]) valid = false;
  if (args.causal) {
    const double position = double(args.q_start + query);
    if (double(row) > std::floor((position + 1 - args.kv_stride) / args.kv_stride)) valid = false;
  }
  return valid;
}

BruteRow brute_forward(const SparseMlaFwdArgs& args, const std::vector<double>& q,
                       const std::vector<double>& kv, int64_t batch, int64_t query, int64_t head) {
  const int64_t group = head / (args.h_q / args.g);
  const double* query_row = &q[((batch * args.s_q + query) * args.h_q + head) * kDimQK];
  std::vector<double> logits;
  std::vector<const double*> rows;
  BruteRow result{std::vector<double>(kDimV, 0.0), kInf, -kInf};
  for (int64_t slot = 0; slot < args.topk; ++slot) {
    const int64_t row = args.indices[((batch * args.s_q + query) * args.g + group) * args.topk + slot];
    if (!brute_valid(args, batch, query, slot, row)) continue;
    rows.push_back(&kv[((batch * args.s_kv + row) * args.g + group) * kDimQK]);
    double logit = 0;
    for (int d = 0; d < kDimQK; ++d) logit += query_row[d] * rows.back()[d] * args.sm_scale;
    logits.push_back(logit);
    if (logit > result.max_logit) result.max_logit = logit;
  }
  if (logits.empty()) return result;

  double sum = 0;
  for (double logit : logits) sum += std::exp(logit - result.max_logit);
  result.lse = std::log(sum) + result.max_logit;
  double denominator = sum;
  if (args.attn_sink) denominator += std::exp(double(args.attn_sink[head]) - result.max_logit);
  for (std::size_t j = 0; j < logits.size(); ++j) {
    const double p = std::exp(logits[j] - result.max_logit) / denominator;
    for (int d = 0; d < kDimV; ++d) result.out[d] += p * rows[j][d];
  }
  return result;
}

SparseMlaFwdArgs forward_args(const SparseMlaBwdArgs& args) {
  SparseMlaFwdArgs f;
  f.b = args.b, f.s_q = args.s_q, f.s_kv = args.s_kv, f.h_q = args.h_q, f.g = args.g, f.topk = args.topk;
  f.sm_scale = args.sm_scale, f.causal = args.causal, f.q_start = args.q_start, f.kv_stride = args.kv_stride;
  f.q = args.q, f.kv = args.kv, f.indices = args.indices;
  f.topk_length = args.topk_length, f.attn_sink = args.attn_sink;
  return f;
}

BruteGradient brute_backward(const SparseMlaBwdArgs& args, bool exact_out) {
  const SparseMlaFwdArgs f = forward_args(args);
  const std::vector<double> q = brute_q(f), kv = brute_kv(f);
  BruteGradient result;
  result.dq.assign(q.size(), 0.0);
  result.dkv.assign(kv.size(), 0.0);
  for (int64_t row = 0; row < int64_t(args.b) * args.s_q * args.h_q; ++row) {
    const int64_t head = row % args.h_q, query = row / args.h_q % args.s_q, batch = row / args.h_q / args.s_q;
    const int64_t group = head / (args.h_q / args.g);
    const std::vector<double> exact = brute_forward(f, q, kv, batch, query, head).out;
    double delta = 0;
    for (int d = 0; d < kDimV; ++d) {
      const double out = exact_out ? exact[d] : value_of(args.out[row * kDimV + d]);
      delta += out * value_of(args.d_out[row * kDimV + d]);
    }
    result.delta.push_back(delta);
    const double lse = args.lse[row];
    if (lse == kInf) continue;
    for (int64_t slot = 0; slot < args.topk; ++slot) {
      const int64_t index = args.indices[((batch * args.s_q + query) * args.g + group) * args.topk + slot];
      if (!brute_valid(f, batch, query, slot, index)) continue;
      const int64_t at = ((batch * args.s_kv + index) * args.g + group) * kDimQK;
      double logit = 0, dp = 0;
      for (int d = 0; d < kDimQK; ++d) logit += q[row * kDimQK + d] * kv[at + d] * args.sm_scale;
      for (int d = 0; d < kDimV; ++d) dp += value_of(args.d_out[row * kDimV + d]) * kv[at + d];
      double p = std::exp(logit - lse);
      if (args.attn_sink) p /= 1 + std::exp(args.attn_sink[head] - lse);
      for (int d = 0; d < kDimQK; ++d) {
        result.dq[row * kDimQK + d] += p * (dp - delta) * args.sm_scale * kv[at + d];
        result.dkv[at + d] += p * (dp - delta) * args.sm_scale * q[row * kDimQK + d];
        if (d < kDimV) result.dkv[at + d] += p * value_of(args.d_out[row * kDimV + d]);
      }
    }
  }
  return result;
}

void brute_forward_outputs(const SparseMlaFwdArgs& args) {
  const std::vector<double> q = brute_q(args), kv = brute_kv(args);
  for (int64_t row = 0; row < int64_t(args.b) * args.s_q * args.h_q; ++row) {
    const BruteRow result =
        brute_forward(args, q, kv, row / args.h_q / args.s_q, row / args.h_q % args.s_q, row % args.h_q);
    for (int d = 0; d < kDimV; ++d) args.out[row * kDimV + d] = to_bf16(float(result.out[d]));
    args.lse[row] = float(result.lse);
  }
}

double worst_error(const double* got, const std::vector<double>& want) {
  double worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i]) && std::isnan(got[i])) continue;
    if (got[i] == want[i]) continue;  // equal infinities too
    const double error = std::fabs(got[i] - want[i]) / (1 + std::fabs(want[i]));
    if (!(error <= worst)) worst = std::isfinite(error) ? error : kInf;
    if (worst == kInf) break;
  }
  return worst;
}

double worst_error(const std::vector<double>& got, const std::vector<double>& want) {
  return got.size() == want.size() ? worst_error(got.data(), want) : kInf;
}

}  // namespace dsa::test
