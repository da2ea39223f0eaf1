// Kernels whose every thread gathers some elements of the result from the elements of the source:
// y from x, and dx from dy. The weights of a block's channels wait in shared memory.
//
// NOTE [Taps of a gradient]. Element i of dx belongs to those taps k and elements o of dy with
// i + padding = o * stride + k * dilation. With u = i + padding and r = u mod stride, they are
// every (stride / g)th tap from the first with k * dilation = r mod stride, where g = gcd(dilation,
// stride), and one such tap further is dilation / g elements of dy back. No tap is tested in vain.

#ifndef JAX_CONVGRAD_CUDA_DEPTHWISE_GATHER_CUH_
#define JAX_CONVGRAD_CUDA_DEPTHWISE_GATHER_CUH_

#include "cuda/depthwise_elements.cuh"

namespace jax_convgrad {

struct GatherAxis {
  int source;  // size
  int result;  // size
  int kernel;
  int padding;
  int stride;
  int dilation;
  bool gradient;
  // Of a gradient, see NOTE [Taps of a gradient].
  int gcd;
  int period;       // stride / gcd
  int inverse;      // of dilation / gcd modulo period
  int source_step;  // dilation / gcd
  Divider by_stride, by_gcd, by_period;
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

struct TapRange {
  int tap, tap_step, source, source_step;
};

// The taps of one element of the result along an axis: tap, tap + tap_step, ... below the kernel's
// size; the elements they meet may lie outside the source.
__device__ inline TapRange TapsOf(const GatherAxis& axis, int result) {
  if (!axis.gradient) return {0, 1, result * axis.stride - axis.padding, axis.dilation};
  int quotient = result + axis.padding;
  const int residue = axis.by_stride.Split(&quotient);
  int multiple = residue;
  if (axis.by_gcd.Split(&multiple) != 0) return {axis.kernel, 1, 0, 0};
  int tap = multiple * axis.inverse;
  tap = axis.by_period.Split(&tap);
  const int back = axis.by_stride.Quotient(tap * axis.dilation - residue);
  return {tap, axis.period, quotient - back, -axis.source_step};
}

// What a thread has to do.
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

// Any problem. One element of x, N channels, per position.
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
    Sum<T> sums[N] = {};
    for (int kz = z.tap, oz = z.source; kz < p.z.kernel; kz += z.tap_step, oz += z.source_step) {
      if (!Inside(oz, p.z.source)) continue;
      const int64_t plane = static_cast<int64_t>(rest) * p.z.source + oz;
      for (int ky = y.tap, oy = y.source; ky < p.y.kernel; ky += y.tap_step, oy += y.source_step) {
        if (!Inside(oy, p.y.source)) continue;
        const T* const row = source + (plane * p.y.source + oy) * p.x.source * thread.channels;
        const int row_tap = (kz * p.y.kernel + ky) * p.x.kernel;
        for (int kx = x.tap, ox = x.source; kx < p.x.kernel;
             kx += kTaps * x.tap_step, ox += kTaps * x.source_step) {
          Sum<T> elements[kTaps][N];
          bool inside[kTaps];
#pragma unroll
          for (int j = 0; j < kTaps; ++j) {
            const int o = ox + j * x.source_step;
            inside[j] = kx + j * x.tap_step < p.x.kernel && Inside(o, p.x.source);
            Load<T, N>(row + o * thread.channels, inside[j], elements[j]);
          }
#pragma unroll
          for (int j = 0; j < kTaps; ++j) {
            if (!inside[j]) continue;
            Sum<T> w[N];
            thread.Weights(p, row_tap + kx + j * x.tap_step, w);
#pragma unroll
            for (int v = 0; v < N; ++v) sums[v] += elements[j][v] * w[v];
          }
        }
      }
    }
    const int64_t row = (static_cast<int64_t>(rest) * p.z.result + iz) * p.y.result + iy;
    Store<T, N>(sums, result + (row * p.x.result + ix) * thread.channels);
  }
}

// Where one element of the result further is one of the source further: y with stride 1, and dx,
// whose elements of one residue modulo the stride are taken together. Not dilated along x. L
// elements of x per position; Taps is the most taps that meet one, or one more where that is 1.
template <typename T, int N, int Taps, int L>
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
    const int iy = p.by_rows.Split(&rest);
    const int iz = p.by_depth.Split(&rest);
    const int ox = start + p.source_offset;
    // The tap that meets the first source element of a window, and the step to the next one's.
    const int first_tap = p.x.gradient ? residue + (Taps - 1) * stride : 0;
    const int tap_step = p.x.gradient ? -stride : 1;
    const TapRange z = TapsOf(p.z, iz), y = TapsOf(p.y, iy);
    Sum<T> sums[L][N] = {};
    for (int kz = z.tap, oz = z.source; kz < p.z.kernel; kz += z.tap_step, oz += z.source_step) {
      if (!Inside(oz, p.z.source)) continue;
      const int64_t plane = static_cast<int64_t>(rest) * p.z.source + oz;
      for (int ky = y.tap, oy = y.source; ky < p.y.kernel; ky += y.tap_step, oy += y.source_step) {
        if (!Inside(oy, p.y.source)) continue;
        const T* const row =
            source + ((plane * p.y.source + oy) * p.x.source + ox) * thread.channels;
        Sum<T> window[L + Taps - 1][N];
#pragma unroll
        for (int j = 0; j < L + Taps - 1; ++j) {
          Load<T, N>(row + j * thread.channels, Inside(ox + j, p.x.source), window[j]);
        }
        const Sum<T>* const weights =
            thread.staged + ((kz * p.y.kernel + ky) * p.x.kernel + first_tap) * thread.width;
#pragma unroll
        for (int j = 0; j < Taps; ++j) {
          if ((j == 0 || j == Taps - 1) && !Inside(first_tap + j * tap_step, p.x.kernel)) continue;
          Sum<T> w[N];
          LoadSums(weights + j * tap_step * thread.width, w);
#pragma unroll
          for (int t = 0; t < L; ++t) {
#pragma unroll
            for (int v = 0; v < N; ++v) sums[t][v] += window[t + j][v] * w[v];
          }
        }
      }
    }
    const int64_t row = (static_cast<int64_t>(rest) * p.z.result + iz) * p.y.result + iy;
    const int ix = start * stride + residue - (p.x.gradient ? p.x.padding : 0);
    T* const at = result + (row * p.x.result + ix) * thread.channels;
#pragma unroll
    for (int t = 0; t < L; ++t) {
      if (Inside(ix + t * stride, p.x.result)) {
        Store<T, N>(sums[t], at + t * stride * thread.channels);
      }
    }
  }
}

// dx of a plane whose windows overlap with at most one neighbour along each axis, as transposed
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
    Sum<T> window[2][L + 1][N];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int oy = row - 1 + i;
      const int64_t index = (static_cast<int64_t>(rest) * p.y.source + oy) * p.x.source + ox;
      const T* const at = source + index * thread.channels;
#pragma unroll
      for (int j = 0; j < L + 1; ++j) {
        Load<T, N>(at + j * thread.channels, Inside(oy, p.y.source) && Inside(ox + j, p.x.source),
                   window[i][j]);
      }
    }
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
      T* const at = result + index * thread.channels;
#pragma unroll
      for (int t = 0; t < L; ++t) {
        if (Inside(ix + t * p.x.stride, p.x.result)) {
          Store<T, N>(sums[t], at + t * p.x.stride * thread.channels);
        }
      }
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_DEPTHWISE_GATHER_CUH_
