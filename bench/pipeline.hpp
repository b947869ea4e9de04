/// @file pipeline.hpp
/// `dsa pipeline`: quantize, indexer, top-k, sparse MLA forward and backward as one computation. Every stage
/// reads what the stage before it left on the device, and every stage is compared with the reference on those
/// very inputs.
#pragma once

namespace CLI {
class App;
}

namespace dsa::bench {

/// Adds `dsa pipeline [--device gpu|emulator|cpu]
///                    [--s_q N] [--s_kv N] [--h_q N] [--h_i N] [--d_i N] [--topk N]
///                    [--quantize NAME] [--indexer NAME] [--topk-step NAME] [--fwd NAME] [--bwd NAME]
///                    [--all] [--json FILE]`.
/// The callback throws harness::BadInput, or CLI::RuntimeError with the exit status: 1 a stage is wrong, 3 no
/// step supports the sizes, 4 no such device.
void add_pipeline_command(CLI::App& app);

}  // namespace dsa::bench
