/// @file selected.hpp
/// Which KV rows a query attends to: the one place where a slot of `indices` is judged valid or not.
#pragma once

#include <vector>

#include "contracts.hpp"

namespace dsa::reference {

/// Whether `row`, found in slot `slot` of query `query`, takes part. It does iff
///
///     0 <= row < s_kv  and  slot < topk_length  and (causal only)  row <= last_visible_row(query)
///
/// Any int32 is allowed as `row`; nobody may form an address from it before asking here.
bool is_valid_slot(const SparseMlaFwdArgs& args, int64_t batch, int64_t query, int64_t slot, int32_t row);

/// indices[batch, query, group, :], an array of `topk` rows.
const int32_t* indices_of(const SparseMlaFwdArgs& args, int64_t batch, int64_t query, int64_t group);

/// The valid rows of slots [slot_begin, slot_end) in slot order. A row selected twice stands there twice: it
/// counts with its multiplicity.
std::vector<int64_t> selected_rows(const SparseMlaFwdArgs& args, int64_t batch, int64_t query, int64_t group,
                                   int64_t slot_begin, int64_t slot_end);

}  // namespace dsa::reference
