#include <cublasLt.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "../reference/numeric.hpp"
#include "device_memory.hpp"
#include "yardsticks.hpp"

namespace dsa::bench {

namespace {

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string(call) + ": " + cublasLtGetStatusName(status));
}
#define DSA_CUBLAS_CHECK(call) check((call), #call)

constexpr int64_t kN = kYardstickSize;
constexpr int64_t kElements = kN * kN;
constexpr std::size_t kWorkspaceBytes = 64 << 20;
constexpr int kProposals = 8;  ///< algorithms asked for and tried
constexpr int kTrials = 5;     ///< launches of each

/// A cuBLASLt object, destroyed with its own function.
template <class T, cublasStatus_t (*destroy)(T)>
struct Handle {
  T value = nullptr;
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (value) destroy(value);
  }
};
using Library = Handle<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// D = A^T B with column-major A [k, m], B [k, n] and D [m, n]: k is the inner extent of both
/// operands, the form ("TN") that FP8 needs.
class MatrixProduct final : public Yardstick {
 public:
  MatrixProduct(bool fp8, cudaStream_t stream)
      : a_(kElements * (fp8 ? 1 : 2)),
        b_(kElements * (fp8 ? 1 : 2)),
        d_(kElements * 2),
        workspace_(kWorkspaceBytes) {
    fill(a_, fp8, 1);
    fill(b_, fp8, 2);
    describe(fp8);
    choose_algorithm(stream);
  }

  int enqueue(void* stream) override {
    DSA_CUBLAS_CHECK(multiply(algorithm_, static_cast<cudaStream_t>(stream)));
    return cudaSuccess;
  }
  double amount() const override { return 2.0 * kN * kN * kN; }

 private:
  static void fill(DeviceMemory& matrix, bool fp8, uint64_t seed) {
    if (fp8) {
      matrix.fill_random<e4m3>([seed](uint64_t i) { return to_e4m3(random_normal(seed, i)); });
    } else {
      matrix.fill_random<bf16>([seed](uint64_t i) { return to_bf16(random_normal(seed, i)); });
    }
  }

  void describe(bool fp8) {
    const cudaDataType_t input = fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    DSA_CUBLAS_CHECK(cublasLtCreate(&library_.value));
    DSA_CUBLAS_CHECK(cublasLtMatmulDescCreate(&operation_.value, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    DSA_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation_.value, CUBLASLT_MATMUL_DESC_TRANSA,
                                                    &transposed, sizeof transposed));
    if (fp8) {
      const int8_t fast = 1;
      DSA_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation_.value, CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                                                      &fast, sizeof fast));
    }
    DSA_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&input_.value, input, kN, kN, kN));
    DSA_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&output_.value, CUDA_R_16BF, kN, kN, kN));
  }

  cublasStatus_t multiply(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream) {
    const float one = 1, zero = 0;
    return cublasLtMatmul(library_.value, operation_.value, &one, a_.data(), input_.value, b_.data(),
                          input_.value, &zero, d_.data(), output_.value, d_.data(), output_.value, &algorithm,
                          workspace_.data(), kWorkspaceBytes, stream);
  }

  void choose_algorithm(cudaStream_t stream) {
    Preference preference;
    DSA_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference.value));
    DSA_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference.value,
                                                          CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                          &kWorkspaceBytes, sizeof kWorkspaceBytes));
    cublasLtMatmulHeuristicResult_t proposals[kProposals];
    int found = 0;
    DSA_CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(library_.value, operation_.value, input_.value,
                                                    input_.value, output_.value, output_.value,
                                                    preference.value, kProposals, proposals, &found));
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < found; ++i) {
      if (proposals[i].state != CUBLAS_STATUS_SUCCESS) continue;
      const double seconds = try_algorithm(proposals[i].algo, stream);
      if (!(seconds < best)) continue;
      best = seconds;
      algorithm_ = proposals[i].algo;
    }
    if (best == std::numeric_limits<double>::infinity()) {
      throw std::runtime_error("cuBLASLt has no algorithm for an 8192^3 product");
    }
  }

  /// Seconds of kTrials products after a first one; infinity if it does not run.
  double try_algorithm(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream) {
    if (multiply(algorithm, stream) != CUBLAS_STATUS_SUCCESS) return std::numeric_limits<double>::infinity();
    const Enqueue trial = [&](int64_t, void* on) {
      DSA_CUBLAS_CHECK(multiply(algorithm, static_cast<cudaStream_t>(on)));
      return int(cudaSuccess);
    };
    return time_batch(trial, kTrials, stream);
  }

  DeviceMemory a_, b_, d_, workspace_;
  Library library_;
  Operation operation_;
  Layout input_, output_;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace

std::unique_ptr<Yardstick> make_matrix_product(bool fp8, void* stream) {
  return std::make_unique<MatrixProduct>(fp8, static_cast<cudaStream_t>(stream));
}

}  // namespace dsa::bench
