// Kernels of the weight gradient. Each block sums the products of some rows (a part) for some
// channels and rows of taps in registers and leaves one partial sum per weight; SumParts adds the
// parts in their order.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_DEPTHWISE_WGRAD_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_DEPTHWISE_WGRAD_CUH_

#include "cuda/kernels/common/elements.cuh"

namespace jax_convgrad {

struct WgradAxis {
  int in, out, kernel, stride, padding, dilation;
};

struct WgradParams {
  const void* x;
  const void* dy;
  void* partial;  // [part][tap][channel], in the sums' type
  WgradAxis axis_z, axis_y, axis_x;
  int channels;
  int lanes;  // threads side by side, each with a vector of channels
  int taps;
  // A group is one thread's part of the taps: some rows of one plane, and every column_groups-th
  // column of them.
  int groups, block_groups;
  int column_groups;
  int positions;  // chunks of dy's rows
  int part_positions;
  int block_rows;  // threads of a block beyond lanes and groups, each at a position of its own
  Divider by_slabs, by_group_blocks, by_lanes, by_block_groups, by_column_groups, by_row_groups;
  Divider by_chunks, by_rows, by_depth;
};

// A thread has `Rows` rows of taps, `Columns` taps of each, and at every position L elements along
// dy's row. `Adjacent`: one element of dy further is one of x further, and so is one tap, so that x
// is read once for all of them.
template <typename T, int N, int Rows, int Columns, int L, bool Adjacent>
__global__ void __launch_bounds__(256, 2) WgradPart(WgradParams p) {
  Sum<T>* const shared = SharedMemory<Sum<T>>();
  int block = static_cast<int>(blockIdx.x);
  const int slab = p.by_slabs.Split(&block);
  const int group_block = p.by_group_blocks.Split(&block);
  const int part = block;
  int row_thread = static_cast<int>(threadIdx.x);
  const int lane = p.by_lanes.Split(&row_thread);
  const int block_group = p.by_block_groups.Split(&row_thread);
  const int group = group_block * p.block_groups + block_group;
  const int width = p.lanes * N;
  const int channel = slab * width + lane * N;
  const int64_t channels = p.channels;

  int kz = group;
  const int first_column = p.by_column_groups.Split(&kz);
  const int first_row = p.by_row_groups.Split(&kz) * Rows;
  Sum<T> sums[Rows][Columns][N] = {};
  if (channel < p.channels && group < p.groups) {
    const T* const x = static_cast<const T*>(p.x) + channel;
    const T* const dy = static_cast<const T*>(p.dy) + channel;
    const int column_step = p.column_groups * p.axis_x.dilation;
    const int64_t column_stride = column_step * channels;
    const int64_t stride = p.axis_x.stride * channels;
    const int end = min(p.positions, (part + 1) * p.part_positions);
    for (int position = part * p.part_positions + row_thread; position < end;
         position += p.block_rows) {
      int rest = position;
      const int ox = p.by_chunks.Split(&rest) * L;
      const int oy = p.by_rows.Split(&rest);
      const int oz = p.by_depth.Split(&rest);
      const int iz = oz * p.axis_z.stride - p.axis_z.padding + kz * p.axis_z.dilation;
      if (!Inside(iz, p.axis_z.in)) continue;
      const int64_t dy_row = (static_cast<int64_t>(rest) * p.axis_z.out + oz) * p.axis_y.out + oy;
      const T* dy_at = dy + (dy_row * p.axis_x.out + ox) * channels;
      Elements<T, N> gradients[L];
#pragma unroll
      for (int t = 0; t < L; ++t) {
        gradients[t] = Load<T, N>(dy_at, ox + t < p.axis_x.out);
        dy_at += channels;
      }
      const int ix = ox * p.axis_x.stride - p.axis_x.padding + first_column * p.axis_x.dilation;
#pragma unroll
      for (int i = 0; i < Rows; ++i) {
        const int iy =
            oy * p.axis_y.stride - p.axis_y.padding + (first_row + i) * p.axis_y.dilation;
        const int64_t x_row = (static_cast<int64_t>(rest) * p.axis_z.in + iz) * p.axis_y.in + iy;
        const T* x_at = x + (x_row * p.axis_x.in + ix) * channels;
        const int in = Inside(iy, p.axis_y.in) ? p.axis_x.in : 0;
        if constexpr (Adjacent) {
          if (in == 0) continue;
          Elements<T, N> window[L + Columns - 1];
#pragma unroll
          for (int j = 0; j < L + Columns - 1; ++j) {
            window[j] = Load<T, N>(x_at, Inside(ix + j, in));
            x_at += channels;
          }
#pragma unroll
          for (int t = 0; t < L; ++t) {
            // Not zero times an element that belongs to no window: the element may be infinite.
            if (ox + t >= p.axis_x.out) continue;
#pragma unroll
            for (int j = 0; j < Columns; ++j) {
#pragma unroll
              for (int v = 0; v < N; ++v) sums[i][j][v] += gradients[t][v] * window[t + j][v];
            }
          }
        } else {
#pragma unroll
          for (int t = 0; t < L; ++t) {
            // The same here. Columns behind the kernel's last one are summed and never written.
            const int last = ox + t < p.axis_x.out ? in : 0;
            const T* at = x_at;
            Elements<T, N> window[Columns];
#pragma unroll
            for (int j = 0; j < Columns; ++j) {
              window[j] = Load<T, N>(at, Inside(ix + t * p.axis_x.stride + j * column_step, last));
              at += column_stride;
            }
#pragma unroll
            for (int j = 0; j < Columns; ++j) {
#pragma unroll
              for (int v = 0; v < N; ++v) sums[i][j][v] += gradients[t][v] * window[j][v];
            }
            x_at += stride;
          }
        }
      }
    }
  }

  // [column][row thread][group][channel]
  const int row_width = p.block_groups * width;
  const int column_width = p.block_rows * row_width;
  const bool exists = row_thread < p.block_rows;
#pragma unroll
  for (int i = 0; i < Rows; ++i) {
    if (exists) {
#pragma unroll
      for (int j = 0; j < Columns; ++j) {
        Sum<T>* const at =
            shared + j * column_width + row_thread * row_width + block_group * width + lane * N;
#pragma unroll
        for (int v = 0; v < N; ++v) at[v] = sums[i][j][v];
      }
    }
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < Columns * row_width;
         at += static_cast<int>(blockDim.x)) {
      int column = 0, rest = at;
      while (rest >= row_width) {
        rest -= row_width;
        ++column;
      }
      const Sum<T>* const from = shared + column * column_width + rest;
      Sum<T> sum = 0;
      for (int r = 0; r < p.block_rows; ++r) sum += from[r * row_width];
      int g = 0;
      while (rest >= width) {
        rest -= width;
        ++g;
      }
      const int c = slab * width + rest;
      int plane = group_block * p.block_groups + g;
      if (c >= p.channels || plane >= p.groups) continue;
      const int kx = p.by_column_groups.Split(&plane) + column * p.column_groups;
      const int ky = p.by_row_groups.Split(&plane) * Rows + i;
      if (kx >= p.axis_x.kernel) continue;
      const int tap = (plane * p.axis_y.kernel + ky) * p.axis_x.kernel + kx;
      static_cast<Sum<T>*>(p.partial)[(static_cast<int64_t>(part) * p.taps + tap) * channels + c] =
          sum;
    }
    __syncthreads();
  }
}

