// The second half of a weight gradient: blocks have left the sums of their parts of the windows in
// the workspace, and here these are added in a fixed order.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_COMMON_PARTS_SUM_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_COMMON_PARTS_SUM_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/elements.cuh"

namespace jax_convgrad {

struct PartsSumParams {
  const float* partial;  // part, row, column
  void* result;
  int parts;
  int rows, columns;
  // Where an element lies in the result. Rows are outer rows of some inner rows each.
  int64_t first, of_column, of_inner_row, of_outer_row;
  Divider by_columns, by_inner_rows;
};

constexpr int kPartsSumColumns = 32;  // elements of a block
constexpr int kPartsSumSegments = 8;  // of the parts

// The parts' sum: each thread adds every eighth part of an element, in their order, then one adds
// what these have. Elements are few and parts many.
template <typename T>
__global__ void __launch_bounds__(kPartsSumColumns* kPartsSumSegments)
    PartsSum(const __grid_constant__ PartsSumParams p) {
  constexpr int kColumns = kPartsSumColumns, kSegments = kPartsSumSegments;
  float* const sums = SharedMemory<float>();
  const int thread = static_cast<int>(threadIdx.x);
  const int place = thread % kColumns, segment = thread / kColumns;
  const int64_t count = static_cast<int64_t>(p.rows) * p.columns;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kColumns + place;
  float sum = 0;
  if (i < count) {
#pragma unroll 8
    for (int part = segment; part < p.parts; part += kSegments) {
      sum += p.partial[part * count + i];
    }
  }
  sums[thread] = sum;
  __syncthreads();
  if (segment > 0 || i >= count) return;
  for (int other = 1; other < kSegments; ++other) sum += sums[other * kColumns + place];
  int row = static_cast<int>(i);
  const int column = p.by_columns.Split(&row);
  const int inner_row = p.by_inner_rows.Split(&row);
  const int64_t at =
      p.first + row * p.of_outer_row + inner_row * p.of_inner_row + column * p.of_column;
  Narrow(sum, static_cast<T*>(p.result) + at);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_COMMON_PARTS_SUM_CUH_
