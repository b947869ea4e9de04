/// @file emulator.hpp
/// A CUDA grid on one CPU core: every CUDA thread is a fiber, a scheduler decides which one runs next.
///
/// Fibers switch only inside the functions declared here, so a run is decided by (kernel, inputs, Schedule) alone
/// and repeats exactly. What is not modelled: timing, and the memory model's weaker orderings. Warps do not run
/// in lock-step, which is deliberate: code that forgets a __syncwarp shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "../limits.hpp"

namespace dsa::emulator {

// ---- Stand-ins for the runtime API's types -----------------------------------------------------------------
struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
/// Values as in driver_types.h.
enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorLaunchFailure = 719,
};
using cudaStream_t = struct Stream*;

/// Of the thread that runs now.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

// ---- Schedules ---------------------------------------------------------------------------------------------
/// Which ready thread runs next, and when asynchronous operations happen.
struct Schedule {
  enum class Kind {
    kRoundRobin,  ///< by thread number; a thread runs until it waits
    kRandom,      ///< any ready thread, and threads are also pre-empted at every seam call with probability 1/4
    kStarve,      ///< as kRandom, but one warp (seed % warps) runs only when no other can
  };
  /// When copies and matrix products happen, between issue and the wait that needs them.
  enum class Landing {
    kBySeed,      ///< kRoundRobin: kLate; others: mixed, early or late as seed % 3 is 0, 1 or 2
    kMixed,       ///< each operation at a time of its own
    kEarly,       ///< at once: a buffer that is overwritten too soon shows
    kLate,        ///< when everybody waits for them: a missing wait shows
  };
  Kind kind = Kind::kRoundRobin;
  uint64_t seed = 0;
  Landing landing = Landing::kBySeed;
  /// Clusters that are resident at a time; blocks of a larger grid follow as these finish. 0: one, or two under kRandom.
  unsigned resident_clusters = 0;
};

/// For all following launches.
void set_schedule(const Schedule& schedule);

// ---- Running a grid ----------------------------------------------------------------------------------------
/// Runs every block of the grid (in random order under kRandom). Returns the error that the CUDA launch would give, or
/// cudaErrorLaunchFailure for a fault inside the kernel; `last_error()` has the words.
/// @param cluster  blocks of a cluster, neighbours in x; divides grid.x
cudaError_t run_grid(dim3 grid, dim3 block, unsigned cluster, std::size_t shared_bytes,
                     const std::function<void()>& kernel);

/// What went wrong in the last run_grid, or "".
const std::string& last_error();
/// The same, once: a later call says "" until something goes wrong again.
std::string take_last_error();

// ---- What the seam's functions call, from inside a kernel ----------------------------------------------------
enum class WarpOp {
  kSync, kShuffle, kShuffleXor, kShuffleUp, kShuffleDown, kBallot, kMatchAny, kReduceAdd, kReduceMax, kReduceMin,
  kElect, kLdmatrix, kLdmatrixTransposed, kStmatrix, kStmatrixTransposed, kSetmaxnregInc, kSetmaxnregDec
};

void* shared_memory();
void block_barrier();
int block_barrier_count(bool predicate);
/// All lanes of `mask` that have not exited must call it with the same op; returns this lane's result.
uint64_t warp_collective(WarpOp op, unsigned mask, uint64_t value, int argument, int width);
void preemption_point();

}  // namespace dsa::emulator
