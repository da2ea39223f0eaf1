// Copies of x with its padding written out as zeros. oneDNN has no fast code for some paddings
// (asymmetric ones, or as wide as the kernel) that it has for the same convolution without padding,
// and the copy costs little beside the difference.

#ifndef JAX_CONVGRAD_CPU_ONEDNN_STAGING_H_
#define JAX_CONVGRAD_CPU_ONEDNN_STAGING_H_

#include <cstddef>
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

// For a padded x whose bytes can be counted: from x to the copy, zeros around it, and back without
// them.
void CopyToStaged(const ConvGeometry& geometry, size_t element_bytes, const char* x, char* staged);
void CopyFromStaged(const ConvGeometry& geometry, size_t element_bytes, const char* staged,
                    char* x);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_ONEDNN_STAGING_H_
