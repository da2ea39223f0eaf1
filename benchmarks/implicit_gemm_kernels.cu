// Times the implicit GEMM kernels alone, without JAX: every plan of every case, forward and
// backward, with both orders of weights. kernel_program.cuh says what a row is.
//
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Icpp
//     benchmarks/implicit_gemm_kernels.cu cpp/cuda/kernels/implicit_gemm/{plan,warpgroup/plan}.cu
//     -o implicit_gemm_kernels
//   ./implicit_gemm_kernels [parts of rows' names, such as "unet_64" or "wgrad HWIO"]
//   ./implicit_gemm_kernels --random COUNT SEED     small random problems (implicit_gemm_draws.h)

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels/implicit_gemm/plan.h"
#include "implicit_gemm_draws.h"
#include "kernel_program.cuh"

namespace {

using namespace jax_convgrad;    // NOLINT: a benchmark
using namespace kernel_program;  // NOLINT

struct Case {
  const char* name;
  int64_t batch, in_channels, out_channels;
  Axes in, kernel, padding, dilation;  // the same padding on both sides
  std::vector<GemmType> types{GemmType::kBF16};
  Axes strides{1, 1, 1};
};

constexpr GemmType kF16 = GemmType::kF16, kBF16 = GemmType::kBF16, kTf32 = GemmType::kTf32;

constexpr Axes kOne{1, 1, 1}, kNone{0, 0, 0};
constexpr Axes k3d{3, 3, 3}, k2d{1, 3, 3}, k2dPadding{0, 1, 1};

const Case kCases[] = {
    {"unet3d_32", 2, 32, 32, {96, 96, 96}, k3d, kOne, kOne, {kBF16, kF16, kTf32}},
    {"unet3d_16", 2, 16, 16, {96, 96, 96}, k3d, kOne, kOne, {kBF16, kTf32}},
    {"nnunet_enc0", 2, 32, 32, {128, 128, 128}, k3d, kOne, kOne},
    {"nnunet_dec0", 2, 64, 32, {96, 96, 96}, k3d, kOne, kOne},
    {"nnunet_enc1", 2, 64, 64, {64, 64, 64}, k3d, kOne, kOne, {kBF16, kTf32}},
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
    {"conv2d_16", 8, 16, 16, {1, 256, 256}, k2d, k2dPadding, kOne, {kBF16, kTf32}},
    {"conv2d_32", 8, 32, 32, {1, 256, 256}, k2d, k2dPadding, kOne, {kBF16, kF16, kTf32}},
    {"conv2d_64", 8, 64, 64, {1, 256, 256}, k2d, k2dPadding, kOne, {kBF16, kTf32}},
    {"unet_64", 4, 64, 64, {1, 570, 570}, k2d, kNone, kOne},
    {"unetpp_32", 8, 32, 32, {1, 512, 512}, k2d, k2dPadding, kOne, {kBF16, kTf32}},
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
    {"conv1d_32", 8, 32, 32, {1, 1, 40960}, {1, 1, 7}, {0, 0, 9}, {1, 1, 3}, {kBF16, kF16, kTf32}},
    {"hifigan_32", 16, 32, 32, {1, 1, 8192}, {1, 1, 11}, {0, 0, 25}, {1, 1, 5}, {kBF16, kTf32}},
    {"hifigan_64", 16, 64, 64, {1, 1, 4096}, {1, 1, 7}, {0, 0, 9}, {1, 1, 3}, {kBF16, kTf32}},
    {"bigvgan_48", 8, 48, 48, {1, 1, 16384}, {1, 1, 3}, {0, 0, 1}, kOne},
    {"bigvgan_24", 8, 24, 24, {1, 1, 32768}, {1, 1, 11}, {0, 0, 5}, kOne},
    {"encodec_res32", 16, 32, 16, {1, 1, 24000}, {1, 1, 3}, {0, 0, 1}, kOne},
    {"spliceai_k11", 12, 32, 32, {1, 1, 15000}, {1, 1, 11}, {0, 0, 20}, {1, 1, 4}},
    {"waveunet_15", 16, 24, 48, {1, 1, 16384}, {1, 1, 15}, {0, 0, 7}, kOne},
    {"nnunet_down1", 2, 32, 64, {128, 128, 128}, k3d, kOne, kOne, {kBF16, kTf32}, {2, 2, 2}},
    {"nnunet_down2", 2, 64, 64, {64, 64, 64}, k3d, kOne, kOne, {kBF16, kTf32}, {2, 2, 2}},
    {"unet3d_down16", 2, 16, 32, {96, 96, 96}, k3d, kOne, kOne, {kBF16, kTf32}, {2, 2, 2}},
    {"conv2d_down32", 8, 32, 64, {1, 256, 256}, k2d, k2dPadding, kOne, {kBF16, kTf32}, {1, 2, 2}},
    {"pix2pix_down64",
     8,
     64,
     64,
     {1, 256, 256},
     {1, 4, 4},
     k2dPadding,
     kOne,
     {kBF16, kTf32},
     {1, 2, 2}},
    {"effnet_down24", 32, 24, 48, {1, 192, 192}, k2d, k2dPadding, kOne, {kBF16, kTf32}, {1, 2, 2}},
    {"hifigan_up64_32",
     16,
     32,
     64,
     {1, 1, 8192},
     {1, 1, 4},
     {0, 0, 1},
     kOne,
     {kBF16, kTf32},
     {1, 1, 2}},
    {"encodec_down32",
     16,
     32,
     64,
     {1, 1, 24000},
     {1, 1, 4},
     {0, 0, 1},
     kOne,
     {kBF16, kTf32},
     {1, 1, 2}},
    {"demucs_down48",
     8,
     48,
     64,
     {1, 1, 44100},
     {1, 1, 8},
     {0, 0, 2},
     kOne,
     {kBF16, kTf32},
     {1, 1, 4}},
    {"wavenet_64", 4, 64, 64, {1, 1, 16000}, {1, 1, 3}, {0, 0, 8}, {1, 1, 8}},
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
  p.strides = of.strides;
  SetOut(&p);
  p.workspace_limit = int64_t{1} << 30;
  p.device = device;
  return p;
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
  device.has_warpgroups = true;
  if (parts.size() == 3 && parts[0] == "--random") {
    return RunRandoms<ImplicitGemmPlan, ImplicitGemmArrays>(
        std::atoi(parts[1].c_str()), std::strtoull(parts[2].c_str(), nullptr, 10),
        [&](std::mt19937_64* random) { return DrawGemmProblem(device, random); });
  }
  PrintHeader(properties);
  bool right = true;
  for (const Case& of : kCases) {
    for (const GemmType type : of.types) {
      std::vector<ImplicitGemmProblem> rows;
      for (const GemmKind kind : {GemmKind::kFprop, GemmKind::kDgrad, GemmKind::kWgrad}) {
        for (const GemmWeights weights : {GemmWeights::kInOut, GemmWeights::kOutIn}) {
          ImplicitGemmProblem p = ProblemOf(of, device);
          p.kind = kind;
          p.type = type;
          p.weights = weights;
          if (Wanted(RowName(of.name, p), parts)) rows.push_back(p);
        }
      }
      right &= RunRowsOfType<ImplicitGemmPlan, ImplicitGemmArrays>(of.name, rows);
    }
  }
  return right ? 0 : 1;
}
