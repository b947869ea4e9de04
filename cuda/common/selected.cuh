/// @file selected.cuh
/// Which KV row a slot of the index list reads: the validity rule of contracts.hpp, shared by every forward and
/// backward kernel.
#pragma once

#include "../device/device.cuh"

namespace dsa {

/// Number of slots of query (`batch`, `query`) that may be valid: topk_length clamped to [0, topk].
/// @tparam A SparseMlaFwdArgs or SparseMlaBwdArgs
template <class A> DSA_DEVICE int slot_count(const A& a, int batch, int query) {
  if (a.topk_length == nullptr) return a.topk;
  const int length = a.topk_length[int64_t(batch) * a.s_q + query];
  return length < 0 ? 0 : length > a.topk ? a.topk : length;
}

/// One past the last KV row that `query` may read: s_kv, or less when causal.
template <class A> DSA_DEVICE int64_t row_limit(const A& a, int query) {
  if (!a.causal) return a.s_kv;
  // floor((q_start + query + 1 - kv_stride) / kv_stride), plus one; see last_visible_row in contracts.hpp.
  const int64_t seen = a.q_start + query + 1;
  const int64_t rows = seen < a.kv_stride ? 0 : seen / a.kv_stride;
  return rows < a.s_kv ? rows : a.s_kv;
}

/// The index list of (`batch`, `query`, `group`): topk entries.
template <class A> DSA_DEVICE const int32_t* index_list(const A& a, int batch, int query, int group) {
  return a.indices + ((int64_t(batch) * a.s_q + query) * a.g + group) * a.topk;
}

}  // namespace dsa
