// Kernels in which every thread gathers some elements of the result from the elements of the
// source: y from x, and dx from dy. The weights of a block's channels are in shared memory.
//
// NOTE [Taps of a gradient]. Element i of dx belongs to those taps k and elements o of dy with
// i + padding = o * stride + k * dilation. With u = i + padding and r = u mod stride, they are
// every (stride / g)th tap from the first with k * dilation = r mod stride, where g = gcd(dilation,
// stride), and one such tap further is dilation / g elements of dy back. No tap is tested in vain.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_DEPTHWISE_GATHER_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_DEPTHWISE_GATHER_CUH_

#include "cuda/kernels/common/elements.cuh"

namespace jax_convgrad {

struct GatherAxis {
  int source;  // size
  int result;  // size
  int kernel;
  int padding;
  int stride;
  int dilation;
  bool gradient;
  int source_step;  // elements of the source from one tap to the next
  // Of a gradient, see NOTE [Taps of a gradient].
  int gcd;
  int period;   // stride / gcd
  int inverse;  // of dilation / gcd modulo period
  Divider by_stride, by_gcd, by_period, by_source_step;
};

struct GatherParams {
  const void* source;
  const void* w;
  void* result;
  GatherAxis z, y, x;
  int channels;
  int lanes;  // threads side by side, each with a vector of channels
  int taps;
  bool staged;    // the weights are in shared memory
  int positions;  // of threads beyond the lanes: all but channels
  int block_positions;
  Divider by_slabs, by_lanes, by_taps;
  // A position is, the fastest first: the residue of x modulo the stride, a chunk of x, y, z,
  // batch.
  Divider by_residues, by_chunks, by_rows, by_depth;
  // GatherRow and GatherUpsampled. A chunk starts at this number plus its own times the chunk's
  // length.
  int first;
  int source_offset;  // from a chunk's start to the first source element it reads
  int first_row;      // GatherUpsampled: the same for y
};

// `count` taps from `tap`, each `tap_step` further, and the elements inside the source that they
// meet, from `source`, each `source_step` further.
struct TapRange {
  int tap, tap_step, source, source_step, count;
};

// The taps of one element of the result along an axis.
__device__ inline TapRange TapsOf(const GatherAxis& axis, int result) {
  TapRange range;
  if (axis.gradient) {
    int quotient = result + axis.padding;
    const int residue = axis.by_stride.Split(&quotient);
    int multiple = residue;
    if (axis.by_gcd.Split(&multiple) != 0) return {0, 1, 0, 0, 0};
    int tap = multiple * axis.inverse;
    tap = axis.by_period.Split(&tap);
    if (tap >= axis.kernel) return {0, 1, 0, 0, 0};
    const int back = axis.by_stride.Quotient(tap * axis.dilation - residue);
    range = {tap, axis.period, quotient - back, -axis.source_step,
             axis.by_period.Quotient(axis.kernel - 1 - tap) + 1};
  } else {
    range = {0, 1, result * axis.stride - axis.padding, axis.dilation, axis.kernel};
  }
  // The taps that fall before the source's first element, then those behind its last one.
  const int outside = range.source_step > 0 ? -range.source : range.source - (axis.source - 1);
  if (outside > 0) {
    const int skipped = axis.by_source_step.Quotient(outside + axis.source_step - 1);
    range.tap += skipped * range.tap_step;
    range.source += skipped * range.source_step;
    range.count -= skipped;
  }
  const int left = range.source_step > 0 ? axis.source - 1 - range.source : range.source;
  range.count = left < 0 ? 0 : min(range.count, axis.by_source_step.Quotient(left) + 1);
  return range;
}

// The work of a thread.
template <typename T, int N>
struct GatherThread {
  int64_t channels;
  int channel;           // the first of N
  int begin, end, step;  // positions
  bool any;
  int width;         // channels of the block
  Sum<T>* staged;    // the weights of tap 0 and this thread's channels
  const T* weights;  // the same in global memory

