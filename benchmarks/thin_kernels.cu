// Times the thin kernels alone, without JAX: every plan of every case, forward and backward, with
// both orders of weights. A row gives the time, the roofline (x, w and y once at 3.0 TB/s), the
// time of a plain kernel that reads and writes as many bytes, and the ratios to both. Every result
// is compared with a plain kernel that sums in float64, its array filled with NaNs before.
//
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Icpp -c
//     cpp/cuda/kernels/thin/image_warpgroup.cu cpp/cuda/kernels/thin/windows_warpgroup.cu
//   nvcc -std=c++17 -O3 -arch=native -Icpp benchmarks/thin_kernels.cu
//     cpp/cuda/kernels/thin/plan.cu image_warpgroup.o windows_warpgroup.o -o thin_kernels
//   ./thin_kernels [parts of rows' names, such as "unet_up" or "wgrad HWIO"; one is enough]

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/thin/plan.h"

namespace {

using namespace jax_convgrad;  // NOLINT: a benchmark
using Axes = ThinProblem::PerAxis;

constexpr double kBytesPerMicrosecond = 3.0e6;

void Check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

constexpr int kFprop = 1, kDgrad = 2, kWgrad = 4, kAll = 7;  // bits: fprop, dgrad, wgrad

struct Case {
  const char* name;
  int passes;
  int64_t batch, in_channels, out_channels;
  Axes in, kernel, strides, padding;  // the same padding on both sides
};

const Case kCases[] = {
    // Windows side by side. Of an up-convolution `in` is its output, and dgrad its forward pass.
    {"unet_up", kAll, 8, 64, 128, {1, 512, 512}, {1, 2, 2}, {1, 2, 2}, {0, 0, 0}},
    {"unet_up_deep", kAll, 8, 256, 512, {1, 128, 128}, {1, 2, 2}, {1, 2, 2}, {0, 0, 0}},
    {"sam_up", kAll, 8, 64, 256, {1, 128, 128}, {1, 2, 2}, {1, 2, 2}, {0, 0, 0}},
    {"sam_up2", kAll, 8, 32, 64, {1, 256, 256}, {1, 2, 2}, {1, 2, 2}, {0, 0, 0}},
    {"mask_rcnn_up", kAll, 128, 256, 256, {1, 28, 28}, {1, 2, 2}, {1, 2, 2}, {0, 0, 0}},
    {"unet3d_up", kAll, 2, 32, 64, {128, 128, 128}, {2, 2, 2}, {2, 2, 2}, {0, 0, 0}},
    {"nnunet_up", kAll, 2, 64, 128, {64, 64, 64}, {2, 2, 2}, {2, 2, 2}, {0, 0, 0}},
    {"up_1d", kAll, 16, 64, 128, {1, 1, 65536}, {1, 1, 4}, {1, 1, 4}, {0, 0, 0}},
    {"convnext_stem", kAll, 64, 3, 96, {1, 224, 224}, {1, 4, 4}, {1, 4, 4}, {0, 0, 0}},
    {"convnext_down", kAll, 64, 96, 192, {1, 56, 56}, {1, 2, 2}, {1, 2, 2}, {0, 0, 0}},
    {"vit_patch16", kAll, 64, 3, 768, {1, 224, 224}, {1, 16, 16}, {1, 16, 16}, {0, 0, 0}},
    {"vit_patch14", kAll, 64, 3, 1024, {1, 224, 224}, {1, 14, 14}, {1, 14, 14}, {0, 0, 0}},
    {"tubelet", kAll, 8, 3, 768, {16, 224, 224}, {2, 16, 16}, {2, 16, 16}, {0, 0, 0}},
    {"segformer_reduce", kAll, 8, 64, 64, {1, 128, 128}, {1, 8, 8}, {1, 8, 8}, {0, 0, 0}},
    {"convnext_down3", kAll, 64, 384, 768, {1, 14, 14}, {1, 2, 2}, {1, 2, 2}, {0, 0, 0}},
    {"vit_patch32", kAll, 64, 3, 768, {1, 224, 224}, {1, 32, 32}, {1, 32, 32}, {0, 0, 0}},
    {"conv1x1", kAll, 64, 64, 64, {1, 56, 56}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}},
    {"conv1x1_wide", kAll, 64, 1024, 256, {1, 14, 14}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}},
    // Thin images.
    {"stem7x7", kFprop | kWgrad, 64, 3, 64, {1, 224, 224}, {1, 7, 7}, {1, 2, 2}, {0, 3, 3}},
    {"effnet_stem", kAll, 64, 3, 32, {1, 224, 224}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}},
    {"yolov8_stem", kFprop | kWgrad, 16, 3, 32, {1, 640, 640}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}},
    {"inception_stem", kFprop | kWgrad, 64, 3, 32, {1, 299, 299}, {1, 3, 3}, {1, 2, 2}, {0, 0, 0}},
    {"alexnet_stem", kFprop | kWgrad, 64, 3, 64, {1, 227, 227}, {1, 11, 11}, {1, 4, 4}, {0, 0, 0}},
    {"vgg_stem", kAll, 32, 3, 64, {1, 224, 224}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}},
    {"segformer_patch", kAll, 16, 3, 64, {1, 512, 512}, {1, 7, 7}, {1, 4, 4}, {0, 3, 3}},
    {"sd_in", kAll, 8, 4, 320, {1, 64, 64}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}},
    {"dqn_in", kAll, 256, 4, 32, {1, 84, 84}, {1, 8, 8}, {1, 4, 4}, {0, 0, 0}},
    {"encodec_in", kAll, 16, 1, 32, {1, 1, 24000}, {1, 1, 7}, {1, 1, 1}, {0, 0, 3}},
    {"demucs_in", kFprop | kWgrad, 4, 2, 48, {1, 1, 343980}, {1, 1, 8}, {1, 1, 4}, {0, 0, 2}},
    {"wav2vec2_in", kFprop | kWgrad, 8, 1, 512, {1, 1, 160000}, {1, 1, 10}, {1, 1, 5}, {0, 0, 0}},
    {"i3d_stem", kAll, 4, 3, 64, {16, 224, 224}, {7, 7, 7}, {2, 2, 2}, {3, 3, 3}},
    {"c3d_stem", kAll, 8, 3, 64, {16, 112, 112}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}},
    {"impala_in", kAll, 256, 3, 16, {1, 84, 84}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}},
    {"edsr_in", kAll, 16, 3, 256, {1, 48, 48}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}},
    {"yolov5_stem", kAll, 16, 3, 32, {1, 640, 640}, {1, 6, 6}, {1, 2, 2}, {0, 2, 2}},
    {"unet3d_in", kAll, 2, 1, 32, {128, 128, 128}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}},
    {"deeplab_stem", kFprop | kWgrad, 16, 3, 32, {1, 513, 513}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}},
    {"r3d_stem", kFprop | kWgrad, 8, 3, 64, {16, 112, 112}, {3, 7, 7}, {1, 2, 2}, {1, 3, 3}},
    {"r2plus1d_stem", kFprop | kWgrad, 8, 3, 45, {16, 112, 112}, {1, 7, 7}, {1, 2, 2}, {0, 3, 3}},
    {"basset_in", kFprop | kWgrad, 64, 4, 300, {1, 1, 600}, {1, 1, 19}, {1, 1, 1}, {0, 0, 9}},
    {"lenet_in", kFprop | kWgrad, 512, 1, 6, {1, 28, 28}, {1, 5, 5}, {1, 1, 1}, {0, 2, 2}},
    {"squeezenet_stem", kFprop | kWgrad, 64, 3, 50, {1, 224, 224}, {1, 3, 3}, {1, 2, 2}, {0, 0, 0}},
    {"alphazero_in", kFprop | kWgrad, 512, 17, 256, {1, 19, 19}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}},
    {"voc_head", kAll, 8, 64, 21, {1, 256, 256}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}},
    {"cityscapes_head", kAll, 8, 256, 19, {1, 128, 256}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}},
    {"keypoint_head", kAll, 32, 48, 17, {1, 96, 72}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}},
    // Thin results.
    {"stem7x7", kDgrad, 64, 3, 64, {1, 224, 224}, {1, 7, 7}, {1, 2, 2}, {0, 3, 3}},
    {"dcgan_out", kDgrad | kWgrad, 128, 3, 128, {1, 64, 64}, {1, 4, 4}, {1, 2, 2}, {0, 1, 1}},
    {"fsrcnn_up", kDgrad | kWgrad, 16, 1, 56, {1, 384, 384}, {1, 9, 9}, {1, 3, 3}, {0, 4, 4}},
    {"demucs_out", kDgrad | kWgrad, 4, 4, 48, {1, 1, 340000}, {1, 1, 8}, {1, 1, 4}, {0, 0, 2}},
    {"cyclegan_out", kAll, 4, 64, 3, {1, 256, 256}, {1, 7, 7}, {1, 1, 1}, {0, 3, 3}},
    {"srgan_out", kAll, 8, 64, 3, {1, 384, 384}, {1, 9, 9}, {1, 1, 1}, {0, 4, 4}},
    {"sd_out", kAll, 8, 320, 4, {1, 64, 64}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}},
    {"sdvae_out", kAll, 2, 128, 3, {1, 512, 512}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}},
    {"stylegan_rgb", kAll, 8, 64, 3, {1, 256, 256}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}},
    {"encodec_out", kAll, 16, 32, 1, {1, 1, 24000}, {1, 1, 7}, {1, 1, 1}, {0, 0, 3}},
    {"hifigan_out", kAll, 16, 32, 1, {1, 1, 8192}, {1, 1, 7}, {1, 1, 1}, {0, 0, 3}},
    {"unet3d_head", kAll, 2, 32, 3, {128, 128, 128}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}},
};

