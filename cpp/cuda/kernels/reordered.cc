#include "cuda/kernels/reordered.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "cuda/kernels/transpose/launch.h"
#include "cuda/status.h"
#include "ffi/checked.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

constexpr int64_t kAlignment = 256;  // of a workspace, which the engine's own part keeps

// The weights as a matrix, one row for each output channel. Both orders have the elements of a row
// in the same order; as kXIO they are the matrix's columns.
struct WeightsMatrix {
  int64_t rows, columns, element_bytes;

  static WeightsMatrix Of(const ConvProblem& problem) {
    const ConvGeometry& g = problem.geometry;
    int64_t columns = g.in_channels / g.groups;
    for (const int64_t taps : g.kernel) columns *= taps;
    const ffi::DataType type =
        problem.kind == ConvKind::kWgrad ? problem.result_type : problem.operand_type;
    return {g.out_channels, columns, static_cast<int64_t>(ffi::ByteWidth(type))};
  }

  // No product overflows: ConvGeometry::Make has counted each array with 8 bytes an element.
  int64_t CopyBytes() const { return RoundUp(rows * columns * element_bytes, kAlignment); }
};

class ReorderedPlan : public ConvPlan {
 public:
  ReorderedPlan(const ConvProblem& problem, std::shared_ptr<const ConvPlan> plan)
      : problem_(problem),
        matrix_(WeightsMatrix::Of(problem)),
        plan_(std::move(plan)),
        workspace_bytes_(WithWeightsCopy(problem, plan_->workspace_bytes())) {}

  const std::string& engine() const override { return plan_->engine(); }
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  bool owns_kernels() const override { return plan_->owns_kernels(); }
  bool needs_handle() const override { return plan_->needs_handle(); }

  ffi::Error Run(cudnnHandle_t handle, cudaStream_t stream,
                 const ConvBuffers& buffers) const override {
    const bool is_result = problem_.kind == ConvKind::kWgrad;
    const auto [rows, columns, element_bytes] = matrix_;
    ConvBuffers with_copy = buffers;
    with_copy.w = buffers.workspace;
    with_copy.workspace = static_cast<char*>(buffers.workspace) + matrix_.CopyBytes();
    if (!is_result) {
      const ffi::Error error =
          Failure(LaunchTranspose(buffers.w, with_copy.w, columns, rows, element_bytes, stream));
      if (error.failure()) return error;
    }
    const ffi::Error run = plan_->Run(handle, stream, with_copy);
    if (run.failure() || !is_result) return run;
    return Failure(LaunchTranspose(with_copy.w, buffers.w, rows, columns, element_bytes, stream));
  }

 private:
  ffi::Error Failure(cudaError_t status) const {
    if (status == cudaSuccess) return ffi::Error::Success();
    (void)cudaGetLastError();  // which the next call would report again
    return CudaError(
        ConvName(problem_.kind),
        Text("reordering the weights for engine ", engine(), ", ", problem_.ToString()), status);
  }

  const ConvProblem problem_;
  const WeightsMatrix matrix_;
  const std::shared_ptr<const ConvPlan> plan_;
  const int64_t workspace_bytes_;
};

}  // namespace

ConvProblem WithWeightsAsOXI(const ConvProblem& problem) {
  ConvProblem read = problem;
  if (problem.weights == WeightsOrder::kOXI) return read;
  read.weights = WeightsOrder::kOXI;
  const int64_t left = problem.workspace_limit - WeightsMatrix::Of(problem).CopyBytes();
  read.workspace_limit = std::max<int64_t>(0, left);
  return read;
}

int64_t WithWeightsCopy(const ConvProblem& problem, int64_t workspace_bytes) {
  if (problem.weights == WeightsOrder::kOXI || workspace_bytes < 0) return workspace_bytes;
  return CheckedAdd(WeightsMatrix::Of(problem).CopyBytes(), workspace_bytes)
      .value_or(std::numeric_limits<int64_t>::max());
}

std::shared_ptr<const ConvPlan> Reordered(const ConvProblem& problem,
                                          std::shared_ptr<const ConvPlan> plan) {
  if (problem.weights == WeightsOrder::kOXI) return plan;
  return std::make_shared<ReorderedPlan>(problem, std::move(plan));
}

}  // namespace jax_convgrad
