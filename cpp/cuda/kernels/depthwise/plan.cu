#include <algorithm>
#include <numeric>

#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/load_kernel.h"
#include "cuda/kernels/depthwise/gather.cuh"
#include "cuda/kernels/depthwise/plan.h"
#include "cuda/kernels/depthwise/wgrad.cuh"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

constexpr int64_t kThreads = 256;            // of a block, at most
constexpr int64_t kSharedBytes = 48 * 1024;  // of a block, without asking for more
// Sums of a few sizes, and products of two of these, fit an int.
constexpr int64_t kLargestSize = int64_t{1} << 28;
constexpr int64_t kLargestStep = int64_t{1} << 14;
constexpr int64_t kMaxPositions = int64_t{1} << 30;

template <typename Params>
cudaError_t Launch(void (*kernel)(Params), int64_t blocks, int64_t threads, int64_t shared_bytes,
                   cudaStream_t stream, Params params) {
  void* arguments[] = {&params};
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)),
                          dim3(static_cast<unsigned>(threads)), arguments,
                          static_cast<size_t>(shared_bytes), stream);
}

int64_t Product(const DepthwiseProblem::PerAxis& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

template <typename T>
constexpr int kVector = sizeof(T) == 8 ? 1 : 4;

// Channels per thread: kVector or 1.
template <typename T>
bool TakesVectors(const DepthwiseProblem& problem) {
  constexpr int64_t kChannels = kVector<T>;
  return kChannels > 1 && problem.channels % kChannels == 0 &&
         problem.alignment % (kChannels * static_cast<int64_t>(sizeof(T))) == 0;
}

// `vectors` threads side by side, in as few rows of at most `most` as possible, all of one length.
int64_t Lanes(int64_t vectors, int64_t max_lanes) {
  return CeilDivide(vectors, CeilDivide(vectors, max_lanes));
}

GatherAxis MakeAxis(const DepthwiseProblem& problem, int i) {
  GatherAxis axis{};
  axis.gradient = problem.kind == DepthwiseKind::kDgrad;
  axis.source = static_cast<int>(axis.gradient ? problem.out[i] : problem.in[i]);
  axis.result = static_cast<int>(axis.gradient ? problem.in[i] : problem.out[i]);
  axis.kernel = static_cast<int>(problem.kernel[i]);
  axis.padding = static_cast<int>(problem.padding_low[i]);
  axis.stride = static_cast<int>(problem.strides[i]);
  axis.dilation = static_cast<int>(problem.dilation[i]);
  axis.gcd = std::gcd(axis.stride, axis.dilation);
  axis.period = axis.stride / axis.gcd;
  axis.source_step = axis.gradient ? axis.dilation / axis.gcd : axis.dilation;
  axis.inverse = 0;
  for (int64_t inverse = 0; inverse < axis.period; ++inverse) {
    if (inverse * (axis.dilation / axis.gcd) % axis.period == 1 % axis.period)
      axis.inverse = static_cast<int>(inverse);
  }
  axis.by_stride = Divider(axis.stride);
  axis.by_gcd = Divider(axis.gcd);
  axis.by_period = Divider(axis.period);
  axis.by_source_step = Divider(axis.source_step);
  return axis;
}

using GatherKernel = void (*)(GatherParams);

class GatherPlan : public DepthwisePlan {
 public:
  GatherPlan(const GatherParams& params, GatherKernel kernel, bool gradient, int64_t blocks,
             int64_t threads, int64_t shared_bytes)
      : params_(params),
        kernel_(kernel),
        gradient_(gradient),
        blocks_(blocks),
        threads_(threads),
        shared_bytes_(shared_bytes),
        prepared_(LoadKernel(kernel)) {}

  int64_t workspace_bytes() const override { return 0; }

  cudaError_t Run(const DepthwiseArrays& arrays, cudaStream_t stream) const override {
    if (prepared_ != cudaSuccess) return prepared_;
    GatherParams params = params_;
    params.source = gradient_ ? arrays.y : arrays.x;
    params.w = arrays.w;
    params.result = gradient_ ? arrays.x : arrays.y;
    return Launch(kernel_, blocks_, threads_, shared_bytes_, stream, params);
  }

 private:
  const GatherParams params_;
  const GatherKernel kernel_;
  const bool gradient_;
  const int64_t blocks_, threads_, shared_bytes_;
  const cudaError_t prepared_;
};

// A kernel and how it divides the result among positions.
struct GatherChoice {
  GatherKernel kernel;
  int length;  // elements of a row per position
  int rows;    // per position
  enum class Rows { kEach, kOfResidue, kUpsampled } order;
  int taps;  // of the kernel's window along x, if not kEach
};

// The numbers of elements, rows and taps here were the fastest on an H100.
template <typename T, int N>
GatherChoice ChooseGather(const GatherParams& p, bool staged) {
  using Rows = GatherChoice::Rows;
  const GatherChoice any{GatherPoint<T, N>, 1, 1, Rows::kEach, 0};
  if constexpr (sizeof(T) == 8) {
    return any;
  } else {
    if (!staged) return any;
    if (p.x.dilation == 1 && (p.x.gradient || p.x.stride == 1)) {
      const bool plane = p.z.kernel == 1 && p.z.stride == 1 && p.z.padding == 0 &&
                         p.z.source == p.z.result;  // not padded at the far end either
      const bool overlap = p.x.kernel <= 2 * p.x.stride && p.y.kernel <= 2 * p.y.stride;
      if (p.x.gradient && plane && overlap && p.y.dilation == 1) {
        constexpr int kLength = N == 1 ? 8 : 4;
        return {GatherUpsampled<T, N, kLength>, kLength, 1, Rows::kUpsampled, 2};
      }
      const int64_t taps = p.x.gradient ? CeilDivide(p.x.kernel, p.x.stride) : p.x.kernel;
      const bool two = p.y.stride == 1 && p.y.dilation == 1 && p.y.kernel > 1 && p.y.result > 1;
      constexpr Rows kOrder = Rows::kOfResidue;
      if (taps <= 2) return {GatherRow<T, N, 2, 4, 1>, 4, 1, kOrder, 2};
      if (taps == 3 && two) return {GatherRow<T, N, 3, 4, 2>, 4, 2, kOrder, 3};
      if (taps == 3) return {GatherRow<T, N, 3, 4, 1>, 4, 1, kOrder, 3};
      if (taps == 4 && two) return {GatherRow<T, N, 4, 4, 2>, 4, 2, kOrder, 4};
      if (taps == 4) return {GatherRow<T, N, 4, 4, 1>, 4, 1, kOrder, 4};
      if (taps == 5) return {GatherRow<T, N, 5, 8, 1>, 8, 1, kOrder, 5};
      if (taps == 7) return {GatherRow<T, N, 7, 8, 1>, 8, 1, kOrder, 7};
    }
    if (!p.x.gradient || p.x.stride == 1) {
      if (p.x.kernel % 3 == 0) return {GatherWindow<T, N, 3, 4>, 4, 1, Rows::kEach, 0};
      constexpr int kLength = N * sizeof(T) > 8 ? 2 : 4;
      return {GatherWindow<T, N, 4, kLength>, kLength, 1, Rows::kEach, 0};
    }
    return any;
  }
}

template <typename T, int N>
std::unique_ptr<const DepthwisePlan> MakeGather(const DepthwiseProblem& problem) {
  GatherParams p{};
  p.z = MakeAxis(problem, 0);
  p.y = MakeAxis(problem, 1);
  p.x = MakeAxis(problem, 2);
  const int64_t taps = Product(problem.kernel);
  if (taps > kMaxPositions) return nullptr;
  const int64_t vectors = problem.channels / N;
  int64_t lanes = Lanes(vectors, N == 1 ? 32 : 8);
  const auto weight_bytes = [&] { return taps * lanes * N * static_cast<int64_t>(sizeof(Sum<T>)); };
  while (weight_bytes() > kSharedBytes && lanes > 4) lanes = CeilDivide(lanes, 2);
  const bool staged = weight_bytes() <= kSharedBytes;
  const int64_t slabs = CeilDivide(vectors, lanes);
  const int64_t rows = kThreads / lanes;  // positions that a block works on at once

  const GatherChoice choice = ChooseGather<T, N>(p, staged);
  int64_t residues = 1, x_size = p.x.result, y_rows = CeilDivide(p.y.result, choice.rows);
  if (choice.order != GatherChoice::Rows::kEach) {
    p.source_offset = p.x.gradient ? 1 - choice.taps : -p.x.padding;
    if (p.x.gradient) {
      residues = p.x.stride;
      p.first = p.x.padding / p.x.stride;
      x_size = (p.x.padding + p.x.result - 1) / p.x.stride - p.first + 1;
    }
  }
  const int64_t chunks = CeilDivide(x_size, choice.length);
  if (choice.order == GatherChoice::Rows::kUpsampled) {
    p.first_row = p.y.padding / p.y.stride;
    y_rows = (p.y.padding + p.y.result - 1) / p.y.stride - p.first_row + 1;
  }
  int64_t positions = 1;
  for (int64_t factor : {residues, chunks, y_rows, int64_t{p.z.result}, problem.batch}) {
    positions *= factor;  // each factor is below 2^29
    if (positions > kMaxPositions) return nullptr;
  }
  // Enough blocks that the last ones to finish are a small part, and several positions per thread
  // if there are plenty.
  const int64_t blocks_of_one = CeilDivide(positions, rows) * slabs;
  const int64_t repeats = std::clamp<int64_t>(blocks_of_one / (problem.multiprocessors * 32), 1, 4);
  const int64_t block_positions = rows * repeats;

  p.channels = static_cast<int>(problem.channels);
  p.lanes = static_cast<int>(lanes);
  p.taps = static_cast<int>(taps);
  p.staged = staged;
  p.positions = static_cast<int>(positions);
  p.block_positions = static_cast<int>(block_positions);
  p.by_slabs = Divider(slabs);
  p.by_lanes = Divider(lanes);
  p.by_taps = Divider(taps);
  p.by_residues = Divider(residues);
  p.by_chunks = Divider(chunks);
  p.by_rows = Divider(y_rows);
  p.by_depth = Divider(p.z.result);
  const int64_t blocks = CeilDivide(positions, block_positions) * slabs;
  if (blocks > kMaxPositions) return nullptr;
  return std::make_unique<GatherPlan>(p, choice.kernel, problem.kind == DepthwiseKind::kDgrad,
                                      blocks, lanes * rows, staged ? weight_bytes() : 0);
}

using WgradKernel = void (*)(WgradParams);
using SumKernel = void (*)(SumPartsParams);

class WgradPlan : public DepthwisePlan {
 public:
  WgradPlan(const WgradParams& params, WgradKernel kernel, int64_t blocks, int64_t threads,
            int64_t shared_bytes, const SumPartsParams& sum, SumKernel sum_kernel,
            int64_t bytes_of_sum)
      : params_(params),
        kernel_(kernel),
        blocks_(blocks),
        threads_(threads),
        shared_bytes_(shared_bytes),
        sum_(sum),
        sum_kernel_(sum_kernel),
        bytes_of_sum_(bytes_of_sum),
        prepared_(Prepare(kernel, sum_kernel)) {}

  int64_t workspace_bytes() const override { return sum_.parts * sum_.weights * bytes_of_sum_; }

  cudaError_t Run(const DepthwiseArrays& arrays, cudaStream_t stream) const override {
    if (prepared_ != cudaSuccess) return prepared_;
    WgradParams params = params_;
    params.x = arrays.x;
    params.dy = arrays.y;
    params.partial = arrays.workspace;
    const cudaError_t status = Launch(kernel_, blocks_, threads_, shared_bytes_, stream, params);
    if (status != cudaSuccess) return status;
    SumPartsParams sum = sum_;
    sum.partial = arrays.workspace;
    sum.dw = arrays.w;
    return Launch(sum_kernel_, CeilDivide(sum_.weights, kSumColumns), kSumColumns * kSumSegments,
                  kSumColumns * kSumSegments * bytes_of_sum_, stream, sum);
  }

 private:
  static cudaError_t Prepare(WgradKernel kernel, SumKernel sum_kernel) {
    const cudaError_t status = LoadKernel(kernel);
    return status != cudaSuccess ? status : LoadKernel(sum_kernel);
  }

  const WgradParams params_;
  const WgradKernel kernel_;
  const int64_t blocks_, threads_, shared_bytes_;
  const SumPartsParams sum_;
  const SumKernel sum_kernel_;
  const int64_t bytes_of_sum_;
  const cudaError_t prepared_;
};

struct WgradChoice {
  WgradKernel kernel;
  int rows, columns;  // of taps per thread
  int length;         // elements of a row of dy per position
};

template <typename T, int N>
WgradChoice ChooseWgrad(const DepthwiseProblem& problem) {
  if constexpr (N > 1) {
    const int64_t width = problem.kernel[2], height = problem.kernel[1];
    if (problem.strides[2] == 1 && problem.dilation[2] == 1) {
      if (width == 3 && height % 3 == 0) return {WgradPart<T, N, 3, 3, 4, true>, 3, 3, 4};
      if (width == 5) return {WgradPart<T, N, 1, 5, 8, true>, 1, 5, 8};
      if (width == 7) return {WgradPart<T, N, 1, 7, 8, true>, 1, 7, 8};
    }
    if (width == 3 && height % 3 == 0) return {WgradPart<T, N, 3, 3, 2, false>, 3, 3, 2};
    if (width == 4 && height % 4 == 0) {
      constexpr int kRows = sizeof(T) == 2 ? 2 : 4, kLength = 8 / kRows;
      return {WgradPart<T, N, kRows, 4, kLength, false>, kRows, 4, kLength};
    }
  }
  return {WgradPart<T, N, 1, 4, 4, false>, 1, 4, 4};
}

template <typename T, int N>
std::unique_ptr<const DepthwisePlan> MakeWgrad(const DepthwiseProblem& problem) {
  const WgradChoice choice = ChooseWgrad<T, N>(problem);
  WgradParams p{};
  WgradAxis* const axes[] = {&p.axis_z, &p.axis_y, &p.axis_x};
  for (size_t i = 0; i < 3; ++i) {
    *axes[i] = {static_cast<int>(problem.in[i]),          static_cast<int>(problem.out[i]),
                static_cast<int>(problem.kernel[i]),      static_cast<int>(problem.strides[i]),
                static_cast<int>(problem.padding_low[i]), static_cast<int>(problem.dilation[i])};
  }
  const int64_t taps = Product(problem.kernel);
  const int64_t vectors = problem.channels / N;
  const int64_t lanes = Lanes(vectors, N == 1 ? 32 : 8);
  const int64_t slabs = CeilDivide(vectors, lanes);
  const int64_t column_groups = CeilDivide(p.axis_x.kernel, choice.columns);
  const int64_t row_groups = p.axis_y.kernel / choice.rows;
  const int64_t groups = column_groups * row_groups * p.axis_z.kernel;
  const int64_t group_blocks = CeilDivide(groups, kThreads / lanes);
  const int64_t block_groups = CeilDivide(groups, group_blocks);
  const int64_t block_rows = kThreads / (lanes * block_groups);

  const int64_t chunks = CeilDivide(p.axis_x.out, choice.length);
  int64_t positions = 1;
  for (int64_t factor : {chunks, problem.out[1], problem.out[0], problem.batch}) {
    positions *= factor;
    if (positions > kMaxPositions) return nullptr;
  }
  const int64_t weights = taps * problem.channels;
  const int64_t bytes_of_sum = static_cast<int64_t>(sizeof(Sum<T>));
  const int64_t max_parts = problem.workspace_limit / (weights * bytes_of_sum);
  if (weights > kMaxPositions || max_parts < 1) return nullptr;
  const int64_t threads = lanes * block_groups * block_rows;
  const int64_t shared_bytes = choice.columns * threads * N * bytes_of_sum;
  // As many blocks as the device runs at once, each with enough work that its last step, the sum
  // over its threads, does not matter.
  int resident = 1;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(
          &resident, choice.kernel, static_cast<int>(threads), static_cast<size_t>(shared_bytes)) !=
      cudaSuccess) {
    resident = 1;  // an error shows at the launch
    (void)cudaGetLastError();
  }
  const int64_t wanted = problem.multiprocessors * resident / (slabs * group_blocks);
  const int64_t worthwhile = CeilDivide(positions, block_rows * 8);
  int64_t parts = std::max<int64_t>(1, std::min({wanted, worthwhile, max_parts}));
  const int64_t part_positions = CeilDivide(positions, parts);
  parts = CeilDivide(positions, part_positions);
  const int64_t blocks = parts * slabs * group_blocks;
  if (blocks > kMaxPositions) return nullptr;

  p.channels = static_cast<int>(problem.channels);
  p.lanes = static_cast<int>(lanes);
  p.taps = static_cast<int>(taps);
  p.groups = static_cast<int>(groups);
  p.block_groups = static_cast<int>(block_groups);
  p.column_groups = static_cast<int>(column_groups);
  p.positions = static_cast<int>(positions);
  p.part_positions = static_cast<int>(part_positions);
  p.block_rows = static_cast<int>(block_rows);
  p.by_slabs = Divider(slabs);
  p.by_group_blocks = Divider(group_blocks);
  p.by_lanes = Divider(lanes);
  p.by_block_groups = Divider(block_groups);
  p.by_column_groups = Divider(column_groups);
  p.by_row_groups = Divider(row_groups);
  p.by_chunks = Divider(chunks);
  p.by_rows = Divider(p.axis_y.out);
  p.by_depth = Divider(p.axis_z.out);

  SumPartsParams sum{};
  sum.parts = static_cast<int>(parts);
  sum.channels = p.channels;
  sum.taps = p.taps;
  sum.weights = weights;
  sum.by_channels = Divider(problem.channels);

  return std::make_unique<WgradPlan>(p, choice.kernel, blocks, threads, shared_bytes, sum,
                                     SumParts<T>, bytes_of_sum);
}