ThinProblem ProblemOf(const Case& of, ThinKind kind, ThinType type, ThinWeights weights,
                      const ThinDevice& device) {
  ThinProblem p;
  p.kind = kind;
  p.type = type;
  p.weights = weights;
  p.batch = of.batch;
  p.in_channels = of.in_channels;
  p.out_channels = of.out_channels;
  p.in = of.in;
  p.kernel = of.kernel;
  p.strides = of.strides;
  p.padding_low = of.padding;
  for (size_t i = 0; i < 3; ++i) {
    p.out[i] = (of.in[i] + 2 * of.padding[i] - of.kernel[i]) / of.strides[i] + 1;
  }
  p.workspace_limit = int64_t{1} << 30;
  p.device = device;
  return p;
}

int64_t Volume(const Axes& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

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

__device__ float ToFloat(float value) { return value; }
__device__ float ToFloat(__half value) { return __half2float(value); }
__device__ float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__global__ void Fill(T* to, int64_t count, unsigned long long seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    unsigned long long bits = (static_cast<unsigned long long>(i) + seed) * 0x9e3779b97f4a7c15ull;
    bits = (bits ^ (bits >> 31)) * 0xbf58476d1ce4e5b9ull;
    to[i] = static_cast<T>(static_cast<float>((bits >> 29) % 20001) / 10000.0f - 1.0f);
  }
}

