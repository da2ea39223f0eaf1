#include "cpu/wrong_kernels.h"

namespace jax_convgrad {

// NOTE [Wrong kernels]. oneDNN 3.2's bfloat16 weight gradient counts a dilation along the last axis
// but one twice, where the channels that it takes at a time, 16, do not divide a group's. It reads
// rows that are not the window's and, at the end, what lies behind the image: numbers as large as
// the gradient, NaNs, now and then a segmentation fault. Seen on an AMD EPYC for results of 29 and
// more columns, strided along them or not; narrower ones were right, and are kept away from it too,
// as nothing but the code that oneDNN generates tells them apart. One group of up to 16 channels
// has a kernel of its own, as has a dilation along another axis: these are right.
//
// oneDNN's next implementation multiplies matrices and is slower: 24 to 24 channels, 64x64, k3,
// dilation 2 takes 2.4 ms on one core instead of 0.57, 120 to 256, 65x65, dilation 12 14.9 instead
// of 10.2.
bool ComputesWrongWgrad(const ConvGeometry& g, const std::string& implementation) {
  constexpr int64_t kChannelsAtATime = 16;
  if (g.spatial < 2 || implementation.find("jit_bf16") == std::string::npos) return false;
  const int axis = g.spatial - 2;
  const int64_t channels = g.in_channels / g.groups;
  return g.kernel[axis] > 1 && g.dilation[axis] > 1 && channels % kChannelsAtATime != 0 &&
         (g.groups > 1 || channels > kChannelsAtATime);
}

}  // namespace jax_convgrad
