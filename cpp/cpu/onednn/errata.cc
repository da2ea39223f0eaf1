#include "cpu/onednn/errata.h"

namespace jax_convgrad {
namespace {

namespace ffi = ::xla::ffi;

bool Has(const std::string& implementation, const char* part) {
  return implementation.find(part) != std::string::npos;
}

// Columns of padding at the end that windows read; below zero, columns of x that none reads.
int64_t ReadBehind(const ConvGeometry& g, int axis) {
  return (g.out[axis] - 1) * g.strides[axis] + g.WindowSize(axis) - g.in[axis] -
         g.padding_low[axis];
}

// NOTE [A dilation counted twice]. oneDNN 3.2's bfloat16 weight gradient counts a dilation along
// the last axis but one twice, where the channels that it takes at a time, 16, do not divide a
// group's. It reads rows that are not the window's and, at the end, what lies behind the image:
// numbers as large as the gradient, NaNs, now and then a segmentation fault. Seen on an AMD EPYC
// for results of 29 and more columns, strided along them or not; narrower ones were right, and are
// kept away from it too, as nothing but the code that oneDNN generates tells them apart. One group
// of up to 16 channels has a kernel of its own, as has a dilation along another axis: these are
// right.
//
// oneDNN's next implementation multiplies matrices and is slower: 24 to 24 channels, 64x64, k3,
// dilation 2 takes 2.4 ms on one core instead of 0.57, 120 to 256, 65x65, dilation 12 14.9 instead
// of 10.2.
bool CountsDilationTwice(const ConvGeometry& g) {
  constexpr int64_t kChannelsAtATime = 16;
  if (g.spatial < 2) return false;
  const int axis = g.spatial - 2;
  const int64_t channels = g.in_channels / g.groups;
  return g.kernel[axis] > 1 && g.dilation[axis] > 1 && channels % kChannelsAtATime != 0 &&
         (g.groups > 1 || channels > kChannelsAtATime);
}

// NOTE [Scratch that is not written]. The same code reads parts of its scratch memory that it has
// not written, NaNs perhaps, where one column of the result has a stride longer than x: 9 of 59,891
// random problems, all of one channel.
bool ReadsUnwrittenScratch(const ConvGeometry& g) {
  const int axis = g.spatial - 1;
  return g.out[axis] == 1 && g.strides[axis] > g.in[axis];
}

// NOTE [Two blocks of columns]. oneDNN 3.2's float32 weight gradient for AVX-512 takes 28 columns
// of the result at a time, or twice 14 where the padding is wider than that, and forgets the stride
// when it works out how much of the padding is left for the second block. All of 11 wrong ones
// among 71,203 random problems with much padding had results of 29 to 55 columns.
bool ForgetsStride(const ConvGeometry& g) {
  const int axis = g.spatial - 1;
  return g.strides[axis] > 1 && g.padding_low[axis] > 14 && g.out[axis] > 28 &&
         ReadBehind(g, axis) > 0;
}

// NOTE [Few channels, far apart]. oneDNN 3.2's weight gradients of strided 1x1 windows first copy
// the pixels that are read. With fewer channels than a vector has, 16 or for AVX2 8, they copy too
// much: they write outside of their scratch memory, and of 1,300 random problems 30 ended in a
// crash. Others gave wrong numbers. Right ones have as many channels, or small images.
bool CopiesTooMuch(const ConvGeometry& g) {
  constexpr int64_t kVector = 16;
  for (int axis = 0; axis < g.spatial; ++axis) {
    if (g.strides[axis] > 1) return g.in_channels / g.groups < kVector;
  }
  return false;
}

// NOTE [Five pixels]. Where the processor has AVX-512 without bfloat16, oneDNN 3.2's 1x1
// convolutions and input gradients in bfloat16 are wrong for results of exactly five pixels and
// more than 64 channels, whatever the other sizes.
bool HasFivePixels(const ConvGeometry& g) {
  int64_t pixels = 1;
  for (int axis = 0; axis < g.spatial; ++axis) pixels *= g.out[axis];
  return pixels == 5;
}

// NOTE [Padding in front and nothing behind]. oneDNN 3.2's bfloat16 convolution by blocks of matrix
// products (brgconv) is wrong, and writes outside of y, where as many columns of x are read by no
// window as there is padding in front of it: 12 columns, k16, stride 8, padding (3, 0). 41 of
// 37,790 random problems with large strides.
bool WritesOutside(const ConvGeometry& g) {
  const int axis = g.spatial - 1;
  return g.kernel[axis] > 1 && g.padding_low[axis] > 0 && ReadBehind(g, axis) < 0;
}

// NOTE [Odd channels]. The same code, but for 1x1 windows, multiplies pairs of channels: of an odd
// number of them it reads the one behind x, which is nobody's, times zero. This project's Python
// adds a channel of zeros.
bool ReadsBehind(const ConvGeometry& g) { return g.in_channels / g.groups % 2 != 0; }

// NOTE [AMX]. oneDNN 3.2's kernels for AMX, in bfloat16, on an Intel Xeon with it. Of 168,400
// problems drawn much as tests/drawn_convs.py does 128 were wrong, and 20 wrote outside of their
// memory or crashed. All of them are of these kinds, which other kernels take over:
//
// - brgconv, a stride above the number of taps, along an axis but the last: its scratch memory is
//   too small for the rows that are copied there, and sums are written over them, or behind it. 18
//   of 2,591 wrong, 11 crashes. Mended in 2026 (pull request 5494 of oneDNN).
// - brgconv, one group, strided and not dilated along the last axis, where the taps and the stride
//   there hold a multiple of 32 numbers but a pixel does not: 48 channels, k2, stride 2. 51 of 343,
//   7 of them of the first kind too, nearly every element of those. The wrong ones have no padding
//   along that axis; 222 with padding were right, and are passed over with them.
// - y of three axes by jit, and windows of one pixel there, dx too: 24 wrong, the other crashes.
// - dx of three axes by jit: planes behind the last window are left as they were, 38 times.
// - brgconv_bwd_w, strided along an axis but the last, and not along that one: reads behind its
//   scratch memory and multiplies by zero, so that a NaN there comes out. 4 of 1,102. The jit
//   kernel for AMX that oneDNN offers next, which nobody has seen run, is passed over there too.
bool FailsOnAmx(ConvKind kind, const ConvGeometry& g, const std::string& implementation) {
  constexpr int64_t kTileRow = 32;  // numbers
  const int last = g.spatial - 1;
  const bool strided = g.strides[last] > 1;
  if (g.spatial == 3 && Has(implementation, "1x1:")) return true;
  switch (kind) {
    case ConvKind::kFprop: {
      if (Has(implementation, "jit:")) return g.spatial == 3;
      if (!Has(implementation, "brgconv:")) return false;
      for (int axis = 0; axis < last; ++axis) {
        if (g.strides[axis] > g.kernel[axis]) return true;
      }
      const int64_t channels = g.in_channels;
      return g.groups == 1 && strided && g.dilation[last] == 1 && channels % kTileRow != 0 &&
             channels * g.kernel[last] % kTileRow == 0 &&
             channels * g.strides[last] % kTileRow == 0;
    }
    case ConvKind::kDgrad:
      return Has(implementation, "jit:") && g.spatial == 3 && ReadBehind(g, 0) < 0;
    case ConvKind::kWgrad: {
      if (strided) return false;
      for (int axis = 0; axis < last; ++axis) {
        if (g.strides[axis] > 1) return true;
      }
      return false;
    }
  }
  return false;
}

}  // namespace

bool ComputesWrong(ConvKind kind, const ConvGeometry& g, ffi::DataType operand_type,
                   const std::string& implementation) {
  const bool bf16 = operand_type == ffi::DataType::BF16;
  const bool is_amx = Has(implementation, "avx512_core_amx");
  if (is_amx && FailsOnAmx(kind, g, implementation)) return true;
  if (kind != ConvKind::kWgrad && implementation == "jit_bf16_1x1:avx512_core") {
    return HasFivePixels(g);
  }
  switch (kind) {
    case ConvKind::kFprop:
      return bf16 && Has(implementation, "brgconv:") && (WritesOutside(g) || ReadsBehind(g));
    case ConvKind::kDgrad:
      return false;
    case ConvKind::kWgrad:
      if (Has(implementation, "1x1")) return CopiesTooMuch(g);
      if (Has(implementation, "jit_bf16")) {
        return CountsDilationTwice(g) || ReadsUnwrittenScratch(g);
      }
      return Has(implementation, "jit:avx512_core") && ForgetsStride(g);
  }
  return false;
}

}  // namespace jax_convgrad
