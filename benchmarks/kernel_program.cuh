// What the programs share that run a family of kernels alone, without JAX: rows of plans with their
// times, and random problems. A family is a problem's struct, its arrays and its plans, which all
// have the same names (cpp/cuda/kernels/*/plan.h).
//
// A row gives the time, the roofline (x, w and y once at 3.0 TB/s), the time of a plain kernel that
// reads and writes as many bytes, and the ratios to both. Every result is compared with a plain
// kernel that sums in float64, its array filled with NaNs before.

#ifndef JAX_CONVGRAD_BENCHMARKS_KERNEL_PROGRAM_CUH_
#define JAX_CONVGRAD_BENCHMARKS_KERNEL_PROGRAM_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kernel_program {

using Axes = std::array<int64_t, 3>;  // z, y, x

constexpr double kBytesPerMicrosecond = 3.0e6;
// By the enumerators of a problem's kind and type.
const char* const kKindNames[] = {"fprop", "dgrad", "wgrad"};
const char* const kTypeNames[] = {"f16", "bf16", "f32"};  // f32: as TF32

inline void Check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

inline int64_t Volume(const Axes& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

// Sets the sizes of y, with the same padding on both sides.
template <typename Problem>
void SetOut(Problem* p) {
  for (size_t i = 0; i < 3; ++i) {
    const int64_t last = p->in[i] + 2 * p->padding_low[i] - (p->kernel[i] - 1) * p->dilation[i] - 1;
    p->out[i] = last / p->strides[i] + 1;
  }
}

// Numbers of elements.
struct Counts {
  template <typename Problem>
  explicit Counts(const Problem& p)
      : x(p.batch * Volume(p.in) * p.in_channels),
        w(Volume(p.kernel) * p.in_channels * p.out_channels),
        y(p.batch * Volume(p.out) * p.out_channels) {}

  template <typename Kind>
  int64_t OfResult(Kind kind) const {
    return kind == Kind::kFprop ? y : kind == Kind::kDgrad ? x : w;
  }

  int64_t x, w, y;
};

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

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__half value) { return __half2float(value); }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

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
  template <typename Problem>
  explicit Sizes(const Problem& p)
      : kind(static_cast<int>(p.kind)),
        in_out(p.weights == decltype(p.weights)::kInOut),
        batch(static_cast<int>(p.batch)),
        in_channels(static_cast<int>(p.in_channels)),
        out_channels(static_cast<int>(p.out_channels)) {
    for (size_t i = 0; i < 3; ++i) {
      in[i] = static_cast<int>(p.in[i]);
      out[i] = static_cast<int>(p.out[i]);
      kernel[i] = static_cast<int>(p.kernel[i]);
      padding[i] = static_cast<int>(p.padding_low[i]);
      dilation[i] = static_cast<int>(p.dilation[i]);
      strides[i] = static_cast<int>(p.strides[i]);
    }
  }

  // The position of x that a tap of a window reads, or -1; or the window of which a tap reads a
  // position of x.
  __device__ int64_t Read(int window, int tap) const {
    int along[3];
    for (int i = 2; i >= 0; --i) {
      along[i] = window % out[i] * strides[i] + tap % kernel[i] * dilation[i] - padding[i];
      window /= out[i], tap /= kernel[i];
    }
    return At(window, along, in);
  }
  __device__ int64_t ReadBy(int position, int tap) const {
    int along[3];
    for (int i = 2; i >= 0; --i) {
      const int first = position % in[i] - tap % kernel[i] * dilation[i] + padding[i];
      along[i] = first % strides[i] == 0 ? first / strides[i] : -1;
      position /= in[i], tap /= kernel[i];
    }
    return At(position, along, out);
  }
  __device__ static int64_t At(int image, const int (&along)[3], const int (&sizes)[3]) {
    int64_t at = image;
    for (int i = 0; i < 3; ++i) {
      if (along[i] < 0 || along[i] >= sizes[i]) return -1;
      at = at * sizes[i] + along[i];
    }
    return at;
  }
  __device__ int64_t Weight(int o, int tap, int c) const {
    return in_out ? (int64_t{tap} * in_channels + c) * out_channels + o
                  : (int64_t{o} * kernel[0] * kernel[1] * kernel[2] + tap) * in_channels + c;
  }

  int kind;  // 0 is fprop, 1 dgrad, 2 wgrad
  bool in_out;
  int batch, in_channels, out_channels;
  int in[3], out[3], kernel[3], padding[3], dilation[3], strides[3];
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
  const bool wgrad = p.kind == 2;
  const int64_t threads = wgrad ? 1 : kCompareThreads;
  for (int64_t i = blockIdx.x * threads + (wgrad ? 0 : threadIdx.x); i * step < count;
       i += gridDim.x * threads) {
    const int64_t at = i * step;
    double sum = 0;
    T got;
    if (p.kind == 0) {
      const int o = static_cast<int>(at % p.out_channels);
      for (int tap = 0; tap < taps; ++tap) {
        const int64_t position = p.Read(static_cast<int>(at / p.out_channels), tap);
        for (int c = 0; position >= 0 && c < p.in_channels; ++c) {
          sum += static_cast<double>(ToFloat(x[position * p.in_channels + c])) *
                 ToFloat(w[p.Weight(o, tap, c)]);
        }
      }
      got = y[at];
    } else if (p.kind == 1) {
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
template <typename T, typename Problem, typename PlanArrays>
Comparison CompareAll(const Problem& problem, const PlanArrays& arrays, int64_t count,
                      int64_t step) {
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
inline double TimeOf(const std::function<void(int64_t)>& launch) {
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

// The time to read and write as many bytes as a pass does that reads its operands once.
inline double StreamTime(int64_t reads, int64_t writes, int64_t copies, int64_t multiprocessors) {
  const Arrays from(16 * reads, copies), to(16 * writes, copies);
  double time = 1e30;
  for (const int64_t blocks : {8, 16, 64}) {
    time = std::min(time, TimeOf([&](int64_t turn) {
                      const int64_t copy = turn % copies;
                      Stream<<<static_cast<unsigned>(multiprocessors * blocks), 256>>>(
                          reinterpret_cast<const uint4*>(from[copy]), reads,
                          reinterpret_cast<uint4*>(to[copy]), writes);
                    }));
  }
  return time;
}

// Whether all words of one of the parts are in a name.
inline bool Wanted(const std::string& name, const std::vector<std::string>& parts) {
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

template <typename Problem>
std::string RowName(const std::string& name, const Problem& p) {
  return name + " " + kKindNames[static_cast<int>(p.kind)] + " " +
         kTypeNames[static_cast<int>(p.type)] +
         (p.weights == decltype(p.weights)::kInOut ? " HWIO" : " OHWI");
}

inline void PrintHeader(const cudaDeviceProp& device) {
  std::printf("%s\n%-36s %-28s %8s %8s %8s %6s %6s %9s\n", device.name, "case", "plan", "us",
              "roofline", "stream", "x roof", "x str.", "error");
}

// The plans for a problem, and those that a device without warpgroups is offered.
template <typename Plan, typename Problem>
std::vector<std::unique_ptr<const Plan>> PlansAnywhere(const Problem& problem) {
  auto plans = Plan::Candidates(problem);
  Problem elsewhere = problem;
  elsewhere.device.has_warpgroups = false;
  for (auto& plan : Plan::Candidates(elsewhere)) {
    const bool known = std::any_of(plans.begin(), plans.end(), [&](const auto& other) {
      return other->name() == plan->name();
    });
    if (!known) plans.push_back(std::move(plan));
  }
  return plans;
}

// Runs and prints all plans for each of the problems, which are of one size and type, of T, those
// of one kind next to each other. Returns whether all results are right.
template <typename T, typename Plan, typename PlanArrays, typename Problem>
bool RunRows(const std::string& name, const std::vector<Problem>& rows) {
  using Kind = decltype(rows[0].kind);
  using Type = decltype(rows[0].type);
  static const int64_t cache_bytes = [] {
    cudaDeviceProp properties{};
    Check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    return int64_t{properties.l2CacheSize};
  }();
  if (rows.empty()) return true;
  constexpr int64_t kElementBytes = sizeof(T);
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
  double stream = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Problem& problem = rows[i];
    const std::string row = RowName(name, problem);
    const int64_t result_count = counts.OfResult(problem.kind);
    const Arrays& result = problem.kind == Kind::kFprop ? y : problem.kind == Kind::kDgrad ? x : w;
    if (i == 0 || rows[i - 1].kind != problem.kind) {
      const int64_t writes = kElementBytes * result_count / 16, reads = bytes / 16 - writes;
      stream = StreamTime(reads, writes, copies, problem.device.multiprocessors);
      // The result of the row before may be an operand now.
      fill(x, counts.x, 0);
      fill(y, counts.y, 1);
      fill(w, counts.w, 2);
    }
    const auto plans = PlansAnywhere<Plan>(problem);
    if (plans.empty()) std::printf("%-36s no plan on this device\n", row.c_str());
    for (const auto& plan : plans) {
      const Arrays workspace(plan->workspace_bytes() + 256, 1);
      Check(cudaMemset(workspace[0], 0xff, static_cast<size_t>(workspace.bytes())), "cudaMemset");
      const auto arrays = [&](int64_t turn) {
        const int64_t copy = turn % copies;
        return PlanArrays{x[copy], w[copy], y[copy], workspace[0]};
      };
      const auto launch = [&](int64_t turn) {
        Check(plan->Run(arrays(turn), nullptr), plan->name().c_str());
      };
      Check(cudaMemset(result[1], 0xff, static_cast<size_t>(kElementBytes * result_count)),
            "cudaMemset");
      launch(1);
      const int64_t checked = problem.kind == Kind::kWgrad ? 2048 : 200000;
      const Comparison found = CompareAll<T>(problem, arrays(1), result_count,
                                             std::max<int64_t>(1, result_count / checked | 1));
      const double error = std::sqrt(found.error_squares / found.squares);
      // Rounding the result to nearest errs by at most half a unit, 2^-9 or 2^-12 of a value.
      // Rounding both factors of a product to TF32 errs by at most 2^-10, about 2^-12 on average.
      const double rounding = problem.type == Type::kF16    ? 0x1p-12
                              : problem.type == Type::kBF16 ? 0x1p-9
                                                            : 0x1p-11;
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

// RunRows of T, by the problems' type.
template <typename Plan, typename PlanArrays, typename Problem>
bool RunRowsOfType(const std::string& name, const std::vector<Problem>& rows) {
  if (rows.empty()) return true;
  using Type = decltype(rows[0].type);
  switch (rows[0].type) {
    case Type::kF16:
      return RunRows<__half, Plan, PlanArrays>(name, rows);
    case Type::kBF16:
      return RunRows<__nv_bfloat16, Plan, PlanArrays>(name, rows);
    default:
      return RunRows<float, Plan, PlanArrays>(name, rows);
  }
}

template <typename Problem>
void Print(const Problem& p) {
  const auto axes = [](const char* name, const Axes& a) {
    std::printf(" %s %lldx%lldx%lld", name, static_cast<long long>(a[0]),
                static_cast<long long>(a[1]), static_cast<long long>(a[2]));
  };
  std::printf("%s %s %s batch %lld channels %lld -> %lld", kKindNames[static_cast<int>(p.kind)],
              kTypeNames[static_cast<int>(p.type)],
              p.weights == decltype(p.weights)::kInOut ? "HWIO" : "OHWI",
              static_cast<long long>(p.batch), static_cast<long long>(p.in_channels),
              static_cast<long long>(p.out_channels));
  axes("in", p.in);
  axes("kernel", p.kernel);
  axes("out", p.out);
  axes("padding", p.padding_low);
  axes("dilation", p.dilation);
  axes("strides", p.strides);
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
template <typename T, typename Plan, typename PlanArrays, typename Problem>
int RunRandom(const Problem& p, unsigned long long seed, Pools* pools, int* checked) {
  using Kind = decltype(p.kind);
  constexpr int64_t kElementBytes = sizeof(T);
  const Counts counts(p);
  const int64_t shift = static_cast<int64_t>(seed % 16);
  const PlanArrays operands{pools->x.Next(kElementBytes * counts.x, shift),
                            pools->w.Next(kElementBytes * counts.w, shift / 2),
                            pools->y.Next(kElementBytes * counts.y, 15 - shift), nullptr};
  constexpr int kWhole = 3;
  seed <<= 32;
  Fill<<<264, 256>>>(static_cast<T*>(operands.x), counts.x, seed, kWhole);
  Fill<<<264, 256>>>(static_cast<T*>(operands.w), counts.w, seed + (1ull << 30), kWhole);
  Fill<<<264, 256>>>(static_cast<T*>(operands.y), counts.y, seed + (2ull << 30), kWhole);
  void* const result = p.kind == Kind::kFprop   ? operands.y
                       : p.kind == Kind::kDgrad ? operands.x
                                                : operands.w;
  const int64_t count = counts.OfResult(p.kind);
  int wrong = 0;
  for (const auto& plan : Plan::Candidates(p)) {
    ++*checked;
    PlanArrays arrays = operands;
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

// Computes small random problems of small integers, of which all sums are exact, and looks for
// elements that are wrong and for what is written beside the result. `draw` makes a problem.
template <typename Plan, typename PlanArrays, typename Draw>
int RunRandoms(int count, unsigned long long seed, const Draw& draw) {
  std::mt19937_64 random(seed);
  Pools pools;
  int wrong = 0, without = 0, checked[3] = {0, 0, 0};
  for (int i = 0; i < count; ++i) {
    const auto p = draw(&random);
    using Type = decltype(p.type);
    const auto run = p.type == Type::kF16 ? RunRandom<__half, Plan, PlanArrays, decltype(p)>
                     : p.type == Type::kBF16
                         ? RunRandom<__nv_bfloat16, Plan, PlanArrays, decltype(p)>
                         : RunRandom<float, Plan, PlanArrays, decltype(p)>;
    int plans = 0;
    wrong += run(p, seed * 1000003 + static_cast<unsigned long long>(i), &pools, &plans);
    without += plans == 0;
    checked[static_cast<int>(p.kind)] += plans;
  }
  std::printf("%d problems, %d without a plan; plans: fprop %d, dgrad %d, wgrad %d; %d wrong\n",
              count, without, checked[0], checked[1], checked[2], wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace kernel_program

#endif  // JAX_CONVGRAD_BENCHMARKS_KERNEL_PROGRAM_CUH_
