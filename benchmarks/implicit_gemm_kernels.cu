// Times the implicit GEMM kernels alone, without JAX: every plan of every case, forward and
// backward, with both orders of weights. A row gives the time, the roofline (x, w and y once at 3.0
// TB/s), the time of a plain kernel that reads and writes as many bytes, and the ratios to both.
// Every result is compared with a plain kernel that sums in float64, its array filled with NaNs
// before.
//
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Icpp
//     benchmarks/implicit_gemm_kernels.cu cpp/cuda/kernels/implicit_gemm/plan.cu
//     -o implicit_gemm_kernels
//   ./implicit_gemm_kernels [parts of rows' names, such as "unet_64" or "wgrad HWIO"]
//   ./implicit_gemm_kernels --random COUNT SEED
//
// The second form computes small random problems of small integers, of which all sums are exact, as
// on devices of other sizes, and looks for elements that are wrong and for what is written beside
// the result.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels/implicit_gemm/plan.h"

namespace {

using namespace jax_convgrad;  // NOLINT: a benchmark
using Axes = ImplicitGemmProblem::PerAxis;

constexpr double kBytesPerMicrosecond = 3.0e6;
constexpr int64_t kElementBytes = 2;
constexpr GemmKind kKinds[] = {GemmKind::kFprop, GemmKind::kDgrad, GemmKind::kWgrad};
const char* const kKindNames[] = {"fprop", "dgrad", "wgrad"};

void Check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

struct Case {
  const char* name;
  int64_t batch, in_channels, out_channels;
  Axes in, kernel, padding, dilation;  // the same padding on both sides
  bool half = false;                   // f16 too
};

constexpr Axes kOne{1, 1, 1}, kNone{0, 0, 0};
constexpr Axes k3d{3, 3, 3}, k2d{1, 3, 3}, k2dPadding{0, 1, 1};

const Case kCases[] = {
    {"unet3d_32", 2, 32, 32, {96, 96, 96}, k3d, kOne, kOne, true},
    {"unet3d_16", 2, 16, 16, {96, 96, 96}, k3d, kOne, kOne},
    {"nnunet_enc0", 2, 32, 32, {128, 128, 128}, k3d, kOne, kOne},
    {"nnunet_dec0", 2, 64, 32, {96, 96, 96}, k3d, kOne, kOne},
    {"nnunet_enc1", 2, 64, 64, {64, 64, 64}, k3d, kOne, kOne},
    {"unetr_dec0", 2, 32, 16, {96, 96, 96}, k3d, kOne, kOne},
    {"vnet_16", 2, 16, 16, {128, 128, 64}, {5, 5, 5}, {2, 2, 2}, kOne},
    {"vnet_32", 2, 32, 32, {64, 64, 32}, {5, 5, 5}, {2, 2, 2}, kOne},
    {"swinunetr_48", 1, 48, 48, {96, 96, 96}, k3d, kOne, kOne},
    {"segresnet_8", 1, 8, 8, {128, 128, 128}, k3d, kOne, kOne},
    {"voxelmorph_16", 1, 16, 16, {160, 192, 224}, k3d, kOne, kOne},
    {"voxelmorph_32", 2, 32, 32, {80, 96, 112}, k3d, kOne, kOne},
    {"slowfast_fast8", 8, 8, 8, {32, 56, 56}, k2d, k2dPadding, kOne},
    {"slowfast_fast16", 8, 16, 16, {32, 28, 28}, k2d, k2dPadding, kOne},
    {"i3d_mixed", 8, 16, 48, {16, 28, 28}, k3d, kOne, kOne},
    {"conv2d_16", 8, 16, 16, {1, 256, 256}, k2d, k2dPadding, kOne},
    {"conv2d_32", 8, 32, 32, {1, 256, 256}, k2d, k2dPadding, kOne, true},
    {"conv2d_64", 8, 64, 64, {1, 256, 256}, k2d, k2dPadding, kOne},
    {"unet_64", 4, 64, 64, {1, 570, 570}, k2d, kNone, kOne},
    {"unetpp_32", 8, 32, 32, {1, 512, 512}, k2d, k2dPadding, kOne},
    {"u2net_16", 8, 16, 16, {1, 320, 320}, k2d, k2dPadding, kOne},
    {"u2net_d2", 8, 32, 32, {1, 160, 160}, k2d, {0, 2, 2}, {1, 2, 2}},
    {"stylegan2_64", 4, 64, 64, {1, 512, 512}, k2d, k2dPadding, kOne},
    {"stylegan2_32", 2, 32, 32, {1, 1024, 1024}, k2d, k2dPadding, kOne},
    {"progan_16", 4, 16, 16, {1, 1024, 1024}, k2d, k2dPadding, kOne},
    {"taesd_64", 2, 64, 64, {1, 512, 512}, k2d, k2dPadding, kOne},
    {"hrnet_w32", 32, 32, 32, {1, 64, 64}, k2d, k2dPadding, kOne},
    {"hrnet_w48", 32, 48, 48, {1, 96, 72}, k2d, k2dPadding, kOne},
    {"edsr_64", 16, 64, 64, {1, 96, 96}, k2d, k2dPadding, kOne},
    {"esrgan_rdb1", 16, 64, 32, {1, 128, 128}, k2d, k2dPadding, kOne},
    {"dncnn_64", 128, 64, 64, {1, 50, 50}, k2d, k2dPadding, kOne},
    {"resnet20_16", 256, 16, 16, {1, 32, 32}, k2d, k2dPadding, kOne},
    {"resnet20_32", 256, 32, 32, {1, 16, 16}, k2d, k2dPadding, kOne},
    {"yolov8n_c2f", 16, 16, 16, {1, 160, 160}, k2d, k2dPadding, kOne},
    {"effnetv2_fused24", 32, 24, 24, {1, 192, 192}, k2d, k2dPadding, kOne},
    {"dla34_16", 8, 16, 16, {1, 512, 512}, k2d, k2dPadding, kOne},
    {"raft_64", 2, 64, 64, {1, 220, 512}, k2d, k2dPadding, kOne},
    {"monodepth_16", 12, 32, 16, {1, 192, 640}, k2d, k2dPadding, kOne},
    {"pwcnet_32", 4, 32, 32, {1, 224, 512}, k2d, k2dPadding, kOne},
    {"conv1d_32", 8, 32, 32, {1, 1, 40960}, {1, 1, 7}, {0, 0, 9}, {1, 1, 3}, true},
    {"hifigan_32", 16, 32, 32, {1, 1, 8192}, {1, 1, 11}, {0, 0, 25}, {1, 1, 5}},
    {"hifigan_64", 16, 64, 64, {1, 1, 4096}, {1, 1, 7}, {0, 0, 9}, {1, 1, 3}},
    {"bigvgan_48", 8, 48, 48, {1, 1, 16384}, {1, 1, 3}, {0, 0, 1}, kOne},
    {"bigvgan_24", 8, 24, 24, {1, 1, 32768}, {1, 1, 11}, {0, 0, 5}, kOne},
    {"encodec_res32", 16, 32, 16, {1, 1, 24000}, {1, 1, 3}, {0, 0, 1}, kOne},
    {"spliceai_k11", 12, 32, 32, {1, 1, 15000}, {1, 1, 11}, {0, 0, 20}, {1, 1, 4}},
    {"waveunet_15", 16, 24, 48, {1, 1, 16384}, {1, 1, 15}, {0, 0, 7}, kOne},
    {"wavenet_64", 4, 64, 64, {1, 1, 16000}, {1, 1, 3}, {0, 0, 8}, {1, 1, 8}},
};

int64_t Volume(const Axes& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

// Numbers of elements.
struct Counts {
  explicit Counts(const ImplicitGemmProblem& p)
      : x(p.batch * Volume(p.in) * p.in_channels),
        w(Volume(p.kernel) * p.in_channels * p.out_channels),
        y(p.batch * Volume(p.out) * p.out_channels) {}

  int64_t OfResult(GemmKind kind) const {
    return kind == GemmKind::kFprop ? y : kind == GemmKind::kDgrad ? x : w;
  }

  int64_t x, w, y;
};

ImplicitGemmProblem ProblemOf(const Case& of, const GemmDevice& device) {
  ImplicitGemmProblem p;
  p.batch = of.batch;
  p.in_channels = of.in_channels;
  p.out_channels = of.out_channels;
  p.in = of.in;
  p.kernel = of.kernel;
  p.padding_low = of.padding;
  p.dilation = of.dilation;
  for (size_t i = 0; i < 3; ++i) {
    p.out[i] = of.in[i] + 2 * of.padding[i] - (of.kernel[i] - 1) * of.dilation[i];
  }
  p.workspace_limit = int64_t{1} << 30;
  p.device = device;
  return p;
}

// `copies` arrays of `bytes` bytes that take turns.
class Arrays {
 public:
  Arrays(int64_t bytes, int64_t copies) : bytes_((bytes + 255) / 256 * 256) {
    Check(cudaMalloc(&data_, static_cast<size_t>(bytes_ * copies)), "cudaMalloc");
  }
  Arrays(const Arrays&) = delete;
  ~Arrays() { cudaFree(data_); }
  char* operator[](int64_t copy) const { return data_ + copy * bytes_; }
  int64_t bytes() const { return bytes_; }

 private:
  const int64_t bytes_;
  char* data_ = nullptr;
};

__device__ float ToFloat(__half value) { return __half2float(value); }
__device__ float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

// Numbers from -1 to 1, or, if `whole` is not 0, whole ones up to it.
template <typename T>
__global__ void Fill(T* to, int64_t count, unsigned long long seed, int whole) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    unsigned long long bits = (static_cast<unsigned long long>(i) + seed) * 0x9e3779b97f4a7c15ull;
    bits = (bits ^ (bits >> 31)) * 0xbf58476d1ce4e5b9ull;
    const int all = whole > 0 ? 2 * whole + 1 : 20001;
    const float number = static_cast<float>((bits >> 29) % static_cast<unsigned>(all));
    to[i] = static_cast<T>(whole > 0 ? number - static_cast<float>(whole) : number / 10000.0f - 1);
  }
}

