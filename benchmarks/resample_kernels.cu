// Times the CUDA kernels of resample alone, without JAX: every case forward and as gradient, with
// channels first and last. A row says how long the kernel takes beside the time to read x once and
// to write y once at 3.0 TB/s. Every y is compared with a plain kernel that sums in double.
//
//   nvcc -std=c++17 -O3 -arch=native -Icpp -Itests/cpp \
//     -isystem "$(python -c 'from jax import ffi; print(ffi.include_dir())')" \
//     benchmarks/resample_kernels.cu cpp/cuda/kernels/resample/{launch.cu,instances.cc,tiling.cc} \
//     cpp/ffi/resample.cc -o resample_kernels
//   ./resample_kernels [parts of rows' names, such as "deeplab bf16 first grad"; one is enough]

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/resample/launch.h"
#include "ffi/resample.h"
#include "resample_problem.h"

namespace {

using namespace jax_convgrad;  // NOLINT: a benchmark
using resample_test::Count;
using resample_test::Shape;
using xla::ffi::DataType;

constexpr double kBytesPerMicrosecond = 3.0e6;
constexpr int64_t kCacheBytes = 200'000'000;  // arrays that are smaller than this take turns

void Check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

struct Band {
  int64_t in = 0, out = 0, taps = 1;
  std::vector<int32_t> start;
  std::vector<float> weights;
};

// A band of each row's (place, weight), in ascending order.
Band MakeBand(int64_t in, const std::vector<std::vector<std::pair<int64_t, double>>>& rows) {
  Band band;
  band.in = in;
  band.out = static_cast<int64_t>(rows.size());
  for (const auto& row : rows) {
    if (!row.empty()) {
      band.taps = std::max(band.taps, row.back().first - row.front().first + 1);
    }
  }
  band.weights.assign(static_cast<size_t>(band.out * band.taps), 0.0f);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t first = rows[i].empty() ? 0 : rows[i].front().first;
    const int64_t start = std::min(first, in - band.taps);
    band.start.push_back(static_cast<int32_t>(start));
    for (const auto& [at, weight] : rows[i]) {
      band.weights[i * static_cast<size_t>(band.taps) + static_cast<size_t>(at - start)] =
          static_cast<float>(weight);
    }
  }
  return band;
}

enum class Method { kNearest, kLinear, kCubic, kLanczos3 };

double KernelOf(Method method, double x) {
  x = std::abs(x);
  switch (method) {
    case Method::kNearest:
      return 0;
    case Method::kLinear:
      return std::max(0.0, 1 - x);
    case Method::kCubic:
      if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
      return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
    case Method::kLanczos3:
      if (x < 1e-9) return 1;
      return x < 3 ? 3 * std::sin(M_PI * x) * std::sin(M_PI * x / 3) / (M_PI * M_PI * x * x) : 0;
  }
  return 0;
}

struct Case {
  const char* name;
  bool half;  // bfloat16, else float
  int64_t batch, channels;
  Shape in, out;
  Method method;
  bool align_corners, antialias;
};

std::string NameOf(const Case& of, bool channels_last, bool gradient) {
  char name[64];
  std::snprintf(name, sizeof(name), "%-15s %-5s %-6s %-5s", of.name, of.half ? "bf16" : "f32",
                channels_last ? "last" : "first", gradient ? "grad" : "fwd");
  return name;
}

// Whether one of the parts is in a name. A name's words are one space apart, and end with one.
bool Wanted(const std::string& name, const std::vector<std::string>& parts) {
  std::istringstream stream(name);
  std::string words, word;
  while (stream >> word) words += word + " ";
  return parts.empty() || std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
           return words.find(part) != std::string::npos;
         });
}

