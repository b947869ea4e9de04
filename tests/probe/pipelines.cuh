/// @file pipelines.cuh
/// A whole pipeline: every mechanism at once, on integers.
#pragma once

#include "hopper_path_inputs.hpp"
#include "probe.hpp"

namespace dsa::probe {

inline void probe_pipelines() {
  const std::string name = "pipeline/hopper_path";
  if (!is_wanted(name)) return;
  const HopperPathInputs in;
  const Array<bf16> q(in.q), k(in.k);
  const Array<int32_t> indices(in.indices);
  const Array<float> out(in.want.size());
  const HopperPathArgs args{q.data(), k.data(), indices.data(), out.data(), in.kBankRows, in.kTiles};
  if (succeeded(name, launch_hopper_path<Break::kNothing>(args))) print_hash(name, out.read(), in.want);
}

}  // namespace dsa::probe