// A problem as plain numbers.
struct Sizes {
  explicit Sizes(const ThinProblem& p)
      : kind(p.kind),
        in_out(p.weights == ThinWeights::kInOut),
        batch(p.batch),
        in_channels(p.in_channels),
        out_channels(p.out_channels) {
    std::copy(p.in.begin(), p.in.end(), in);
    std::copy(p.out.begin(), p.out.end(), out);
    std::copy(p.kernel.begin(), p.kernel.end(), kernel);
    std::copy(p.strides.begin(), p.strides.end(), strides);
    std::copy(p.padding_low.begin(), p.padding_low.end(), padding);
  }

  // The position of x that a tap of a window reads, or -1.
  __device__ int64_t Read(int64_t window, int64_t tap) const {
    int64_t image = window, at = 0, o[3], k[3];
    for (int i = 2; i >= 0; --i) {
      o[i] = image % out[i], image /= out[i];
      k[i] = tap % kernel[i], tap /= kernel[i];
    }
    for (int i = 0; i < 3; ++i) {
      const int64_t along = o[i] * strides[i] + k[i] - padding[i];
      if (along < 0 || along >= in[i]) return -1;
      at = at * in[i] + along;
    }
    return image * in[0] * in[1] * in[2] + at;
  }
  // The window of which a tap reads a position of x, or -1.
  __device__ int64_t ReadBy(int64_t position, int64_t tap) const {
    int64_t image = position, at = 0, x[3], k[3];
    for (int i = 2; i >= 0; --i) {
      x[i] = image % in[i], image /= in[i];
      k[i] = tap % kernel[i], tap /= kernel[i];
    }
    for (int i = 0; i < 3; ++i) {
      const int64_t along = x[i] + padding[i] - k[i];
      if (along < 0 || along % strides[i] != 0 || along / strides[i] >= out[i]) return -1;
      at = at * out[i] + along / strides[i];
    }
    return image * out[0] * out[1] * out[2] + at;
  }
  __device__ int64_t Weight(int64_t o, int64_t tap, int64_t c) const {
    return in_out ? (tap * in_channels + c) * out_channels + o
                  : (o * kernel[0] * kernel[1] * kernel[2] + tap) * in_channels + c;
  }