Band ForwardBand(const Case& of, int64_t in, int64_t out) {
  const double scale = of.align_corners ? static_cast<double>(in - 1) / static_cast<double>(out - 1)
                                        : static_cast<double>(in) / static_cast<double>(out);
  const double stretch = of.antialias ? std::max(1.0, scale) : 1.0;
  const double support = stretch * (of.method == Method::kLinear  ? 1
                                    : of.method == Method::kCubic ? 2
                                                                  : 3);
  std::vector<std::vector<std::pair<int64_t, double>>> rows(static_cast<size_t>(out));
  for (int64_t i = 0; i < out; ++i) {
    auto& row = rows[static_cast<size_t>(i)];
    const double index = static_cast<double>(i);
    if (of.method == Method::kNearest) {
      row.emplace_back(static_cast<int64_t>(std::floor((index + 0.5) * scale)), 1.0);
      continue;
    }
    const double center = of.align_corners ? index * scale : (index + 0.5) * scale - 0.5;
    double sum = 0;
    const auto first = static_cast<int64_t>(std::ceil(center - support));
    const auto last = static_cast<int64_t>(std::floor(center + support));
    for (int64_t k = std::max<int64_t>(first, 0); k <= std::min(last, in - 1); ++k) {
      const double weight = KernelOf(of.method, (static_cast<double>(k) - center) / stretch);
      if (weight == 0) continue;
      sum += weight;
      row.emplace_back(k, weight);
    }
    for (auto& [at, weight] : row) weight /= sum;
  }
  return MakeBand(in, rows);
}

