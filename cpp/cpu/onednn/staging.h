// Copies of what oneDNN cannot work on where it lies: x with its padding written out as zeros,
// pieces that are not contiguous, and some of the channels. oneDNN has no fast code for some
// paddings (asymmetric ones, or as wide as the kernel) that it has for the same convolution without
// padding, and the copy costs little beside the difference.

#ifndef JAX_CONVGRAD_CPU_ONEDNN_STAGING_H_
#define JAX_CONVGRAD_CPU_ONEDNN_STAGING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ffi/conv.h"

namespace jax_convgrad {

bool HasPadding(const ConvGeometry& geometry);

// Whether oneDNN 3.2 must not compute a weight gradient but over a staged x, because that of a
// padded one is wrong:
//
// - the bfloat16 code leaves the gradient of a tap that lies on no element of x in any window as it
//   finds it, and gives wrong ones along the first of three axes (jit_bf16, on an AMD EPYC) where a
//   window is longer than x: of 1,170 problems, x of 1 to 6 and k of 1 to 4, 60;
// - the float32 code for AVX-512 reads what lies behind x where, along the first of three axes, the
//   window that first leaves the padding in front reaches into the padding behind: 5 of 15,379
//   problems in three dimensions.
bool WgradNeedsStaging(const ConvGeometry& geometry);

// The same convolution of an x that contains its padding.
ConvGeometry StagedGeometry(const ConvGeometry& geometry);

// Bytes of the padded x, none if an int64_t cannot count them.
std::optional<size_t> StagedBytes(const ConvGeometry& geometry, size_t element_bytes);

// The channels of a pixel that are copied: so many runs, of one length and equally far apart, as
// are some of each group. All of them are one run.
struct PixelRuns {
  int64_t count = 1;
  size_t bytes = 0;  // of a run
  size_t step = 0;   // from one to the next, in the larger array; the next pixel's are behind it
};

// Copies the pixels of a piece, which lie in a larger array, into an array of their own and back.
// The copy can have padding around them.
class PieceCopy {
 public:
  // A copy of nothing.
  PieceCopy() = default;
  // Of an array with so many images. `whole` are the sizes of the array that they lie in. All bytes
  // can be counted.
  PieceCopy(int spatial, int64_t batch, const PixelRuns& runs, const ConvGeometry::PerAxis& size,
            const ConvGeometry::PerAxis& low, const ConvGeometry::PerAxis& high,
            const ConvGeometry::PerAxis& whole);

  size_t bytes() const { return bytes_; }

  // From the first pixel in the larger array to the copy, with zeros for padding.
  void CopyIn(const char* from, char* copy) const;
  // Back, without the padding.
  void CopyOut(const char* copy, char* to) const;

 private:
  // Spatial axes, those that are not there first. Pixels; steps in bytes, in the larger array.
  struct Axis {
    int64_t size = 1, low = 0, padded = 1;
    size_t step = 0;
  };

  template <typename Visit>
  void ForEachRow(const Visit& visit) const;
  void CopyRuns(const char* from, size_t from_step, char* to, size_t to_step) const;

  int64_t batch_ = 0;
  PixelRuns runs_;
  size_t pixel_bytes_ = 0;  // of the copy
  size_t image_step_ = 0, bytes_ = 0;
  std::array<Axis, kMaxSpatialAxes> axes_{};
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_ONEDNN_STAGING_H_
