/// @file dense_mla.hpp
/// Dense MLA attention: every query attends to every KV row it may see. Sparse MLA is this with most rows
/// left out; given the indices of all visible rows it gives the same result.
///
/// Multi-head latent attention stores one row of 576 values per token instead of keys and values per head:
/// 512 latent values c and 64 values r that carry the position (rope). The up-projections that would turn c
/// into keys and values are absorbed into q and into the output projection, so what remains is attention with
/// many query heads and one shared KV head:
///
///     logit[i, h, j] = sm_scale * (q_latent[i, h] . c[j] + q_rope[i, h] . r[j])
///     out[i, h]      = sum_j softmax_j(logit[i, h, j]) * c[j]
///
/// Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1; the absorbed form is its "MQA mode" in the
/// DeepSeek-V3.2-Exp report.
#pragma once

#include "attention.hpp"

namespace dsa::reference {

/// Final attention of one query, all h_q heads, over rows 0 .. s_kv - 1, or 0 .. last_visible_row when
/// causal. Takes the arguments of the sparse forward; `indices`, `topk` and `topk_length` are not looked at.
Attention dense_mla_query(const SparseMlaFwdArgs& args, int64_t batch, int64_t query);

}  // namespace dsa::reference
