#include "cuda/cudnn/scratch.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kPatternBytes = int64_t{1} << 20;

int64_t Aligned(int64_t bytes) { return RoundUp(bytes, kAlignment); }

int64_t Product(const ConvGeometry::PerAxis& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

struct Sizes {
  int64_t x, w, y;
};

// Bytes of each array, counted in the wider of the problem's two types.
Sizes SizesOf(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  const int64_t bytes = static_cast<int64_t>(
      std::max(ffi::ByteWidth(problem.operand_type), ffi::ByteWidth(problem.result_type)));
  return {Aligned(g.batch * g.in_channels * Product(g.in) * bytes),
          Aligned(g.out_channels * (g.in_channels / g.groups) * Product(g.kernel) * bytes),
          Aligned(g.batch * g.out_channels * Product(g.out) * bytes)};
}

// Numbers between 1/2 and 1 of either sign, whose low bits are random.
std::vector<unsigned char> Pattern(ffi::DataType type) {
  std::vector<unsigned char> bytes(kPatternBytes);
  std::mt19937_64 random(1);
  const auto fill = [&](auto exponent, auto mask) {
    for (int64_t at = 0; at < kPatternBytes; at += static_cast<int64_t>(sizeof(exponent))) {
      const auto number = static_cast<decltype(exponent)>((random() & mask) | exponent);
      std::memcpy(bytes.data() + at, &number, sizeof(number));
    }
  };
  switch (type) {
    case ffi::DataType::F16:
      fill(uint16_t{0x3800}, uint16_t{0x83ff});
      break;
    case ffi::DataType::BF16:
      fill(uint16_t{0x3f00}, uint16_t{0x807f});
      break;
    case ffi::DataType::F64:
      fill(uint64_t{0x3fe0000000000000}, uint64_t{0x800fffffffffffff});
      break;
    default:
      fill(uint32_t{0x3f000000}, uint32_t{0x807fffff});
      break;
  }
  return bytes;
}

}  // namespace

DeviceScratch::~DeviceScratch() {
  for (void* const memory : memory_) (void)cudaFree(memory);
}

int64_t DeviceScratch::BytesFor(const ConvProblem& problem, int64_t workspace_bytes) {
  const Sizes sizes = SizesOf(problem);
  return sizes.x + sizes.w + sizes.y + Aligned(std::max<int64_t>(workspace_bytes, 1));
}

cudaError_t DeviceScratch::Take(int64_t bytes, void** memory) {
  memory_.reserve(memory_.size() + 1);  // before there is anything to lose
  const cudaError_t status = cudaMalloc(memory, static_cast<size_t>(bytes));
  if (status == cudaSuccess) {
    memory_.push_back(*memory);
  } else {
    (void)cudaGetLastError();
  }
  return status;
}

cudaError_t DeviceScratch::Allocate(const ConvProblem& problem, int64_t workspace_bytes,
                                    cudaStream_t stream) {
  const bool filled = buffers_.x != nullptr;
  if (filled && workspace_bytes <= workspace_bytes_) return cudaSuccess;
  const Sizes sizes = SizesOf(problem);
  const int64_t data = sizes.x + sizes.w + sizes.y;
  const int64_t all = BytesFor(problem, workspace_bytes);
  size_t free = 0, total = 0;
  cudaError_t status = cudaMemGetInfo(&free, &total);
  if (status != cudaSuccess) return status;
  // A tenth stays free for what others need meanwhile, and for fragmentation.
  if (static_cast<double>(filled ? all - data : all) > 0.9 * static_cast<double>(free)) {
    return cudaErrorMemoryAllocation;
  }
  if (!filled) status = Fill(problem, stream);
  void* workspace = nullptr;
  if (status == cudaSuccess) status = Take(all - data, &workspace);
  if (status != cudaSuccess) return status;
  buffers_.workspace = workspace;
  workspace_bytes_ = workspace_bytes;
  return cudaSuccess;
}

// Takes the arrays and fills them.
cudaError_t DeviceScratch::Fill(const ConvProblem& problem, cudaStream_t stream) {
  const Sizes sizes = SizesOf(problem);
  const int64_t data = sizes.x + sizes.w + sizes.y;
  void* memory = nullptr;
  cudaError_t status = Take(data, &memory);
  if (status != cudaSuccess) return status;
  char* const base = static_cast<char*>(memory);
  const std::vector<unsigned char> pattern = Pattern(problem.operand_type);
  const int64_t first = std::min(data, kPatternBytes);
  status = cudaMemcpyAsync(base, pattern.data(), static_cast<size_t>(first), cudaMemcpyHostToDevice,
                           stream);
  for (int64_t done = first; done < data && status == cudaSuccess;) {
    const int64_t more = std::min(done, data - done);
    status = cudaMemcpyAsync(base + done, base, static_cast<size_t>(more), cudaMemcpyDeviceToDevice,
                             stream);
    done += more;
  }
  // The pattern must stay alive until it has been read.
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
  if (status != cudaSuccess) return status;
  buffers_ = {base, base + sizes.x, base + sizes.x + sizes.w, buffers_.workspace};
  return cudaSuccess;
}

}  // namespace jax_convgrad