  __device__ explicit GatherThread(const GatherParams& p) {
    Sum<T>* const shared = SharedMemory<Sum<T>>();
    int block = static_cast<int>(blockIdx.x);
    const int slab = p.by_slabs.Split(&block);
    int position = static_cast<int>(threadIdx.x);
    const int lane = p.by_lanes.Split(&position);
    width = p.lanes * N;
    channels = p.channels;
    channel = slab * width + lane * N;
    const T* const w = static_cast<const T*>(p.w);
    if (p.staged) {
      const int count = p.taps * width;
      for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
        int c = i;
        const int tap = p.by_taps.Split(&c);
        if (slab * width + c < p.channels) {
          shared[tap * width + c] = Widen(w[static_cast<int64_t>(slab * width) * p.taps + i]);
        }
      }
      __syncthreads();
    }
    staged = shared + lane * N;
    weights = w + static_cast<int64_t>(channel) * p.taps;
    step = p.by_lanes.Quotient(static_cast<int>(blockDim.x));
    begin = block * p.block_positions + position;
    end = min(p.positions, (block + 1) * p.block_positions);
    any = channel < p.channels && position < step;
  }

  __device__ void Weights(const GatherParams& p, int tap, Sum<T> (&values)[N]) const {
    if (p.staged) {
      LoadSums(staged + tap * width, values);
    } else {
#pragma unroll
      for (int v = 0; v < N; ++v)
        values[v] = Widen(weights[static_cast<int64_t>(v) * p.taps + tap]);
    }
  }
};

// Any problem. One element of the result's row, N channels, per position.
template <typename T, int N>
__global__ void __launch_bounds__(256) GatherPoint(GatherParams p) {
  constexpr int kTaps = 4;
  const GatherThread<T, N> thread(p);
  if (!thread.any) return;
  const T* const source = static_cast<const T*>(p.source) + thread.channel;
  T* const result = static_cast<T*>(p.result) + thread.channel;
  for (int position = thread.begin; position < thread.end; position += thread.step) {
    int rest = position;
    const int ix = p.by_chunks.Split(&rest);
    const int iy = p.by_rows.Split(&rest);
    const int iz = p.by_depth.Split(&rest);
    const TapRange z = TapsOf(p.z, iz), y = TapsOf(p.y, iy), x = TapsOf(p.x, ix);
    const int64_t step = x.source_step * thread.channels;
    Sum<T> sums[N] = {};
    for (int i = 0; i < z.count; ++i) {
      const int64_t plane = static_cast<int64_t>(rest) * p.z.source + z.source + i * z.source_step;
      const int plane_tap = (z.tap + i * z.tap_step) * p.y.kernel;
      for (int j = 0; j < y.count; ++j) {
        const int64_t row = plane * p.y.source + y.source + j * y.source_step;
        const T* at = source + (row * p.x.source + x.source) * thread.channels;
        int tap = (plane_tap + y.tap + j * y.tap_step) * p.x.kernel + x.tap;
        for (int left = x.count; left > 0; left -= kTaps) {
          Elements<T, N> elements[kTaps];
#pragma unroll
          for (int k = 0; k < kTaps; ++k) {
            elements[k] = Load<T, N>(at, k < left);
            at += step;
          }
#pragma unroll
          for (int k = 0; k < kTaps; ++k) {
            if (k < left) {
              Sum<T> w[N];
              thread.Weights(p, tap, w);
#pragma unroll
              for (int v = 0; v < N; ++v) sums[v] += elements[k][v] * w[v];
            }
            tap += x.tap_step;
          }
        }
      }
    }
    const int64_t row = (static_cast<int64_t>(rest) * p.z.result + iz) * p.y.result + iy;
    Store<T, N>(sums, result + (row * p.x.result + ix) * thread.channels);
  }
}

