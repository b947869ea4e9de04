/// @file registry.hpp
/// The one list of kernels. A rung registers itself where it is defined; tests, benchmarks, staged binaries,
/// `dsa list` and the generated tables all read this list, and nothing else names the rungs.
///
/// The same kernel file is compiled twice, for the GPU and for the emulator, and registers once from each.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "../../reference/contracts.hpp"

namespace dsa {

/// The stages, in pipeline order. The names of `stage_name` are those of the command line.
enum class Stage { kQuantize, kIndexer, kTopk, kIndexTopk, kSparseMlaFwd, kSparseMlaBwd };
inline constexpr Stage kStages[] = {Stage::kQuantize, Stage::kIndexer, Stage::kTopk, Stage::kIndexTopk, Stage::kSparseMlaFwd,
                                    Stage::kSparseMlaBwd};

enum class Device { kCpu, kEmulator, kGpu };

/// What a kernel computes with, which decides the tolerances it is judged by (cuda/harness/tolerance.hpp).
enum class Accuracy {
  kExact,  ///< integers, or arithmetic whose result is fixed to the bit
  kF32,    ///< float32 throughout, rounded only on output
  kBf16,   ///< bf16 operands (P, dS rounded to bf16), float32 accumulation
  kFp8,    ///< e4m3 operands, float32 accumulation
};

using Args = std::variant<QuantizeArgs, IndexerArgs, TopkArgs, IndexTopkArgs, SparseMlaFwdArgs, SparseMlaBwdArgs>;

template <class A> constexpr Stage stage_of();
template <> constexpr Stage stage_of<QuantizeArgs>() { return Stage::kQuantize; }
template <> constexpr Stage stage_of<IndexerArgs>() { return Stage::kIndexer; }
template <> constexpr Stage stage_of<TopkArgs>() { return Stage::kTopk; }
template <> constexpr Stage stage_of<IndexTopkArgs>() { return Stage::kIndexTopk; }
template <> constexpr Stage stage_of<SparseMlaFwdArgs>() { return Stage::kSparseMlaFwd; }
template <> constexpr Stage stage_of<SparseMlaBwdArgs>() { return Stage::kSparseMlaBwd; }

/// "quantize", "indexer", "topk", "index_topk", "sparse_mla_fwd", "sparse_mla_bwd".
const char* stage_name(Stage stage);
/// "cpu", "emulator", "gpu".
const char* device_name(Device device);

/// One kernel on one device. Kernel files fill it in through Register (cuda/common/register.cuh).
struct RungEntry {
  Stage stage;
  Device device;
  std::string name;     ///< "01_naive": reading order and technique
  std::string summary;  ///< one line for the ladder table
  Accuracy accuracy;
  bool repeatable;      ///< same input, same bits; false only for kernels with floating-point atomics
  std::string file;     ///< where it is defined, relative to the repository or the user's folder
  /// Reason why these sizes are not supported, or nullptr.
  const char* (*unsupported)(const Args&);
  /// Starts the kernel; cudaError_t as int, and the stream is a cudaStream_t.
  int (*launch)(const Args&, void* stream);
};

/// All registered rungs, sorted by stage, then name, then device. Two rungs of one name are an error,
/// reported on first use (std::logic_error).
const std::vector<RungEntry>& rungs();

/// The rung, or nullptr.
const RungEntry* find_rung(Stage stage, Device device, const std::string& name);

/// Called by Register during static initialisation.
void register_rung(RungEntry entry);

}  // namespace dsa
