/// @file hopper_path_inputs.hpp
/// Small integers for hopper_path.cuh, and the one right answer.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "hopper_path.cuh"

namespace dsa::probe {

struct HopperPathInputs {
  static constexpr int kBankRows = 300, kTiles = 5;
  std::vector<bf16> q = std::vector<bf16>(kRows * kColumns), k = std::vector<bf16>(kBankRows * kColumns);
  std::vector<int32_t> indices = std::vector<int32_t>(kTiles * kRows);
  std::vector<float> want = std::vector<float>(kRows * kColumns);

  HopperPathInputs() {
    std::minstd_rand random(1);
    const auto small = [&] { return to_bf16(float(int(random() % 3) - 1)); };
    std::generate(q.begin(), q.end(), small);
    std::generate(k.begin(), k.end(), small);
    for (int i = 0; i < kTiles * kRows; ++i) indices[std::size_t(i)] = i % 7 == 3 ? -1 : int(random() % kBankRows);
    indices[5] = 0;   // which kWildIndex replaces
    for (int h = 0; h < kRows; ++h) {
      for (const int32_t index : indices) {
        if (index < 0) continue;
        const bf16* row = &k[std::size_t(index * kColumns)];
        float score = 0;
        for (int c = 0; c < kColumns; ++c) score += to_float(q[std::size_t(h * kColumns + c)]) * to_float(row[c]);
        const float p = std::clamp(score, -8.0f, 8.0f);
        for (int c = 0; c < kColumns; ++c) want[std::size_t(h * kColumns + c)] += p * to_float(row[c]);
      }
    }
  }
};

}  // namespace dsa::probe
