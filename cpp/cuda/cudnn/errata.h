// The engines that cuDNN offers for problems that they compute wrongly, as data.

#ifndef JAX_CONVGRAD_CUDA_CUDNN_ERRATA_H_
#define JAX_CONVGRAD_CUDA_CUDNN_ERRATA_H_

#include <array>
#include <limits>
#include <string_view>

#include "ffi/conv.h"
#include "ffi/errata.h"

namespace jax_convgrad {

// The table was validated on this version of cuDNN, on an H100 (9.19.0): every engine that it
// offers for some thousand problems was compared with exact sums. Another version may have other
// wrong engines, or other engines under these numbers. To validate one, empty the table and run
// benchmarks/check_engines.py.
inline constexpr char kValidatedCudnn[] = "9.19";

// Compute capabilities as 10 * major + minor, both ends inclusive.
struct CapabilityRange {
  int first = 0;
  int last = std::numeric_limits<int>::max();

  constexpr bool Contains(int capability) const {
    return first <= capability && capability <= last;
  }
};

inline constexpr CapabilityRange kAllDevices{};

struct CudnnErratum {
  ErratumKind kind;
  ConvKind op;
  std::string_view engine;  // its number, "eng3", with any settings
  VersionRange versions;
  CapabilityRange devices;
  bool (*affects)(const ConvGeometry& geometry);
  const char* evidence;  // a file of this repository, then its finding
};

extern const std::array<CudnnErratum, 5> kCudnnErrata;

// The erratum that forbids the engine of that name, "eng3_k2=1_k3=0", for a problem; null if none
// does. `version` is cuDNN's, `capability` the device's.
const CudnnErratum* FindErratum(ConvKind op, const ConvGeometry& geometry, std::string_view engine,
                                int version, int capability);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_CUDNN_ERRATA_H_