Band Transposed(const Band& band) {
  std::vector<std::vector<std::pair<int64_t, double>>> rows(static_cast<size_t>(band.in));
  for (int64_t i = 0; i < band.out; ++i) {
    for (int64_t t = 0; t < band.taps; ++t) {
      const double weight = band.weights[static_cast<size_t>(i * band.taps + t)];
      if (weight != 0) {
        rows[static_cast<size_t>(band.start[static_cast<size_t>(i)] + t)].emplace_back(i, weight);
      }
    }
  }
  return MakeBand(band.out, rows);
}

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) {
    Check(cudaMalloc(&data_, static_cast<size_t>(count) * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& values)
      : DeviceArray(static_cast<int64_t>(values.size())) {
    Check(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  DeviceArray(DeviceArray&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
};

template <typename T>
__global__ void Fill(T* to, int64_t count, unsigned long long seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    unsigned long long bits = (static_cast<unsigned long long>(i) + seed) * 0x9e3779b97f4a7c15ull;
    bits = (bits ^ (bits >> 31)) * 0xbf58476d1ce4e5b9ull;
    to[i] = static_cast<T>(static_cast<float>((bits >> 29) % 20001) / 10000.0f - 1.0f);
  }
}

// The largest |y - exact| in units of what one rounding to T and those of the sums may do.
template <typename T>
__global__ void Compare(ResampleForm form, const T* x, const T* y, int64_t count, int64_t step,
                        double rounding, unsigned long long* worst) {
  double largest = 0;
  const ResampleAxis* const axes[] = {&form.depth, &form.height, &form.width};
  for (int64_t k = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; k * step < count;
       k += int64_t{gridDim.x} * blockDim.x) {
    // y[b0, b1, b2, p, q, r, c] lies where its strides say; x and y are walked by their places.
    int64_t rest = k * step;
    const auto next = [&rest](int64_t size) {
      const int64_t at = rest % size;
      rest /= size;
      return at;
    };
    const int64_t channel = next(form.inner);
    int64_t at[3];
    for (int a = 2; a >= 0; --a) at[a] = next(axes[a]->out);
    int64_t from = channel;
    int64_t to = at[0] * form.y_plane + at[1] * form.y_row + at[2] * form.inner + channel;
    for (int b = 2; b >= 0; --b) {
      const int64_t batch = next(form.batch[b]);
      from += batch * form.x_batch[b];
      to += batch * form.y_batch[b];
    }
    const int64_t strides[] = {form.x_plane, form.x_row, form.inner};
    double sum = 0, scale = 0;
    int64_t taps[3];
    for (int a = 0; a < 3; ++a) taps[a] = axes[a]->resampled ? axes[a]->taps : 1;
    for (int64_t t = 0; t < taps[0] * taps[1] * taps[2]; ++t) {
      const int64_t tap[] = {t / (taps[1] * taps[2]), t / taps[2] % taps[1], t % taps[2]};
      double weight = 1;
      int64_t place = from;
      for (int a = 0; a < 3; ++a) {
        const ResampleAxis& axis = *axes[a];
        int64_t start = at[a];
        if (axis.resampled) {
          weight *= static_cast<const float*>(axis.weights)[at[a] * axis.taps + tap[a]];
          start = axis.start[at[a]];
        }
        place += (start + tap[a]) * strides[a];
      }
      if (weight == 0) continue;
      const double value = static_cast<double>(static_cast<float>(x[place]));
      sum += weight * value;
      scale += fabs(weight * value);
    }
    const double bound =
        1.01 * (fabs(sum) * rounding +
                static_cast<double>(4 + taps[0] + taps[1] + taps[2]) * 0x1p-24 * scale) +
        1e-300;
    const double error = fabs(static_cast<double>(static_cast<float>(y[to])) - sum) / bound;
    largest = error <= largest ? largest : error == error ? error : 1e30;
  }
  atomicMax(worst, static_cast<unsigned long long>(__double_as_longlong(largest)));
}

template <typename T>
double Run(const Case& of, bool channels_last, bool gradient) {
  constexpr bool kHalf = sizeof(T) == 2;
  Shape small = {of.batch}, large = {of.batch};
  std::vector<int64_t> axes;
  std::vector<Band> bands;
  if (!channels_last) {
    small.push_back(of.channels);
    large.push_back(of.channels);
  }
  for (size_t k = 0; k < of.in.size(); ++k) {
    axes.push_back(static_cast<int64_t>(small.size()));
    small.push_back(of.in[k]);
    large.push_back(of.out[k]);
    const Band band = ForwardBand(of, of.in[k], of.out[k]);
    bands.push_back(gradient ? Transposed(band) : band);
  }
  if (channels_last) {
    small.push_back(of.channels);
    large.push_back(of.channels);
  }
  const Shape& x_shape = gradient ? large : small;
  const Shape& y_shape = gradient ? small : large;
  const int64_t x_count = Count(x_shape), y_count = Count(y_shape);
  const int64_t bytes = (x_count + y_count) * static_cast<int64_t>(sizeof(T));

  std::vector<DeviceArray<T>> xs, ys;
  for (int64_t i = 0; i < (bytes < kCacheBytes ? 3 : 1); ++i) {
    xs.emplace_back(x_count);
    ys.emplace_back(y_count);
    Fill<<<1320, 256>>>(xs.back().get(), x_count, static_cast<unsigned long long>(i) * 7919 + 1);
    Check(cudaMemset(ys.back().get(), 0xff, static_cast<size_t>(y_count) * sizeof(T)), "memset");
  }
  std::vector<DeviceArray<int32_t>> starts;
  std::vector<DeviceArray<float>> weights;
  resample_test::Call call;
  const DataType type = kHalf ? DataType::BF16 : DataType::F32;
  call.Add(type, x_shape, xs[0].get());
  for (const Band& band : bands) {
    starts.emplace_back(band.start);
    weights.emplace_back(band.weights);
    call.Add(DataType::S32, {band.out}, starts.back().get());
    call.Add(DataType::F32, {band.out, band.taps}, weights.back().get());
  }
  call.Add(type, y_shape, ys[0].get());
  call.Finish();
  XLA_FFI_Args operands = call.args;
  operands.size -= 1;
  const ResampleConfig config{{axes.data(), axes.size()}};
  const auto form = MakeResampleForm(config, xla::ffi::AnyBuffer(&call.buffers.front()),
                                     xla::ffi::RemainingArgs(&operands, 1),
                                     xla::ffi::AnyBuffer(&call.buffers.back()), 64);
  if (form.has_error()) {
    std::fprintf(stderr, "%s: %s\n", of.name, form.error().message().c_str());
    std::exit(1);
  }
  const auto launch = [&](size_t set) {
    Check(LaunchResample(*form, kHalf ? ResampleType::kBF16 : ResampleType::kF32, xs[set].get(),
                         ys[set].get(), nullptr),
          of.name);
  };

  launch(0);
  const DeviceArray<unsigned long long> worst(std::vector<unsigned long long>{0});
  Compare<<<2640, 256>>>(*form, xs[0].get(), ys[0].get(), y_count,
                         int64_t{y_count > 3000000 ? 7 : 1}, kHalf ? 0x1p-8 : 0x1p-24, worst.get());
  double error = 0;
  Check(cudaMemcpy(&error, worst.get(), sizeof(error), cudaMemcpyDeviceToHost), of.name);

  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "cudaEventCreate");
  Check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int repetition = 0; repetition < 7; ++repetition) {
    constexpr size_t kLaunches = 6;
    Check(cudaEventRecord(begin), "cudaEventRecord");
    for (size_t i = 0; i < kLaunches; ++i) launch(i % xs.size());
    Check(cudaEventRecord(end), "cudaEventRecord");
    Check(cudaEventSynchronize(end), of.name);
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    times.push_back(milliseconds * 1000 / kLaunches);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  const double roofline = static_cast<double>(bytes) / kBytesPerMicrosecond;
  const double time = times[times.size() / 2];
  std::printf("%-33s %7.1f  %7.1f  %5.2f\n", NameOf(of, channels_last, gradient).c_str(), roofline,
              time, time / roofline);
  std::fflush(stdout);
  return error;
}

const Case kCases[] = {
    {"deeplab", false, 8, 21, {65, 65}, {513, 513}, Method::kLinear, false, false},
    {"deeplab", true, 8, 21, {65, 65}, {513, 513}, Method::kLinear, false, false},
    {"deeplab_ac", false, 8, 21, {65, 65}, {513, 513}, Method::kLinear, true, false},
    {"unet2x", false, 8, 256, {64, 64}, {128, 128}, Method::kLinear, false, false},
    {"unet2x", true, 8, 256, {64, 64}, {128, 128}, Method::kLinear, false, false},
    {"segformer4x", true, 8, 768, {32, 32}, {128, 128}, Method::kLinear, false, false},
    {"big2x", true, 2, 64, {512, 512}, {1024, 1024}, Method::kLinear, false, false},
    {"nearest2x", true, 8, 512, {64, 64}, {128, 128}, Method::kNearest, false, false},
    {"nearest2x", false, 8, 512, {64, 64}, {128, 128}, Method::kNearest, false, false},
    {"cubic4x", false, 8, 64, {128, 128}, {512, 512}, Method::kCubic, false, false},
    {"lanczos_down", false, 32, 3, {512, 512}, {224, 224}, Method::kLanczos3, false, true},
    {"linear_aa_down", false, 32, 3, {512, 512}, {224, 224}, Method::kLinear, false, true},
    {"trilinear2x", false, 2, 32, {64, 64, 64}, {128, 128, 128}, Method::kLinear, false, false},
    {"trilinear2x", true, 2, 32, {64, 64, 64}, {128, 128, 128}, Method::kLinear, false, false},
    {"linear1d", false, 16, 256, {4096}, {8192}, Method::kLinear, false, false},
    {"odd_scale", false, 8, 128, {75, 113}, {187, 301}, Method::kLinear, false, false},
    {"lanczos_down", true, 32, 3, {512, 512}, {224, 224}, Method::kLanczos3, false, true},
    {"cubic4x", true, 8, 64, {128, 128}, {512, 512}, Method::kCubic, false, false},
    {"wide_aa", false, 8, 64, {1024, 1024}, {32, 32}, Method::kLanczos3, false, true},
    {"wide_aa3", false, 16, 3, {1024, 1024}, {32, 32}, Method::kLinear, false, true},
    {"odd_scale", true, 8, 128, {75, 113}, {187, 301}, Method::kLinear, false, false},
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> parts(argv + 1, argv + argc);
  cudaDeviceProp device{};
  Check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("%s\n%-15s %-5s %-6s %-5s %7s  %7s  %5s\n", device.name, "case", "type", "chan.",
              "dir.", "roofline", "us", "times");
  double largest = 0;
  for (const Case& of : kCases) {
    for (const bool gradient : {true, false}) {
      for (const bool last : {false, true}) {
        if (!Wanted(NameOf(of, last, gradient), parts)) continue;
        largest = std::max(largest, of.half ? Run<__nv_bfloat16>(of, last, gradient)
                                            : Run<float>(of, last, gradient));
      }
    }
  }
  std::printf("largest error, 1 being what rounding may do: %.2f\n", largest);
  return largest <= 1 ? 0 : 1;
}