// A problem as plain numbers.
struct Sizes {
  explicit Sizes(const ImplicitGemmProblem& p)
      : kind(p.kind),
        in_out(p.weights == GemmWeights::kInOut),
        batch(static_cast<int>(p.batch)),
        in_channels(static_cast<int>(p.in_channels)),
        out_channels(static_cast<int>(p.out_channels)) {
    for (size_t i = 0; i < 3; ++i) {
      in[i] = static_cast<int>(p.in[i]);
      out[i] = static_cast<int>(p.out[i]);
      kernel[i] = static_cast<int>(p.kernel[i]);
      padding[i] = static_cast<int>(p.padding_low[i]);
      dilation[i] = static_cast<int>(p.dilation[i]);
    }
  }

  // The position of x that a tap of a window reads, or -1; or the window of which a tap reads a
  // position of x.
  __device__ int64_t Read(int window, int tap) const { return Moved(window, tap, out, in, 1); }
  __device__ int64_t ReadBy(int position, int tap) const {
    return Moved(position, tap, in, out, -1);
  }
  __device__ int64_t Moved(int position, int tap, const int (&from)[3], const int (&to)[3],
                           int sign) const {
    int64_t at = 0;
    int along[3];
    for (int i = 2; i >= 0; --i) {
      along[i] = position % from[i] + sign * (tap % kernel[i] * dilation[i] - padding[i]);
      position /= from[i], tap /= kernel[i];
    }
    for (int i = 0; i < 3; ++i) {
      if (along[i] < 0 || along[i] >= to[i]) return -1;
      at = at * to[i] + along[i];
    }
    return static_cast<int64_t>(position) * to[0] * to[1] * to[2] + at;
  }
  __device__ int64_t Weight(int o, int tap, int c) const {
    return in_out ? (int64_t{tap} * in_channels + c) * out_channels + o
                  : (int64_t{o} * kernel[0] * kernel[1] * kernel[2] + tap) * in_channels + c;
  }

