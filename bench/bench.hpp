/// @file bench.hpp
/// `dsa bench`: every rung on every benchmark case, verified and timed beside its yardstick.
#pragma once

namespace CLI {
class App;
}

namespace dsa::bench {

/// Exit status of `dsa bench`, `dsa pipeline` and the staged binaries when the device is not there.
inline constexpr int kNoDevice = 4;

/// Adds `dsa bench [--stage S] [--step NAME] [--case SUBSTRING] [--regime burst|sustained|both] [--warm]
/// [--seconds X] [--json FILE [--append]] [-- flags of Google Benchmark]`.
/// The callback throws harness::BadInput, or CLI::RuntimeError with the exit status.
void add_bench_command(CLI::App& app);

}  // namespace dsa::bench