// y, and dx with stride 1 along x, for all dilations. L elements of the result's row per position.
// The row of taps is processed Taps taps at a time.
template <typename T, int N, int Taps, int L>
__global__ void __launch_bounds__(256) GatherWindow(GatherParams p) {
  const GatherThread<T, N> thread(p);
  if (!thread.any) return;
  const T* const source = static_cast<const T*>(p.source) + thread.channel;
  T* const result = static_cast<T*>(p.result) + thread.channel;
  const int tap_step = p.x.gradient ? -p.x.dilation : p.x.dilation;
  const int64_t tap_stride = tap_step * thread.channels;
  const int64_t stride = p.x.stride * thread.channels;
  for (int position = thread.begin; position < thread.end; position += thread.step) {
    int rest = position;
    const int ix = p.by_chunks.Split(&rest) * L;
    const int iy = p.by_rows.Split(&rest);
    const int iz = p.by_depth.Split(&rest);
    const int ox = p.x.gradient ? ix + p.x.padding : ix * p.x.stride - p.x.padding;
    const TapRange z = TapsOf(p.z, iz), y = TapsOf(p.y, iy);
    Sum<T> sums[L][N] = {};
    for (int i = 0; i < z.count; ++i) {
      const int64_t plane = static_cast<int64_t>(rest) * p.z.source + z.source + i * z.source_step;
      const int plane_tap = (z.tap + i * z.tap_step) * p.y.kernel;
      for (int j = 0; j < y.count; ++j) {
        const int64_t row = plane * p.y.source + y.source + j * y.source_step;
        const T* row_at = source + (row * p.x.source + ox) * thread.channels;
        const Sum<T>* weights =
            thread.staged + (plane_tap + y.tap + j * y.tap_step) * p.x.kernel * thread.width;
        for (int kx = 0; kx < p.x.kernel; kx += Taps) {
          const int taps = p.x.kernel - kx;
          Elements<T, N> elements[L][Taps];
          const T* start = row_at;
#pragma unroll
          for (int t = 0; t < L; ++t) {
            const T* at = start;
            const int o = ox + t * p.x.stride + kx * tap_step;
#pragma unroll
            for (int k = 0; k < Taps; ++k) {
              elements[t][k] = Load<T, N>(at, k < taps && Inside(o + k * tap_step, p.x.source));
              at += tap_stride;
            }
            start += stride;
          }
          row_at += Taps * tap_stride;
#pragma unroll
          for (int k = 0; k < Taps; ++k) {
            if (k >= taps) break;
            Sum<T> w[N];
            LoadSums(weights, w);
            weights += thread.width;
#pragma unroll
            for (int t = 0; t < L; ++t) {
#pragma unroll
              for (int v = 0; v < N; ++v) sums[t][v] += elements[t][k][v] * w[v];
            }
          }
        }
      }
    }
    const int64_t row = (static_cast<int64_t>(rest) * p.z.result + iz) * p.y.result + iy;
    T* at = result + (row * p.x.result + ix) * thread.channels;
#pragma unroll
    for (int t = 0; t < L; ++t) {
      if (ix + t < p.x.result) Store<T, N>(sums[t], at);
      at += thread.channels;
    }
  }
}

// Where one element of the result further is one of the source further: y with stride 1, and dx,
// whose elements of one residue modulo the stride are taken together. Not dilated along x. L
// elements of x per position; Taps is the most taps that meet one, or one more where that is 1.
// Of R = 2 rows at once, which then must be neighbors in the same sense, with stride 1.
template <typename T, int N, int Taps, int L, int R>
__global__ void __launch_bounds__(256) GatherRow(GatherParams p) {
  const GatherThread<T, N> thread(p);
  if (!thread.any) return;
  const T* const source = static_cast<const T*>(p.source) + thread.channel;
  T* const result = static_cast<T*>(p.result) + thread.channel;
  const int stride = p.x.gradient ? p.x.stride : 1;
  for (int position = thread.begin; position < thread.end; position += thread.step) {
    int rest = position;
    const int residue = p.by_residues.Split(&rest);
    const int start = p.first + p.by_chunks.Split(&rest) * L;
    const int iy = p.by_rows.Split(&rest) * R;
    const int iz = p.by_depth.Split(&rest);
    const int ox = start + p.source_offset;
    // The tap that meets the first source element of a window, and the step to the next one's.
    const int first_tap = p.x.gradient ? residue + (Taps - 1) * stride : 0;
    const int tap_step = p.x.gradient ? -stride : 1;
    const int weight_step = tap_step * thread.width;
    const TapRange z = TapsOf(p.z, iz);
    TapRange y;
    if constexpr (R == 1) {
      y = TapsOf(p.y, iy);
    } else {  // every row that a tap of either row of the result meets
      y = p.y.gradient ? TapRange{0, 1, iy + 1 + p.y.padding, -1, p.y.kernel + 1}
                       : TapRange{0, 1, iy - p.y.padding, 1, p.y.kernel + 1};
    }
    Sum<T> sums[R][L][N] = {};
    for (int i = 0; i < z.count; ++i) {
      const int64_t plane = static_cast<int64_t>(rest) * p.z.source + z.source + i * z.source_step;
      const int plane_tap = (z.tap + i * z.tap_step) * p.y.kernel;
      for (int j = 0; j < y.count; ++j) {
        const int oy = y.source + j * y.source_step;
        if (R > 1 && !Inside(oy, p.y.source)) continue;
        const T* at = source + ((plane * p.y.source + oy) * p.x.source + ox) * thread.channels;
        Elements<T, N> window[L + Taps - 1];
#pragma unroll
        for (int k = 0; k < L + Taps - 1; ++k) {
          window[k] = Load<T, N>(at, Inside(ox + k, p.x.source));
          at += thread.channels;
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
          // Tap 0 of a gradient's later row is met first.
          const int ky = y.tap + j * y.tap_step - (p.y.gradient ? R - 1 - r : r);
          if (R > 1 && !Inside(ky, p.y.kernel)) continue;
          const Sum<T>* weights =
              thread.staged + ((plane_tap + ky) * p.x.kernel + first_tap) * thread.width;
#pragma unroll
          for (int k = 0; k < Taps; ++k, weights += weight_step) {
            if ((k == 0 || k == Taps - 1) && !Inside(first_tap + k * tap_step, p.x.kernel)) {
              continue;
            }
            Sum<T> w[N];
            LoadSums(weights, w);
#pragma unroll
            for (int t = 0; t < L; ++t) {
#pragma unroll
              for (int v = 0; v < N; ++v) sums[r][t][v] += window[t + k][v] * w[v];
            }
          }
        }
      }
    }
    const int64_t row = (static_cast<int64_t>(rest) * p.z.result + iz) * p.y.result + iy;
    const int ix = start * stride + residue - (p.x.gradient ? p.x.padding : 0);
    const int64_t step = stride * thread.channels;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (R > 1 && iy + r >= p.y.result) break;
      T* at = result + ((row + r) * p.x.result + ix) * thread.channels;
#pragma unroll
      for (int t = 0; t < L; ++t) {
        if (Inside(ix + t * stride, p.x.result)) Store<T, N>(sums[r][t], at);
        at += step;
      }
    }
  }
}

