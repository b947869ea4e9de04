/// @file half_tile.cuh
/// K tiles that are filled and given back by halves: columns 0-255 and columns 256-575, because each consumer multiplies one
/// half of V and is done with it at a time of its own.
#pragma once

#include "mla_producer.cuh"

namespace dsa {

constexpr int kLeft = 4, kRight = 5;                  ///< column tiles of a half of K; the right one has the rope columns

/// A half of a K tile on its way: who may write it, who may read it.
struct HalfState {
  ptx::mbarrier full;                                 ///< cp.async of 128 producer threads, and 2 for `valid` where it comes along
  ptx::mbarrier empty;                                ///< 4 arrivals: the warps of the consumer that multiplies it last
};

/// A warp has finished with a half tile.
DSA_DEVICE void release(HalfState& half) { release(half.empty); }

/// The column tiles first .. first + kTiles - 1 of one K tile.
template <int kTiles>
DSA_DEVICE void fill_half(HalfState& half, unsigned parity, KeyTile& tile, int first, const MlaWork& w, const ProducerRows& rows,
                          int t) {
  ptx::mbarrier_wait_parity(&half.empty, parity);
  copy_rows<kTiles>(tile.k, first, w, rows, t);
  ptx::cp_async_mbarrier_arrive_noinc(&half.full);
}

/// Waits for a half tile, as operand of the tensor cores.
DSA_DEVICE void wait_full(HalfState& half, unsigned parity) {
  ptx::mbarrier_wait_parity(&half.full, parity);
  ptx::fence_proxy_async_shared();                    // the rows came through the generic proxy
}

}  // namespace dsa
