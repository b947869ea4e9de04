/// @file index_topk_chunk.cuh
/// A chunk of index_topk: as many queries as the scratch has room for, as a problem of the indexer and one of top-k.
#pragma once

#include "../../reference/contracts.hpp"
#include "../device/device.cuh"

namespace dsa {

// [chunks]
/// Queries first .. first + count - 1 as problems of the two stages.
static inline IndexerArgs scoring(const IndexTopkArgs& a, int first, int count) {
  IndexerArgs i;
  i.s_q = count, i.s_kv = a.s_kv, i.h_i = a.h_i, i.d_i = a.d_i;
  i.clean = false;
  i.logits_stride = a.logits_stride;
  i.q = a.q + int64_t(first) * a.h_i * a.d_i;
  i.k = a.k, i.k_scale = a.k_scale;
  i.weights = a.weights + int64_t(first) * a.h_i;
  i.ks = a.ks + first, i.ke = a.ke + first;
  i.logits = a.logits;
  return i;
}
static inline TopkArgs selection(const IndexTopkArgs& a, int first, int count) {
  TopkArgs t;
  t.rows = count, t.n = a.s_kv, t.topk = a.topk;
  t.deterministic = a.deterministic;
  t.logits_stride = a.logits_stride;
  t.logits = a.logits;
  t.ks = a.ks + first, t.ke = a.ke + first;
  t.indices = a.indices + int64_t(first) * a.topk;
  return t;
}
// [chunks]

}  // namespace dsa