  GemmKind kind;
  bool in_out;
  int batch, in_channels, out_channels;
  int in[3], out[3], kernel[3], padding[3], dilation[3];
};

struct Comparison {
  double error_squares, squares;
  unsigned long long unwritten, different, first;  // the first that differs
};

constexpr int kCompareThreads = 128;

// Every `step`-th element of the result. Of wgrad, which sums over all windows, a block has an
// element, else a thread.
template <typename T>
__global__ void __launch_bounds__(kCompareThreads)
    Compare(Sizes p, const T* x, const T* w, const T* y, int64_t count, int64_t step,
            Comparison* comparison) {
  const int taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
  const bool wgrad = p.kind == GemmKind::kWgrad;
  const int64_t threads = wgrad ? 1 : kCompareThreads;
  for (int64_t i = blockIdx.x * threads + (wgrad ? 0 : threadIdx.x); i * step < count;
       i += gridDim.x * threads) {
    const int64_t at = i * step;
    double sum = 0;
    T got;
    if (p.kind == GemmKind::kFprop) {
      const int o = static_cast<int>(at % p.out_channels);
      for (int tap = 0; tap < taps; ++tap) {
        const int64_t position = p.Read(static_cast<int>(at / p.out_channels), tap);
        for (int c = 0; position >= 0 && c < p.in_channels; ++c) {
          sum += static_cast<double>(ToFloat(x[position * p.in_channels + c])) *
                 ToFloat(w[p.Weight(o, tap, c)]);
        }
      }
      got = y[at];
    } else if (p.kind == GemmKind::kDgrad) {
      const int c = static_cast<int>(at % p.in_channels);
      for (int tap = 0; tap < taps; ++tap) {
        const int64_t window = p.ReadBy(static_cast<int>(at / p.in_channels), tap);
        for (int o = 0; window >= 0 && o < p.out_channels; ++o) {
          sum += static_cast<double>(ToFloat(y[window * p.out_channels + o])) *
                 ToFloat(w[p.Weight(o, tap, c)]);
        }
      }
      got = x[at];
    } else {
      __shared__ double sums[kCompareThreads];
      const int64_t row = int64_t{taps} * p.in_channels;
      const int o = static_cast<int>(p.in_out ? at % p.out_channels : at / row);
      const int rest = static_cast<int>(p.in_out ? at / p.out_channels : at % row);
      const int c = rest % p.in_channels, tap = rest / p.in_channels;
      const int windows = p.batch * p.out[0] * p.out[1] * p.out[2];
      for (int window = static_cast<int>(threadIdx.x); window < windows;
           window += kCompareThreads) {
        const int64_t position = p.Read(window, tap);
        if (position < 0) continue;
        sum += static_cast<double>(ToFloat(x[position * p.in_channels + c])) *
               ToFloat(y[int64_t{window} * p.out_channels + o]);
      }
      __syncthreads();
      sums[threadIdx.x] = sum;
      __syncthreads();
      if (threadIdx.x != 0) continue;
      sum = 0;
      for (const double part : sums) sum += part;
      got = w[at];
    }
    const float value = ToFloat(got);
    if (value != value) atomicAdd(&comparison->unwritten, 1ull);
    if (value != ToFloat(static_cast<T>(static_cast<float>(sum)))) {
      atomicAdd(&comparison->different, 1ull);
      atomicMin(&comparison->first, static_cast<unsigned long long>(at));
    }
    if (value != value) continue;
    atomicAdd(&comparison->error_squares, (value - sum) * (value - sum));
    atomicAdd(&comparison->squares, sum * sum);
  }
}

