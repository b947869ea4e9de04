/// @file parallel.hpp
/// One loop over several host threads, for making and judging large problems.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace dsa::harness {

/// Calls body(begin, end) for pieces of at most `grain` that cover [0, count), on all cores. The first
/// exception is thrown again here.
template <class Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  const int64_t pieces = (count + grain - 1) / grain;
  const int64_t threads = std::min<int64_t>(pieces, std::max(1u, std::thread::hardware_concurrency()));
  std::atomic<int64_t> next = 0;
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    try {
      for (int64_t piece; (piece = next++) < pieces;) {
        body(piece * grain, std::min(count, (piece + 1) * grain));
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  for (int64_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace dsa::harness
