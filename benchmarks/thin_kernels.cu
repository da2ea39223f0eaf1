// Times the thin kernels alone, without JAX: every plan of every case, forward and backward, with
// both orders of weights. kernel_program.cuh says what a row is.
//
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Icpp -c
//     cpp/cuda/kernels/thin/image_warpgroup.cu cpp/cuda/kernels/thin/windows_warpgroup.cu
//   nvcc -std=c++17 -O3 -arch=native -Icpp benchmarks/thin_kernels.cu
//     cpp/cuda/kernels/thin/plan.cu image_warpgroup.o windows_warpgroup.o -o thin_kernels
//   ./thin_kernels [parts of rows' names, such as "unet_up" or "wgrad HWIO"; one is enough]

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "cuda/kernels/thin/plan.h"
#include "kernel_program.cuh"

namespace {

using namespace jax_convgrad;    // NOLINT: a benchmark
using namespace kernel_program;  // NOLINT

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
  ThinDevice device;
  device.multiprocessors = properties.multiProcessorCount;
  device.shared_bytes = static_cast<int64_t>(properties.sharedMemPerMultiprocessor);
  device.block_shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  device.has_warpgroups = properties.major == 9 && properties.minor == 0;
  PrintHeader(properties);
  bool right = true;
  for (const Case& of : kCases) {
    for (const ThinType type : {ThinType::kBF16, ThinType::kF16, ThinType::kTf32}) {
      std::vector<ThinProblem> rows;
      for (const ThinKind kind : {ThinKind::kFprop, ThinKind::kDgrad, ThinKind::kWgrad}) {
        if ((of.passes >> static_cast<int>(kind) & 1) == 0) continue;
        for (const ThinWeights weights : {ThinWeights::kInOut, ThinWeights::kOutIn}) {
          if (weights == ThinWeights::kOutIn && type != ThinType::kBF16) continue;
          const ThinProblem p = ProblemOf(of, kind, type, weights, device);
          if (Wanted(RowName(of.name, p), parts)) rows.push_back(p);
        }
      }
      right &= RunRowsOfType<ThinPlan, ThinArrays>(of.name, rows);
    }
  }
  std::printf(right ? "all results are right\n" : "SOME RESULTS ARE WRONG\n");
  return right ? 0 : 1;
}