// Every `step`-th element.
template <typename T>
Comparison CompareAll(const ImplicitGemmProblem& problem, const ImplicitGemmArrays& arrays,
                      int64_t count, int64_t step) {
  static Comparison* found = nullptr;
  if (found == nullptr) Check(cudaMalloc(&found, sizeof(Comparison)), "cudaMalloc");
  Comparison comparison{0, 0, 0, 0, ~0ull};
  Check(cudaMemcpy(found, &comparison, sizeof(comparison), cudaMemcpyHostToDevice), "cudaMemcpy");
  Compare<<<2640, kCompareThreads>>>(Sizes(problem), static_cast<const T*>(arrays.x),
                                     static_cast<const T*>(arrays.w),
                                     static_cast<const T*>(arrays.y), count, step, found);
  Check(cudaMemcpy(&comparison, found, sizeof(comparison), cudaMemcpyDeviceToHost), "comparing");
  return comparison;
}

// Reads and writes as many bytes.
__global__ void __launch_bounds__(256)
    Stream(const uint4* from, int64_t reads, uint4* to, int64_t writes) {
  const int64_t read_share = (reads + gridDim.x - 1) / gridDim.x;
  const int64_t write_share = (writes + gridDim.x - 1) / gridDim.x;
  const int64_t first_read = blockIdx.x * read_share, first_write = blockIdx.x * write_share;
  uint4 value = make_uint4(1, 2, 3, 4);
#pragma unroll 8
  for (int64_t i = first_read + threadIdx.x; i < min(first_read + read_share, reads); i += 256) {
    const uint4 word = from[i];
    value.x ^= word.x, value.y ^= word.y, value.z ^= word.z, value.w ^= word.w;
  }
#pragma unroll 4
  for (int64_t i = first_write + threadIdx.x; i < min(first_write + write_share, writes);
       i += 256) {
    to[i] = value;
  }
  // What is read must count, also where next to nothing is written.
  if (value.x == 0x12345678 && value.y == 77 && writes > 0) to[0] = value;
}

