/// @file probe.cu
/// What Hopper's instructions do, in small questions: the emulator is right when it answers as the GPU does.
///
/// One source, two programs, as every kernel:
///
///     nvcc -std=c++20 -gencode=arch=compute_90a,code=sm_90a --expt-relaxed-constexpr tests/probe/probe.cu -o probe_gpu
///     probe_gpu > tests/probe/h200.txt                     # committed
///     probe_emulator | diff -I '^#' tests/probe/h200.txt -
///
/// A first argument runs only the probes with it in their names ("" is all of them). A second one is the seed of a
/// random schedule of the emulator, which must not change a result. Exit status: 0 when every probe ran, whatever it
/// found.
#include "barriers.cuh"
#include "copies.cuh"
#include "matrices.cuh"
#include "numbers.cuh"
#include "pipelines.cuh"
#include "products.cuh"

int main(int argc, char** argv) {
  using namespace dsa::probe;
  if (argc > 1) wanted = argv[1];
#if defined(DSA_EMULATOR)
  if (argc > 2) {
    dsa::emulator::Schedule schedule;
    schedule.kind = dsa::emulator::Schedule::Kind::kRandom;
    schedule.seed = std::strtoull(argv[2], nullptr, 10);
    dsa::emulator::set_schedule(schedule);
  }
#endif
  std::setvbuf(stdout, nullptr, _IOLBF, 0);      // a crash must not take results with it
  probe_barriers();
  probe_copies();
  probe_matrices();
  probe_products();
  probe_numbers();
  probe_pipelines();
  return failures == 0 ? 0 : 1;
}