  ThinKind kind;
  bool in_out;
  int64_t batch, in_channels, out_channels;
  int64_t in[3], out[3], kernel[3], strides[3], padding[3];
};

// Squares of the errors and of the exact values, over every `step`-th element of the result.
template <typename T>
__global__ void Compare(Sizes p, const T* x, const T* w, const T* y, int64_t count, int64_t step,
                        double* squares, unsigned long long* unwritten) {
  const int64_t taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i * step < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t at = i * step;
    double sum = 0;
    float got = 0;
    if (p.kind == ThinKind::kFprop) {
      const int64_t o = at % p.out_channels;
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int64_t position = p.Read(at / p.out_channels, tap);
        for (int64_t c = 0; position >= 0 && c < p.in_channels; ++c) {
          sum += static_cast<double>(ToFloat(x[position * p.in_channels + c])) *
                 ToFloat(w[p.Weight(o, tap, c)]);
        }
      }
      got = ToFloat(y[at]);
    } else if (p.kind == ThinKind::kDgrad) {
      const int64_t c = at % p.in_channels;
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int64_t window = p.ReadBy(at / p.in_channels, tap);
        for (int64_t o = 0; window >= 0 && o < p.out_channels; ++o) {
          sum += static_cast<double>(ToFloat(y[window * p.out_channels + o])) *
                 ToFloat(w[p.Weight(o, tap, c)]);
        }
      }
      got = ToFloat(x[at]);
    } else {
      // The weights' order is that of the indices.
      const int64_t o = p.in_out ? at % p.out_channels : at / (taps * p.in_channels);
      const int64_t rest = p.in_out ? at / p.out_channels : at % (taps * p.in_channels);
      const int64_t c = rest % p.in_channels, tap = rest / p.in_channels;
      const int64_t windows = p.batch * p.out[0] * p.out[1] * p.out[2];
      for (int64_t window = 0; window < windows; ++window) {
        const int64_t position = p.Read(window, tap);
        if (position < 0) continue;
        sum += static_cast<double>(ToFloat(x[position * p.in_channels + c])) *
               ToFloat(y[window * p.out_channels + o]);
      }
      got = ToFloat(w[at]);
    }
    if (got != got) {
      atomicAdd(unwritten, 1ull);
      continue;
    }
    atomicAdd(&squares[0], (got - sum) * (got - sum));
    atomicAdd(&squares[1], sum * sum);
  }
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
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "cudaEventCreate");
  Check(cudaEventCreate(&end), "cudaEventCreate");
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
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
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