struct SumPartsParams {
  const void* partial;
  void* dw;  // [channel][tap]
  int parts;
  int channels;
  int taps;
  int64_t weights;  // channels * taps
  Divider by_channels;
};

constexpr int kSumColumns = 32;
constexpr int kSumSegments = 8;

// One weight per column of threads; each segment of the block adds every 8th part.
template <typename T>
__global__ void __launch_bounds__(kSumColumns* kSumSegments) SumParts(SumPartsParams p) {
  Sum<T>* const shared = SharedMemory<Sum<T>>();
  const int column = static_cast<int>(threadIdx.x) % kSumColumns;
  const int segment = static_cast<int>(threadIdx.x) / kSumColumns;
  const int64_t weight = static_cast<int64_t>(blockIdx.x) * kSumColumns + column;
  Sum<T> sum = 0;
  if (weight < p.weights) {
    const Sum<T>* const partial = static_cast<const Sum<T>*>(p.partial) + weight;
#pragma unroll 8
    for (int part = segment; part < p.parts; part += kSumSegments) {
      sum += partial[part * p.weights];
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (segment != 0 || weight >= p.weights) return;
#pragma unroll
  for (int s = 1; s < kSumSegments; ++s) sum += shared[s * kSumColumns + column];
  int tap = static_cast<int>(weight);
  const int channel = p.by_channels.Split(&tap);
  Narrow(sum, static_cast<T*>(p.dw) + static_cast<int64_t>(channel) * p.taps + tap);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_DEPTHWISE_WGRAD_CUH_