// The median time of a launch, in microseconds: events around some launches in a row, none of
// which finds its arrays in the cache.
double TimeOf(const std::function<void(int64_t)>& launch) {
  constexpr int kLaunches = 12, kTrials = 9;
  static cudaEvent_t begin = nullptr, end = nullptr;
  if (begin == nullptr) {
    Check(cudaEventCreate(&begin), "cudaEventCreate");
    Check(cudaEventCreate(&end), "cudaEventCreate");
  }
  int64_t turn = 0;
  for (int i = 0; i < 4; ++i) launch(turn++);
  std::vector<float> times;
  for (int trial = 0; trial < kTrials; ++trial) {
    Check(cudaEventRecord(begin), "cudaEventRecord");
    for (int i = 0; i < kLaunches; ++i) launch(turn++);
    Check(cudaEventRecord(end), "cudaEventRecord");
    Check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    times.push_back(milliseconds * 1000 / kLaunches);
  }
  std::sort(times.begin(), times.end());
  return times[kTrials / 2];
}

// Whether all words of one of the parts are in a name.
bool Wanted(const std::string& name, const std::vector<std::string>& parts) {
  return parts.empty() || std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
           size_t begin = 0;
           while (begin < part.size()) {
             const size_t end = std::min(part.find(' ', begin), part.size());
             const std::string word = part.substr(begin, end - begin);
             if ((" " + name + " ").find(" " + word + " ") == std::string::npos) return false;
             begin = end + 1;
           }
           return true;
         });
}

std::string RowName(const Case& of, const ImplicitGemmProblem& p) {
  return std::string(of.name) + " " + kKindNames[static_cast<int>(p.kind)] +
         (p.type == GemmType::kF16 ? " f16" : " bf16") +
         (p.weights == GemmWeights::kInOut ? " HWIO" : " OHWI");
}

