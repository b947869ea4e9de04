/// @file sparse_mla_bwd.hpp
/// Sparse MLA backward: gradients of q and kv, given the gradient d_out of the forward's output.
///
/// For query i, head h and valid slot j, with k = kv[row, 0:576] and v = kv[row, 0:512] of the row in slot j:
///
///     P[j]   = exp(logit[j] - lse)  [* 1 / (1 + exp(sink - lse))]          the forward's softmax, recomputed
///     dP[j]  = d_out[i, h] . v
///     delta  = out[i, h] . d_out[i, h]                                      = sum_j P[j] dP[j]
///     dS[j]  = P[j] * (dP[j] - delta) * sm_scale
///
///     dq[i, h]        = sum_j dS[j] * k
///     dkv[row, 0:576] += dS[j] * q[i, h]                                    the row as a key
///     dkv[row, 0:512] += P[j] * d_out[i, h]                                 the same row as a value
///
/// `out` and `lse` are inputs, as the forward stored them (bf16 and float32). A head with lse = +inf is
/// empty: it contributes exactly nothing, whatever its other tensors hold. A row nobody selected gets exactly
/// 0.
///
/// Source: Dao, "FlashAttention-2" (arXiv 2307.08691), algorithm 2, for the recomputation with lse and delta.
#pragma once

#include "contracts.hpp"
#include "types.hpp"

namespace dsa::reference {

/// The forward problem whose gradients `args` asks for: same sizes, inputs and validity, no outputs.
SparseMlaFwdArgs forward_of(const SparseMlaBwdArgs& args);

struct QueryGradient {
  Matrix dq;     ///< [h_q, 576]
  Vector delta;  ///< [h_q]
};

/// Gradient of one query, all heads. The output pointers of `args` are not used.
QueryGradient sparse_mla_bwd_query(const SparseMlaBwdArgs& args, int64_t batch, int64_t query);

/// The whole gradient of kv in float64: [b * s_kv * g, 576], row (batch * s_kv + row) * g + group.
Matrix sparse_mla_bwd_dkv(const SparseMlaBwdArgs& args);

/// Gradient of one KV row, [576], gathered from the queries that selected it instead of scattered from all of
/// them: the same sum in the other order. One pass over the indices and one row of memory, so that a few rows
/// of a huge problem can be checked.
RowVector sparse_mla_bwd_dkv_row(const SparseMlaBwdArgs& args, int64_t batch, int64_t row, int64_t group);

/// The whole problem: writes dq and dkv (rounded to bf16), dkv_f32 and delta. Outputs that are null are left
/// out.
void sparse_mla_bwd(const SparseMlaBwdArgs& args);

}  // namespace dsa::reference
