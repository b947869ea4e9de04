/// @file sparse_data.hpp
/// Data with which sparse attention goes wrong, shared by the forward's and the backward's cases.
#pragma once

#include "generate.hpp"

namespace dsa::harness {

/// A forward problem with a claim about its data; bf16 unless named otherwise.
struct SparseCase {
  std::string name;
  std::string what;
  std::function<Problem()> make;
  std::function<bool(const Problem&)> holds = nullptr;
  bool forward_only = false;
};

/// Cases that are run forward and backward. Every one is small: at most 6 queries and 200 slots.
std::vector<SparseCase> shared_sparse_cases();

/// Keeps `count` random slots of a query valid, in the given places; the others become -1.
void keep_slots(Problem& problem, int64_t batch, int64_t query,
                const std::function<bool(int64_t slot)>& keep);

/// Gives head h of every query the coordinates `q` and every KV row the coordinates `k` in the rope columns,
/// which do not appear in V; all other columns of q become 0. The logit is then sm_scale * sum_i q(h)[i]
/// k(row)[i], exactly.
void set_logits(Problem& problem, const std::function<std::vector<float>(int64_t head)>& q,
                const std::function<std::vector<float>(int64_t row)>& k);

}  // namespace dsa::harness