// The rows of a case and a type.
template <typename T>
bool RunCase(const Case& of, GemmType type, const GemmDevice& device, int64_t cache_bytes,
             const std::vector<std::string>& parts) {
  std::vector<ImplicitGemmProblem> rows;
  for (const GemmKind kind : kKinds) {
    for (const GemmWeights weights : {GemmWeights::kInOut, GemmWeights::kOutIn}) {
      ImplicitGemmProblem p = ProblemOf(of, device);
      p.kind = kind;
      p.type = type;
      p.weights = weights;
      if (Wanted(RowName(of, p), parts)) rows.push_back(p);
    }
  }
  if (rows.empty()) return true;
  const Counts counts(rows[0]);
  const int64_t bytes = kElementBytes * (counts.x + counts.y + counts.w);
  const int64_t copies = 2 + 5 * cache_bytes / bytes;
  const Arrays x(kElementBytes * counts.x, copies), y(kElementBytes * counts.y, copies),
      w(kElementBytes * counts.w, copies);
  const auto fill = [&](const Arrays& arrays, int64_t count, unsigned number) {
    for (int64_t copy = 0; copy < copies; ++copy) {
      // Far apart: Fill counts on from its seed, and no array may be a part of another.
      const auto seed = static_cast<unsigned long long>(3 * copy + number) << 40;
      Fill<<<1320, 256>>>(reinterpret_cast<T*>(arrays[copy]), count, seed, 0);
    }
  };

  bool right = true;
  double stream = 1e30;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ImplicitGemmProblem& problem = rows[i];
    const std::string row = RowName(of, problem);
    const int64_t result_count = counts.OfResult(problem.kind);
    const Arrays& result = problem.kind == GemmKind::kFprop   ? y
                           : problem.kind == GemmKind::kDgrad ? x
                                                              : w;
    if (i == 0 || rows[i - 1].kind != problem.kind) {
      // The operands are read once, the result is written once.
      const int64_t writes = kElementBytes * result_count / 16, reads = bytes / 16 - writes;
      const Arrays from(16 * reads, copies), to(16 * writes, copies);
      stream = 1e30;
      for (const int64_t blocks : {8, 16}) {
        stream = std::min(stream, TimeOf([&](int64_t turn) {
                            const int64_t copy = turn % copies;
                            Stream<<<static_cast<unsigned>(device.multiprocessors * blocks), 256>>>(
                                reinterpret_cast<const uint4*>(from[copy]), reads,
                                reinterpret_cast<uint4*>(to[copy]), writes);
                          }));
      }
      // The result of the row before may be an operand now.
      fill(x, counts.x, 0);
      fill(y, counts.y, 1);
      fill(w, counts.w, 2);
    }
    const auto plans = ImplicitGemmPlan::Candidates(problem);
    if (plans.empty()) std::printf("%-36s no plan on this device\n", row.c_str());
    for (const auto& plan : plans) {
      const Arrays workspace(plan->workspace_bytes() + 256, 1);
      Check(cudaMemset(workspace[0], 0xff, static_cast<size_t>(workspace.bytes())), "cudaMemset");
      const auto arrays = [&](int64_t turn) {
        const int64_t copy = turn % copies;
        return ImplicitGemmArrays{x[copy], w[copy], y[copy], workspace[0]};
      };
      const auto launch = [&](int64_t turn) {
        Check(plan->Run(arrays(turn), nullptr), plan->name().c_str());
      };
      Check(cudaMemset(result[1], 0xff, static_cast<size_t>(kElementBytes * result_count)),
            "cudaMemset");
      launch(1);
      const int64_t checked = problem.kind == GemmKind::kWgrad ? 2048 : 200000;
      const Comparison found = CompareAll<T>(problem, arrays(1), result_count,
                                             std::max<int64_t>(1, result_count / checked | 1));
      const double error = std::sqrt(found.error_squares / found.squares);
      // Rounding the result to nearest errs by at most half a unit, 2^-9 or 2^-12 of a value.
      const double rounding = type == GemmType::kF16 ? 0x1p-12 : 0x1p-9;
      const bool good = error <= 1.1 * rounding && found.unwritten == 0;
      right = right && good;
      const double time = TimeOf(launch);
      const double roofline = static_cast<double>(bytes) / kBytesPerMicrosecond;
      std::printf("%-36s %-28s %8.1f %8.1f %8.1f %6.2f %6.2f %9.1e %s\n", row.c_str(),
                  plan->name().c_str(), time, roofline, stream, time / roofline, time / stream,
                  error, good ? "" : "WRONG");
      std::fflush(stdout);
    }
  }
  return right;
}

int64_t Between(std::mt19937_64* random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(*random);
}

// One that is likely to have a plan. Of the axes that are not there, all has neutral values.
ImplicitGemmProblem RandomProblem(const GemmDevice& device, std::mt19937_64* random) {
  const auto between = [&](int64_t low, int64_t high) { return Between(random, low, high); };
  while (true) {
    ImplicitGemmProblem p;
    p.kind = kKinds[between(0, 2)];
    p.type = between(0, 3) == 0 ? GemmType::kF16 : GemmType::kBF16;
    p.weights = between(0, 1) == 0 ? GemmWeights::kInOut : GemmWeights::kOutIn;
    p.in_channels = 8 * between(1, between(1, 8));
    p.out_channels = 8 * between(1, between(1, 8));
    p.batch = between(1, 5);
    const int64_t axes = between(1, 3);
    int64_t positions = p.batch;
    bool good = true;
    for (size_t i = static_cast<size_t>(3 - axes); i < 3; ++i) {
      const int64_t most = axes == 3 ? 40 : axes == 2 ? 150 : 3000;
      p.in[i] = between(1, between(0, 2) == 0 ? 12 : most);
      p.kernel[i] = between(0, 1) == 0 ? 3 : between(1, axes == 3 ? 5 : axes == 2 ? 7 : 15);
      p.dilation[i] = between(0, 2) > 0 ? 1 : between(2, 4);
      const int64_t reach = (p.kernel[i] - 1) * p.dilation[i];
      p.padding_low[i] = between(0, 2) > 0 ? reach / 2 : between(-2, reach + 2);
      const int64_t padding_high = between(0, 2) > 0 ? reach - reach / 2 : between(-2, reach + 2);
      p.out[i] = p.in[i] + p.padding_low[i] + padding_high - reach;
      good = good && p.out[i] > 0;
      positions *= std::max(p.in[i], p.out[i]);
    }
    if (!good || positions > 60000 || Volume(p.kernel) > 130) continue;
    p.workspace_limit = int64_t{1} << (between(0, 3) == 0 ? between(18, 24) : 28);
    p.device = device;
    // As on devices of other sizes.
    if (between(0, 3) > 0) p.device.multiprocessors = between(1, 40);
    if (between(0, 2) == 0) {
      p.device.block_shared_bytes = between(32, device.block_shared_bytes / 1024) * 1024;
    }
    return p;
  }
}

