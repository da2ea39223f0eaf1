#include "cuda/cudnn/errata.h"

#include <algorithm>

namespace jax_convgrad {
namespace {

// NOTE [One padding per axis]. All wrong results of cuDNN 9.19.0 on an H100, in 3333 runs in
// bfloat16 and float32 and later in 12009 runs in five kinds of arithmetic, were gradients with
// padding that differs between the two sides of an axis, and most of their elements were far off:
// these engines seem to know only one padding per axis. With the same padding on both sides they
// were right in all their runs, and are needed: for float64 they are 70 times faster than the only
// other engine (dcgan4: 761 us against 54679).
bool HasUnevenPadding(const ConvGeometry& g) {
  for (int axis = 0; axis < g.spatial; ++axis) {
    if (g.padding_low[axis] != g.padding_high[axis]) return true;
  }
  return false;
}

constexpr ErratumKind kWrong = ErratumKind::kWrongNumbers;

}  // namespace

// clang-format off: a row stays on its lines.
const std::array<CudnnErratum, 5> kCudnnErrata = {{
    {kWrong, ConvKind::kWgrad, "eng1", kAllVersions, kAllDevices, HasUnevenPadding,
     "benchmarks/check_engines.py: 27 of 28 runs wrong, bfloat16 and float32, 2-D and 3-D"},
    {kWrong, ConvKind::kWgrad, "eng18", kAllVersions, kAllDevices, HasUnevenPadding,
     "benchmarks/h100/engines.txt: 8 of 8 runs wrong, float32 with and without TF32"},
    {kWrong, ConvKind::kWgrad, "eng20", kAllVersions, kAllDevices, HasUnevenPadding,
     "benchmarks/check_engines.py: 4 of 4 runs wrong, float32, both layouts"},
    // The fastest engine, but only where both sides have the same padding.
    {kWrong, ConvKind::kWgrad, "eng70", kAllVersions, kAllDevices, HasUnevenPadding,
     "benchmarks/check_engines.py: 1 of 8 runs wrong, bfloat16, channels first"},
    {kWrong, ConvKind::kDgrad, "eng50", kAllVersions, kAllDevices, HasUnevenPadding,
     "benchmarks/h100/engines.txt: 18 of 20 runs wrong, float16, float32 with and without TF32"},
}};
// clang-format on

const CudnnErratum* FindErratum(ConvKind op, const ConvGeometry& geometry, std::string_view engine,
                                int version, int capability) {
  const std::string_view number = engine.substr(0, engine.find('_'));
  const auto found =
      std::find_if(kCudnnErrata.begin(), kCudnnErrata.end(), [&](const CudnnErratum& erratum) {
        return erratum.op == op && erratum.engine == number && erratum.versions.Contains(version) &&
               erratum.devices.Contains(capability) && erratum.affects(geometry);
      });
  return found == kCudnnErrata.end() ? nullptr : &*found;
}

}  // namespace jax_convgrad
