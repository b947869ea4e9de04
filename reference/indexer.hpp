/// @file indexer.hpp
/// The lightning indexer: a cheap score of every KV row for every query, from which top-k selects.
///
///     logits[i, j] = k_scale[j] * sum_h weights[i, h] * max(q[i, h] . k[j], 0)      ks[i] <= j < ke[i]
///
/// The ReLU is inside the sum over heads and weights may be negative, so a logit may be negative too and is
/// not clamped again. max(NaN, 0) is 0, as fmaxf gives. Heads `h` run over h_i, dot products over d_i.
///
/// Source: DeepSeek-V3.2-Exp technical report, equation 1; scales folded as in its inference code.
#pragma once

#include "contracts.hpp"
#include "types.hpp"

namespace dsa::reference {

/// Logits of one query, [s_kv]; -inf outside its window whatever `args.clean` is.
RowVector indexer_row(const IndexerArgs& args, int64_t query);

/// All queries: writes args.logits rounded to float32. Columns outside the window get -inf if `args.clean`
/// and are left untouched otherwise; columns past s_kv (padding up to logits_stride) are never touched.
void indexer(const IndexerArgs& args);

}  // namespace dsa::reference