template <typename T>
bool Run(const Case& of, ThinKind kind, ThinType type, ThinWeights weights,
         const ThinDevice& device, int64_t cache_bytes, const std::vector<std::string>& parts) {
  const char* const kinds[] = {"fprop", "dgrad", "wgrad"};
  const std::string row = std::string(of.name) + " " + kinds[static_cast<int>(kind)] +
                          (type == ThinType::kTf32  ? " f32"
                           : type == ThinType::kF16 ? " f16"
                                                    : " bf16") +
                          (weights == ThinWeights::kInOut ? " HWIO" : " OHWI");
  if ((of.passes >> static_cast<int>(kind) & 1) == 0 || !Wanted(row, parts)) return true;
  const ThinProblem problem = ProblemOf(of, kind, type, weights, device);
  auto plans = ThinPlan::Candidates(problem);
  // What other devices are offered.
  ThinProblem elsewhere = problem;
  elsewhere.device.has_warpgroups = false;
  for (auto& plan : ThinPlan::Candidates(elsewhere)) {
    const bool known = std::any_of(plans.begin(), plans.end(), [&](const auto& other) {
      return other->name() == plan->name();
    });
    if (!known) plans.push_back(std::move(plan));
  }
  if (plans.empty()) {
    std::printf("%-36s no plan on this device\n", row.c_str());
    return true;
  }
  const int64_t x_count = of.batch * Volume(problem.in) * of.in_channels;
  const int64_t y_count = of.batch * Volume(problem.out) * of.out_channels;
  const int64_t w_count = Volume(of.kernel) * of.in_channels * of.out_channels;
  const int64_t result_count = kind == ThinKind::kFprop   ? y_count
                               : kind == ThinKind::kDgrad ? x_count
                                                          : w_count;
  constexpr int64_t kBytes = sizeof(T);
  const int64_t bytes = kBytes * (x_count + y_count + w_count);
  const int64_t copies = 2 + 5 * cache_bytes / bytes;
  const Arrays x(kBytes * x_count, copies), y(kBytes * y_count, copies),
      w(kBytes * w_count, copies);
  for (int64_t copy = 0; copy < copies; ++copy) {
    // Far apart: Fill counts on from its seed, and no array may be a part of another.
    const auto seed = static_cast<unsigned long long>(3 * copy) << 40;
    Fill<<<1320, 256>>>(reinterpret_cast<T*>(x[copy]), x_count, seed);
    Fill<<<1320, 256>>>(reinterpret_cast<T*>(y[copy]), y_count, seed + (1ull << 40));
    Fill<<<1320, 256>>>(reinterpret_cast<T*>(w[copy]), w_count, seed + (2ull << 40));
  }
  const Arrays& result = kind == ThinKind::kFprop ? y : kind == ThinKind::kDgrad ? x : w;

  // The operands are read once, the result is written once.
  const int64_t writes = kBytes * result_count / 16, reads = bytes / 16 - writes;
  double stream = 1e30;
  {
    const Arrays from(16 * reads, copies), to(16 * writes, copies);
    for (const int64_t blocks : {8, 16, 64}) {
      stream = std::min(stream, TimeOf([&](int64_t turn) {
                          const int64_t copy = turn % copies;
                          Stream<<<static_cast<unsigned>(device.multiprocessors * blocks), 256>>>(
                              reinterpret_cast<const uint4*>(from[copy]), reads,
                              reinterpret_cast<uint4*>(to[copy]), writes);
                        }));
    }
  }

  bool right = true;
  for (const auto& plan : plans) {
    const Arrays workspace(plan->workspace_bytes() + 256, 1);
    Check(cudaMemset(workspace[0], 0xff, static_cast<size_t>(workspace.bytes())), "cudaMemset");
    const auto launch = [&](int64_t turn) {
      const int64_t copy = turn % copies;
      Check(plan->Run({x[copy], w[copy], y[copy], workspace[0]}, nullptr), plan->name().c_str());
    };
    Check(cudaMemset(result[1], 0xff, static_cast<size_t>(kBytes * result_count)), "cudaMemset");
    launch(1);
    double* squares = nullptr;  // and the number of what is not a number
    Check(cudaMalloc(&squares, 3 * sizeof(double)), "cudaMalloc");
    Check(cudaMemset(squares, 0, 3 * sizeof(double)), "cudaMemset");
    // Each element of wgrad's result is a sum over all windows.
    const int64_t checked = kind == ThinKind::kWgrad ? 4096 : 200000;
    Compare<<<1320, 128>>>(Sizes(problem), reinterpret_cast<const T*>(x[1]),
                           reinterpret_cast<const T*>(w[1]), reinterpret_cast<const T*>(y[1]),
                           result_count, std::max<int64_t>(1, result_count / checked | 1), squares,
                           reinterpret_cast<unsigned long long*>(squares + 2));
    double found[3];
    Check(cudaMemcpy(found, squares, sizeof(found), cudaMemcpyDeviceToHost), plan->name().c_str());
    cudaFree(squares);
    const double error = std::sqrt(found[0] / found[1]);
    // Rounding the result to nearest errs by at most half a unit, 2^-9 or 2^-12 of a value.
    // Rounding both factors of a product to TF32 errs by at most 2^-10, about 2^-12 on average.
    const double rounding = type == ThinType::kTf32  ? 0x1p-11
                            : type == ThinType::kF16 ? 0x1p-12
                                                     : 0x1p-9;
    const bool good = error <= 1.1 * rounding && found[2] == 0;
    right = right && good;

    const double time = TimeOf(launch);
    const double roofline = static_cast<double>(bytes) / kBytesPerMicrosecond;
    std::printf("%-36s %-28s %8.1f %8.1f %8.1f %6.2f %6.2f %9.1e %s\n", row.c_str(),
                plan->name().c_str(), time, roofline, stream, time / roofline, time / stream, error,
                good ? "" : "WRONG");
    std::fflush(stdout);
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> parts(argv + 1, argv + argc);
  cudaDeviceProp properties{};
  Check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  ThinDevice device;
  device.multiprocessors = properties.multiProcessorCount;
  device.shared_bytes = static_cast<int64_t>(properties.sharedMemPerMultiprocessor);
  device.block_shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  device.has_warpgroups = properties.major == 9 && properties.minor == 0;
  std::printf("%s\n%-36s %-28s %8s %8s %8s %6s %6s %9s\n", properties.name, "case", "plan", "us",
              "roofline", "stream", "x roof", "x str.", "error");
  bool right = true;
  for (const Case& of : kCases) {
    for (const ThinKind kind : {ThinKind::kFprop, ThinKind::kDgrad, ThinKind::kWgrad}) {
      for (const ThinWeights weights : {ThinWeights::kInOut, ThinWeights::kOutIn}) {
        right &= Run<__nv_bfloat16>(of, kind, ThinType::kBF16, weights, device,
                                    properties.l2CacheSize, parts);
      }
      right &= Run<__half>(of, kind, ThinType::kF16, ThinWeights::kInOut, device,
                           properties.l2CacheSize, parts);
      right &= Run<float>(of, kind, ThinType::kTf32, ThinWeights::kInOut, device,
                          properties.l2CacheSize, parts);
    }
  }
  std::printf(right ? "all results are right\n" : "SOME RESULTS ARE WRONG\n");
  return right ? 0 : 1;
}
