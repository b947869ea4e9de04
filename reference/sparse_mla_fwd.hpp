/// @file sparse_mla_fwd.hpp
/// Sparse MLA forward: attention of each query over the KV rows that its slots select.
///
///     rows       = [indices[i, j] for every valid slot j]              (selected.hpp)
///     logit[j]   = sm_scale * (q[i, h] . kv[rows[j], 0:576])           times q_scale * kv_scale for FP8
///     lse        = log(sum_j exp(logit[j]))                            max_logits = max_j logit[j]
///     out[i, h]  = sum_j exp(logit[j] - lse) * kv[rows[j], 0:512]      times 1 / (1 + exp(sink - lse))
///
/// A query without a valid slot has out = 0, lse = +inf, max_logits = -inf.
///
/// Source: DeepSeek-V3.2-Exp technical report, equation 2; the outputs are FlashMLA's.
#pragma once

#include "attention.hpp"

namespace dsa::reference {

/// Partial attention of one query, all h_q heads, over its slots [slot_begin, slot_end) only. Partials over
/// disjoint ranges `merge` into the whole: this is split-KV.
Attention sparse_mla_fwd_slots(const SparseMlaFwdArgs& args, int64_t batch, int64_t query, int64_t slot_begin,
                               int64_t slot_end);

/// Final attention of one query: out [h_q, 512], lse [h_q], max_logits [h_q]. Reads only the rows this query
/// needs, so that a few queries of a huge problem can be checked cheaply. The output pointers are not used.
Attention sparse_mla_fwd_query(const SparseMlaFwdArgs& args, int64_t batch, int64_t query);

/// All queries: writes args.out (rounded to bf16), args.lse and args.max_logits.
void sparse_mla_fwd(const SparseMlaFwdArgs& args);

}  // namespace dsa::reference
