/// @file measure.hpp
/// The timing core: CUDA events around batches of launches on one stream. Needs CUDA.
#pragma once

#include <cstdint>
#include <functional>

#include "sensors.hpp"
#include "timing.hpp"

namespace dsa::bench {

/// Enqueues launch number `launch` (0, 1, 2, ...) on the stream, a cudaStream_t, and returns a cudaError_t.
/// Several copies of the inputs are rotated through by taking the number modulo their count.
using Enqueue = std::function<int(int64_t launch, void* stream)>;

/// Times one launch of `work` in a regime.
///
///     burst:      [pause 0.1 s] launch event launch.. event   [pause 0.1 s] launch event launch.. event   ...
///     sustained:  launch launch ... for a second   event launch.. event launch.. event launch.. event ...
///
/// Launches shorter than about 3 us measure how fast a host can launch.
/// @throws TooSlow, or std::runtime_error for a CUDA error (also one of the kernel)
Timing measure(const Enqueue& work, void* stream, const MeasureOptions& options, const Sensors& sensors);

/// Seconds per launch of `count` launches in a row, without warm-up.
double time_batch(const Enqueue& work, int count, void* stream);

}  // namespace dsa::bench