void Print(const ImplicitGemmProblem& p) {
  const auto axes = [](const char* name, const Axes& a) {
    std::printf(" %s %lldx%lldx%lld", name, static_cast<long long>(a[0]),
                static_cast<long long>(a[1]), static_cast<long long>(a[2]));
  };
  std::printf("%s %s %s batch %lld channels %lld -> %lld", kKindNames[static_cast<int>(p.kind)],
              p.type == GemmType::kF16 ? "f16" : "bf16",
              p.weights == GemmWeights::kInOut ? "HWIO" : "OHWI", static_cast<long long>(p.batch),
              static_cast<long long>(p.in_channels), static_cast<long long>(p.out_channels));
  axes("in", p.in);
  axes("kernel", p.kernel);
  axes("out", p.out);
  axes("padding", p.padding_low);
  axes("dilation", p.dilation);
  std::printf(" workspace %lld multiprocessors %lld shared %lld",
              static_cast<long long>(p.workspace_limit),
              static_cast<long long>(p.device.multiprocessors),
              static_cast<long long>(p.device.block_shared_bytes));
}

// An array between canaries.
class Guarded {
 public:
  explicit Guarded(int64_t most) : data_(most + 2 * kGuard, 1) {}
  // The next array of so many bytes, aligned to no more than is promised.
  char* Next(int64_t bytes, int64_t shift) {
    at_ = kGuard + 16 * shift;
    bytes_ = bytes;
    Check(cudaMemset(data_[0], kCanary, static_cast<size_t>(bytes + 2 * kGuard)), "cudaMemset");
    return data_[0] + at_;
  }
  bool Intact() const {
    std::vector<unsigned char> around(static_cast<size_t>(2 * kGuard));
    const int64_t behind = 2 * kGuard - at_;
    Check(cudaMemcpy(around.data(), data_[0], static_cast<size_t>(at_), cudaMemcpyDeviceToHost),
          "reading canaries");
    Check(cudaMemcpy(around.data() + at_, data_[0] + at_ + bytes_, static_cast<size_t>(behind),
                     cudaMemcpyDeviceToHost),
          "reading canaries");
    return std::all_of(around.begin(), around.end(),
                       [](unsigned char byte) { return byte == kCanary; });
  }

 private:
  static constexpr int64_t kGuard = 4096;
  static constexpr unsigned char kCanary = 0xa5;
  const Arrays data_;
  int64_t at_ = 0, bytes_ = 0;
};

struct Pools {
  static constexpr int64_t kMost = int64_t{1} << 25;
  Guarded x{kMost}, w{kMost}, y{kMost}, workspace{int64_t{1} << 28};
};

