// The products that make up a dilated gradient, without those with the padding: the geometry of
// what the kernel's taps read, as pure functions.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_DILATED_WORK_H_
#define JAX_CONVGRAD_CUDA_KERNELS_DILATED_WORK_H_

#include <array>
#include <cstdint>
#include <vector>

namespace jax_convgrad {

// The convolution x -> y with stride 1 and without groups, in float32. Arrays lie batch, z, y, x,
// channel; the weights output channel, z, y, x, input channel. An axis that is not there has the
// neutral values. Sizes and attributes are checked and no array is empty.
struct DilatedProblem {
  using PerAxis = std::array<int64_t, 3>;  // z, y, x

  bool wgrad = false;  // else dgrad
  int64_t batch = 1;
  int64_t in_channels = 1;
  int64_t out_channels = 1;
  PerAxis in{1, 1, 1};
  PerAxis kernel{1, 1, 1};
  PerAxis out{1, 1, 1};
  PerAxis padding_low{0, 0, 0};
  PerAxis dilation{1, 1, 1};
  int64_t alignment = 16;       // bytes, of every array
  int64_t workspace_limit = 0;  // bytes
  int64_t multiprocessors = 1;  // of the device
};

constexpr int kMaxDilatedTaps = 64;
constexpr int kMaxDilatedRegions = 64;

// A box of positions of x, over all images, that the same taps read; tap t is bit t of `taps`.
struct DilatedRegion {
  uint64_t taps;
  int first;  // the number of its first position
  int start[3];
  int size[3];
};

// How many bits are set.
int CountTaps(uint64_t taps);

// Neighboring tiles of positions, of which the same taps read some position.
struct DilatedRun {
  uint64_t taps;
  int first_tile;
  int tiles;
};

// The regions of x: first the region that the most taps read, and after each region the one that
// shares the most taps with it, so that tiles across two regions lose little.
std::vector<DilatedRegion> DilatedRegions(const DilatedProblem& problem);

// The tiles of `tile` consecutive positions, out of `positions`; tiles with the most taps come
// first.
std::vector<DilatedRun> DilatedRuns(const std::vector<DilatedRegion>& regions, int64_t positions,
                                    int64_t tile);

// The windows of which tap `tap` reads x: a box, of size 0 along some axis if there are none.
struct DilatedWindows {
  int tap;
  int start_out[3];  // the box's first window
  int start_in[3];   // and what the tap reads there
  int size[3];
};

// Of all taps, the largest box first.
std::vector<DilatedWindows> DilatedTapWindows(const DilatedProblem& problem);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_DILATED_WORK_H_