template <typename T, int N>
std::unique_ptr<const DepthwisePlan> MakeOf(const DepthwiseProblem& problem) {
  return problem.kind == DepthwiseKind::kWgrad ? MakeWgrad<T, N>(problem)
                                               : MakeGather<T, N>(problem);
}

template <typename T>
std::unique_ptr<const DepthwisePlan> MakeOf(const DepthwiseProblem& problem) {
  return TakesVectors<T>(problem) ? MakeOf<T, kVector<T>>(problem) : MakeOf<T, 1>(problem);
}

bool Countable(const DepthwiseProblem& problem) {
  for (size_t i = 0; i < 3; ++i) {
    const int64_t steps = std::max(problem.strides[i], problem.dilation[i]);
    const int64_t sizes = std::max({problem.in[i], problem.out[i], problem.kernel[i],
                                    problem.padding_low[i], problem.channels, problem.batch});
    if (steps > kLargestStep || sizes > kLargestSize) return false;
    // The far end of the padded array and of the window.
    if (problem.kernel[i] * problem.dilation[i] > kLargestSize ||
        problem.out[i] * problem.strides[i] > kLargestSize) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::unique_ptr<const DepthwisePlan> DepthwisePlan::Make(const DepthwiseProblem& problem) {
  if (!Countable(problem)) return nullptr;
  switch (problem.type) {
    case DepthwiseType::kF16:
      return MakeOf<__half>(problem);
    case DepthwiseType::kBF16:
      return MakeOf<__nv_bfloat16>(problem);
    case DepthwiseType::kF32:
      return MakeOf<float>(problem);
    case DepthwiseType::kF64:
      return MakeOf<double>(problem);
  }
  return nullptr;
}

}  // namespace jax_convgrad