// Returns the number of plans that are wrong, and counts them.
template <typename T>
int RunRandom(const ImplicitGemmProblem& p, unsigned long long seed, Pools* pools, int* checked) {
  const Counts counts(p);
  const int64_t shift = static_cast<int64_t>(seed % 16);
  const ImplicitGemmArrays operands{pools->x.Next(kElementBytes * counts.x, shift),
                                    pools->w.Next(kElementBytes * counts.w, shift / 2),
                                    pools->y.Next(kElementBytes * counts.y, 15 - shift), nullptr};
  constexpr int kWhole = 3;
  seed <<= 32;
  Fill<<<264, 256>>>(static_cast<T*>(operands.x), counts.x, seed, kWhole);
  Fill<<<264, 256>>>(static_cast<T*>(operands.w), counts.w, seed + (1ull << 30), kWhole);
  Fill<<<264, 256>>>(static_cast<T*>(operands.y), counts.y, seed + (2ull << 30), kWhole);
  void* const result = p.kind == GemmKind::kFprop   ? operands.y
                       : p.kind == GemmKind::kDgrad ? operands.x
                                                    : operands.w;
  const int64_t count = counts.OfResult(p.kind);
  int wrong = 0;
  for (const auto& plan : ImplicitGemmPlan::Candidates(p)) {
    ++*checked;
    ImplicitGemmArrays arrays = operands;
    arrays.workspace = pools->workspace.Next(plan->workspace_bytes(), 0);
    if (plan->workspace_bytes() > 0) {
      Check(cudaMemset(arrays.workspace, 0xff, static_cast<size_t>(plan->workspace_bytes())),
            "cudaMemset");
    }
    Check(cudaMemset(result, 0xff, static_cast<size_t>(kElementBytes * count)), "cudaMemset");
    const cudaError_t status = plan->Run(arrays, nullptr);
    const cudaError_t ended = status == cudaSuccess ? cudaDeviceSynchronize() : status;
    Comparison found{};
    bool intact = true;
    if (ended == cudaSuccess) {
      found = CompareAll<T>(p, arrays, count, 1);
      intact =
          pools->x.Intact() && pools->w.Intact() && pools->y.Intact() && pools->workspace.Intact();
    }
    const bool over_limit = plan->workspace_bytes() > p.workspace_limit;
    if (ended == cudaSuccess && found.different == 0 && intact && !over_limit) continue;
    ++wrong;
    std::printf("WRONG %s: %s, %llu of %lld different, first %lld, %llu unwritten%s%s\n  ",
                plan->name().c_str(), cudaGetErrorString(ended), found.different,
                static_cast<long long>(count), static_cast<long long>(found.first), found.unwritten,
                intact ? "" : ", canaries overwritten",
                over_limit ? ", workspace beyond the limit" : "");
    Print(p);
    std::printf("\n");
    std::fflush(stdout);
    Check(ended, "after that nothing runs");
  }
  return wrong;
}

int RunRandoms(int count, unsigned long long seed, const GemmDevice& device) {
  std::mt19937_64 random(seed);
  Pools pools;
  int wrong = 0, without = 0, checked[3] = {0, 0, 0};
  for (int i = 0; i < count; ++i) {
    const ImplicitGemmProblem p = RandomProblem(device, &random);
    int plans = 0;
    const unsigned long long of = seed * 1000003 + static_cast<unsigned long long>(i);
    wrong += p.type == GemmType::kF16 ? RunRandom<__half>(p, of, &pools, &plans)
                                      : RunRandom<__nv_bfloat16>(p, of, &pools, &plans);
    without += plans == 0;
    checked[static_cast<int>(p.kind)] += plans;
  }
  std::printf("%d problems, %d without a plan; plans: fprop %d, dgrad %d, wgrad %d; %d wrong\n",
              count, without, checked[0], checked[1], checked[2], wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> parts(argv + 1, argv + argc);
  cudaDeviceProp properties{};
  Check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  if (properties.major != 9 || properties.minor != 0) {
    std::fprintf(stderr, "needs a device of compute capability 9.0\n");
    return 1;
  }
  GemmDevice device;
  device.multiprocessors = properties.multiProcessorCount;
  device.shared_bytes = static_cast<int64_t>(properties.sharedMemPerMultiprocessor);
  device.block_shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  if (parts.size() == 3 && parts[0] == "--random") {
    return RunRandoms(std::atoi(parts[1].c_str()), std::strtoull(parts[2].c_str(), nullptr, 10),
                      device);
  }
  std::printf("%s\n%-36s %-28s %8s %8s %8s %6s %6s %9s\n", properties.name, "case", "plan", "us",
              "roofline", "stream", "x roof", "x str.", "error");
  bool right = true;
  for (const Case& of : kCases) {
    right &= RunCase<__nv_bfloat16>(of, GemmType::kBF16, device, properties.l2CacheSize, parts);
    if (of.half) {
      right &= RunCase<__half>(of, GemmType::kF16, device, properties.l2CacheSize, parts);
    }
  }
  return right ? 0 : 1;
}
