#include "selected.hpp"

namespace dsa::reference {

bool is_valid_slot(const SparseMlaFwdArgs& args, int64_t batch, int64_t query, int64_t slot, int32_t row) {
  if (row < 0 || row >= args.s_kv) return false;
  // Slots run over [0, topk), so a length below 0 or above topk needs no clamping.
  if (args.topk_length && slot >= args.topk_length[batch * args.s_q + query]) return false;
  return !args.causal || row <= last_visible_row(query, args.q_start, args.kv_stride);
}

const int32_t* indices_of(const SparseMlaFwdArgs& args, int64_t batch, int64_t query, int64_t group) {
  return args.indices + ((batch * args.s_q + query) * args.g + group) * args.topk;
}

std::vector<int64_t> selected_rows(const SparseMlaFwdArgs& args, int64_t batch, int64_t query, int64_t group,
                                   int64_t slot_begin, int64_t slot_end) {
  const int32_t* indices = indices_of(args, batch, query, group);
  std::vector<int64_t> rows;
  rows.reserve(slot_end - slot_begin);
  for (int64_t slot = slot_begin; slot < slot_end; ++slot) {
    if (is_valid_slot(args, batch, query, slot, indices[slot])) rows.push_back(indices[slot]);
  }
  return rows;
}

}  // namespace dsa::reference