// dx of a plane whose windows overlap with at most one neighbor along each axis, as transposed
// convolutions that enlarge images are: reads each element of dy for all elements of dx it meets. L
// elements of x of one residue and all residues of y per position. Not dilated.
template <typename T, int N, int L>
__global__ void __launch_bounds__(256) GatherUpsampled(GatherParams p) {
  const GatherThread<T, N> thread(p);
  if (!thread.any) return;
  const T* const source = static_cast<const T*>(p.source) + thread.channel;
  T* const result = static_cast<T*>(p.result) + thread.channel;
  for (int position = thread.begin; position < thread.end; position += thread.step) {
    int rest = position;
    const int residue = p.by_residues.Split(&rest);
    const int start = p.first + p.by_chunks.Split(&rest) * L;
    const int row = p.first_row + p.by_rows.Split(&rest);
    const int ox = start - 1;
    Elements<T, N> window[2][L + 1];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int oy = row - 1 + i;
      const int64_t index = (static_cast<int64_t>(rest) * p.y.source + oy) * p.x.source + ox;
      const T* at = source + index * thread.channels;
      const int width = Inside(oy, p.y.source) ? p.x.source : 0;
#pragma unroll
      for (int j = 0; j < L + 1; ++j) {
        window[i][j] = Load<T, N>(at, Inside(ox + j, width));
        at += thread.channels;
      }
    }
    const int64_t step = p.x.stride * thread.channels;
    const int ix = start * p.x.stride + residue - p.x.padding;
    for (int ry = 0; ry < p.y.stride; ++ry) {
      const int iy = row * p.y.stride + ry - p.y.padding;
      if (!Inside(iy, p.y.result)) continue;
      Sum<T> sums[L][N] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int ky = ry + (1 - i) * p.y.stride;
        if (ky >= p.y.kernel) continue;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int kx = residue + (1 - j) * p.x.stride;
          if (kx >= p.x.kernel) continue;
          Sum<T> w[N];
          LoadSums(thread.staged + (ky * p.x.kernel + kx) * thread.width, w);
#pragma unroll
          for (int t = 0; t < L; ++t) {
#pragma unroll
            for (int v = 0; v < N; ++v) sums[t][v] += window[i][t + j][v] * w[v];
          }
        }
      }
      const int64_t index = (static_cast<int64_t>(rest) * p.y.result + iy) * p.x.result + ix;
      T* at = result + index * thread.channels;
#pragma unroll
      for (int t = 0; t < L; ++t) {
        if (Inside(ix + t * p.x.stride, p.x.result)) Store<T, N>(sums[t], at);
        at += step;
      }
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_DEPTHWISE_GATHER_CUH_
