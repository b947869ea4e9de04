/// @file topk_row.cuh
/// One row of the top-k selector: its window, how it is read 16 bytes at a time, and how a selection is written in order.
#pragma once

#include "../../reference/contracts.hpp"
#include "../device/device.cuh"
#include "../device/ptx.cuh"
#include "../device/trace.cuh"
#include "sortable_key.cuh"
#include "topk_search.cuh"

namespace dsa {

struct TopkRow {
  const float* logits;   ///< of column 0
  int first, last;       ///< the window [first, last): ks and ke clamped to the row
  int aligned;           ///< column at the 16-byte boundary at or before `first`; -3 at the least
  int32_t* indices;      ///< [k]
  int k;
};

DSA_DEVICE TopkRow topk_row(const TopkArgs& a, int row) {
  TopkRow r{a.logits + row * a.logits_stride, 0, 0, 0, a.indices + int64_t(row) * a.topk, a.topk};
  r.first = min(max(a.ks[row], 0), a.n);
  r.last = max(r.first, min(max(a.ke[row], 0), a.n));
  r.aligned = r.first - int(reinterpret_cast<uintptr_t>(r.logits + r.first) / sizeof(float) % 4);
  return r;
}

/// Columns are counted in 32 bits, up to a tile past the end of the row.
static inline const char* topk_row_unsupported(const TopkArgs& a) {
  return a.n > 0x7fffffff - 65536 ? "n must be below 2^31 - 65536 (columns are counted in 32 bits)" : nullptr;
}

DSA_DEVICE float4 load_inside(const float* x) {
  const uint4 bits = ptx::ld_global_nc_v4(x);
  return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z), __uint_as_float(bits.w));
}

/// Four logits from a 16-byte boundary on, NaN for columns outside the window. Only the quads at the two ends of a window
/// take the second branch; nothing outside is read.
// [load_quad]
DSA_DEVICE float4 load_quad(const TopkRow& row, int column) {
  const float* x = row.logits + column;
  if (column >= row.first && column + 4 <= row.last) return load_inside(x);
  const auto inside = [&](int i) { return column + i >= row.first && column + i < row.last; };
  const float none = __uint_as_float(0x7fffffffu);
  return make_float4(inside(0) ? x[0] : none, inside(1) ? x[1] : none, inside(2) ? x[2] : none, inside(3) ? x[3] : none);
}
/// kLoads quads, each `stride` columns after the one before, all in flight at once.
template <int kLoads> DSA_DEVICE void load_quads(const TopkRow& row, int column, int stride, float4 (&x)[kLoads]) {
  if (column >= row.first && column + (kLoads - 1) * stride + 4 <= row.last) {
    for (int i = 0; i < kLoads; ++i) x[i] = load_inside(row.logits + column + i * stride);
  } else {
    for (int i = 0; i < kLoads; ++i) x[i] = load_quad(row, column + i * stride);
  }
}
// [load_quad]

/// The beginning of a row that some other CTA is going to read.
// [prefetch_row]
struct RowAhead {
  const void* from;
  unsigned bytes;        ///< 0 past the last row
};
DSA_DEVICE RowAhead row_ahead(const TopkArgs& a, int64_t row) {
  constexpr int kColumns = 16384;
  if (row >= a.rows) return {nullptr, 0};
  const TopkRow next = topk_row(a, int(row));
  const int first = next.aligned < next.first ? next.aligned + 4 : next.aligned;   // whole quads inside the window
  return {next.logits + first, unsigned(max(min(next.last - first, kColumns), 0) & ~3) * 4};
}
/// Asks for it, a hint. One thread.
DSA_DEVICE void prefetch(const RowAhead& row) {
  if (row.bytes > 0) ptx::cp_async_bulk_prefetch_l2(row.from, row.bytes);
}
// [prefetch_row]

/// -1 into the slots from `written` on. All threads.
template <int kThreads> DSA_DEVICE void fill_rest(const TopkRow& row, int written) {
  for (int slot = written + int(threadIdx.x); slot < row.k; slot += kThreads) row.indices[slot] = kInvalid;
}

/// Reads the row once more and writes what the threshold selects, by rising column: the lowest columns of a tie, which is
/// the deterministic mode. With key kNeverSelected and no ties: everything that is selectable, at most k. All threads.
// [write_in_order]
template <int kThreads>
DSA_DEVICE void write_in_order(const TopkRow& row, const Threshold& threshold, uint32_t (&warp_total)[32]) {
  constexpr int kTile = 4 * kThreads;
  static_assert(kTile < 1 << 16, "two counts share a word");
  const int mine = 4 * int(threadIdx.x);
  int above = 0, ties = 0;                       // so far
  float4 next = load_quad(row, row.aligned + mine);
  for (int tile = row.aligned; tile < row.last; tile += kTile) {
    const float4 x = next;
    next = load_quad(row, tile + kTile + mine);
    const uint32_t key[4] = {sortable_key(x.x), sortable_key(x.y), sortable_key(x.z), sortable_key(x.w)};
    uint32_t counts = 0;                         // larger ones below, ties in the upper half
    for (int i = 0; i < 4; ++i) counts += key[i] > threshold.key ? 1 : key[i] == threshold.key ? 1 << 16 : 0;
    const Scan scan = block_scan<kThreads>(counts, warp_total);
    int before = above + int(scan.before & 0xffff), tie = ties + int(scan.before >> 16);
    for (int i = 0; i < 4; ++i) {
      const bool larger = key[i] > threshold.key, equal = key[i] == threshold.key;
      if (larger || (equal && tie < threshold.ties)) row.indices[before + min(tie, threshold.ties)] = tile + mine + i;
      before += larger;
      tie += equal;
    }
    above += int(scan.total & 0xffff);
    ties += int(scan.total >> 16);
  }
  fill_rest<kThreads>(row, above + min(ties, threshold.ties));
}
// [write_in_order]

// ---- Slots in the order of atomics -------------------------------------------------------------------------------------
/// What kernels need that hand out slots to whoever comes first.
struct SlotStorage {
  RadixSelect select;
  int written;                                   ///< slots handed out
  int staged;                                    ///< candidates in the buffer
  int ties;                                      ///< columns equal to the threshold met so far
};

/// The last step: the threshold among the candidates, and those it selects. @param for_each see radix_select
// [select]
template <int kThreads, class ForEach>
DSA_DEVICE void select(SlotStorage& s, const TopkRow& row, int wanted, bool deterministic, const ForEach& for_each) {
  trace_step("[T4] threshold");
  const Threshold threshold = radix_select<kThreads>(s.select, wanted, ThisCta{}, for_each);
  trace_step("[T5] write");
  if (deterministic) return write_in_order<kThreads>(row, threshold, s.select.search.warp_total);
  for_each([&](uint32_t key, int column) {
    const bool take = key > threshold.key || (key == threshold.key && atomicAdd(&s.ties, 1) < threshold.ties);
    if (take) row.indices[atomicAdd(&s.written, 1)] = column;
  });
}
// [select]

}  // namespace dsa
