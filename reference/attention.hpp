/// @file attention.hpp
/// Softmax attention of a few query heads over a few KV rows, and the algebra that joins partial results.
///
///     S = sm_scale * Q K^T          m = max_j S[h, j]          l = sum_j exp(S[h, j] - m)
///     lse = m + log(l)              out = sum_j exp(S[h, j] - lse) * V[j]
///
/// Subtracting the maximum is what lets logits of 1e4 through without overflow. K is the whole KV row, V its
/// first 512 columns.
///
/// Source: Dao et al., "FlashAttention" (arXiv 2205.14135) for m, l and the merge; the natural logarithm
/// throughout.
#pragma once

#include "contracts.hpp"
#include "types.hpp"

namespace dsa::reference {

/// Attention of some heads. As a *partial* result, over some of a query's rows, an empty row has lse = -inf,
/// the logarithm of an empty sum. As a *final* result, after `finalize`, an empty row has lse = +inf.
struct Attention {
  Matrix out;         ///< [heads, 512]
  Vector lse;         ///< [heads] natural logarithm of sum_j exp(logit), without the sink
  Vector max_logits;  ///< [heads] largest logit, -inf when there is none

  /// Attention over no rows at all: out = 0, lse = max_logits = -inf.
  static Attention empty(int64_t heads);

  /// Replaces heads first, first + 1, ... by those of `part`.
  void set_heads(int64_t first, const Attention& part);
};

/// Partial attention of q [heads, 576] over kv [n, 576]; n may be 0.
Attention attend(const Matrix& q, const Matrix& kv, double sm_scale);

/// Joins two partial results of the same heads over disjoint sets of slots:
///
///     lse = log(exp(lse_a) + exp(lse_b))
///     out = exp(lse_a - lse) * out_a + exp(lse_b - lse) * out_b
///
/// An empty partial merges as nothing. Both arguments must be partial, not final.
Attention merge(const Attention& a, const Attention& b);

/// 1 / (1 + exp(sink - lse)): the share of the softmax that is left when a sink with logit `sink` joins it.
/// 1 for sink = -inf, 0 for sink = +inf; no finite float overflows. lse is finite.
double sink_factor(double sink, double lse);

/// Turns a partial result over *all* of a query's slots into the contract's: multiplies `out` by the sink
/// factor (lse and max_logits stay without it) and gives empty rows lse = +inf.
/// @param attn_sink [heads] or null
Attention finalize(Attention partial, const float* attn_sink);

}  // namespace dsa::reference
