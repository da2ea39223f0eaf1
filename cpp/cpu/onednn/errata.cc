#include "cpu/onednn/errata.h"

#include <cpuid.h>

#include <algorithm>
#include <cstdint>

namespace jax_convgrad {
namespace {

namespace ffi = ::xla::ffi;

// Columns of padding at the end that windows read; below zero, columns of x that none reads.
int64_t ReadBehind(const ConvGeometry& g, int axis) {
  return (g.out[axis] - 1) * g.strides[axis] + g.WindowSize(axis) - g.in[axis] -
         g.padding_low[axis];
}

// Strided along an axis other than the last.
bool HasStridedRows(const ConvGeometry& g) {
  const auto last = g.strides.begin() + (g.spatial - 1);
  return std::any_of(g.strides.begin(), last, [](int64_t stride) { return stride > 1; });
}

// NOTE [A dilation counted twice]. The bfloat16 weight gradient counts a dilation along the last
// axis but one twice if the channels that it takes at a time, 16, do not divide a group's. It then
// reads rows that are not the window's and, at the end, what lies behind the image: numbers as
// large as the gradient, NaNs, now and then a segmentation fault. An AMD EPYC showed it for results
// of 29 and more columns, strided along them or not; narrower ones were right, and are kept away
// from it too, because only the code that oneDNN generates tells them apart. One group of up to 16
// channels has a kernel of its own, as has a dilation along another axis: these are right.
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

// The same code reads parts of its scratch memory that it has not written, NaNs perhaps, if one
// column of the result has a stride longer than x. All of the wrong ones had one channel.
bool ReadsUnwrittenScratch(const ConvGeometry& g) {
  const int axis = g.spatial - 1;
  return g.out[axis] == 1 && g.strides[axis] > g.in[axis];
}

// The float32 weight gradient for AVX-512 takes 28 columns of the result at a time, or twice 14 if
// the padding is wider than that, and forgets the stride when it works out how much of the padding
// is left for the second block. All wrong ones had results of 29 to 55 columns.
bool ForgetsStride(const ConvGeometry& g) {
  const int axis = g.spatial - 1;
  return g.strides[axis] > 1 && g.padding_low[axis] > 14 && g.out[axis] > 28 &&
         ReadBehind(g, axis) > 0;
}

// Weight gradients of strided 1x1 windows first copy the pixels that are read. With fewer channels
// than a vector has, 16 or for AVX2 8, they copy too much: they write outside of their scratch
// memory. Right ones have as many channels, or small images.
bool CopiesTooMuch(const ConvGeometry& g) {
  constexpr int64_t kVector = 16;
  const auto end = g.strides.begin() + g.spatial;
  return std::any_of(g.strides.begin(), end, [](int64_t stride) { return stride > 1; }) &&
         g.in_channels / g.groups < kVector;
}

// On processors that have AVX-512 without bfloat16. Wrong with more than 64 channels, whatever the
// other sizes.
bool HasFivePixels(const ConvGeometry& g) {
  int64_t pixels = 1;
  for (int axis = 0; axis < g.spatial; ++axis) pixels *= g.out[axis];
  return pixels == 5;
}

// As many columns of x are read by no window as there is padding in front of it: 12 columns, k16,
// stride 8, padding (3, 0).
bool HasPaddingInFrontOnly(const ConvGeometry& g) {
  const int axis = g.spatial - 1;
  return g.kernel[axis] > 1 && g.padding_low[axis] > 0 && ReadBehind(g, axis) < 0;
}

// The bfloat16 convolution by blocks of matrix products, except for 1x1 windows, multiplies pairs
// of channels: of an odd number it reads the one behind x, which is nobody's, times zero.
// NOTE [Pairs of channels] in dispatch/rules_preparation.py has what pairs mean inside x.
bool HasOddChannels(const ConvGeometry& g) { return g.in_channels / g.groups % 2 != 0; }

// NOTE [AMX]. Of 168,400 problems in bfloat16 on an Intel Xeon with AMX, drawn much as
// tests/support/drawn_convs.py does, 128 were wrong, and 20 wrote outside of their memory or
// crashed. All of them are of the kinds below, which other kernels take over.
bool HasThreeAxes(const ConvGeometry& g) { return g.spatial == 3; }

// NOTE [Tiles that are not described]. Some hypervisors report AMX and leave CPUID's leaf 0x1D,
// which describes its tiles, empty. oneDNN 3.2 then configures no tile. Most of its convolutions
// for AMX decline such a processor; brgconv_strided, an input gradient, does not, and its first
// instruction on a tile ends the process. With the leaf filled in the same problems were right.
bool HasUndescribedTiles(const ConvGeometry&) { return !DescribesAmxTiles(); }

// The scratch memory is too small for the rows that are copied there, and sums are written over
// them, or behind it.
bool HasRowsApart(const ConvGeometry& g) {
  for (int axis = 0; axis < g.spatial - 1; ++axis) {
    if (g.strides[axis] > g.kernel[axis]) return true;
  }
  return false;
}

// The wrong ones have no padding along the last axis; 222 with padding were right, and are passed
// over with them.
bool HasTileRowsOfSeveralPixels(const ConvGeometry& g) {
  constexpr int64_t kTileRow = 32;  // numbers
  const int last = g.spatial - 1;
  const int64_t channels = g.in_channels;
  return g.groups == 1 && g.strides[last] > 1 && g.dilation[last] == 1 &&
         channels % kTileRow != 0 && channels * g.kernel[last] % kTileRow == 0 &&
         channels * g.strides[last] % kTileRow == 0;
}

// Planes behind the last window are left as they were.
bool HasUnreadPlanes(const ConvGeometry& g) { return g.spatial == 3 && ReadBehind(g, 0) < 0; }

bool HasStridedRowsOnly(const ConvGeometry& g) {
  return g.strides[g.spatial - 1] == 1 && HasStridedRows(g);
}

constexpr ErratumKind kWrong = ErratumKind::kWrongNumbers;
constexpr ErratumKind kReads = ErratumKind::kReadsOutOfBounds;
constexpr ErratumKind kCrashes = ErratumKind::kCrashes;
constexpr ErratumKind kWrites = ErratumKind::kWritesOutOfBounds;
constexpr ConvKind kFprop = ConvKind::kFprop, kDgrad = ConvKind::kDgrad, kWgrad = ConvKind::kWgrad;
constexpr ffi::DataType kBF16 = ffi::DataType::BF16;
constexpr char kAmx[] = "avx512_core_amx*";

}  // namespace

bool DescribesAmxTiles() {
  constexpr unsigned kLeaf = 0x1D, kPalette = 1, kTiles = 8, kRows = 16;
  static const bool described = [] {
    unsigned palettes = 0, sizes = 0, tiles = 0, rows = 0, unused = 0;
    return __get_cpuid_count(kLeaf, 0, &palettes, &unused, &unused, &unused) != 0 &&
           palettes >= kPalette &&
           __get_cpuid_count(kLeaf, kPalette, &sizes, &tiles, &rows, &unused) != 0 &&
           tiles >> 16 == kTiles && (rows & 0xFFFF) == kRows;
  }();
  return described;
}

// clang-format off: a row stays on its lines.
const std::array<OnednnErratum, 15> kOnednnErrata = {{
    {kReads, kWgrad, "jit_bf16", "*", {}, kAllVersions, CountsDilationTwice,
     "tests/cpu/test_handlers.py: 2d-wide-dilation and its variants"},
    {kReads, kWgrad, "jit_bf16", "*", {}, kAllVersions, ReadsUnwrittenScratch,
     "tests/cpu/test_handlers.py: 1d-stride-beyond-x; 9 of 59,891 random problems"},
    {kWrong, kWgrad, "*jit", "avx512_core*", {}, kAllVersions, ForgetsStride,
     "tests/cpu/test_handlers.py: 1d-much-padding; 11 of 71,203 random problems with much padding"},
    {kWrites, kWgrad, "*1x1*", "*", {}, kAllVersions, CopiesTooMuch,
     "tests/cpu/test_handlers.py: 2d-1x1-stride-of-few; 30 of 1,300 random problems crashed"},
    {kWrong, kFprop, "jit_bf16_1x1", "avx512_core", {}, kAllVersions, HasFivePixels,
     "tests/cpu/test_handlers.py: 1d-five-pixels"},
    {kWrong, kDgrad, "jit_bf16_1x1", "avx512_core", {}, kAllVersions, HasFivePixels,
     "tests/cpu/test_handlers.py: 2d-five-pixels"},
    {kWrites, kFprop, "*brgconv", "*", kBF16, kAllVersions, HasPaddingInFrontOnly,
     "tests/cpu/test_handlers.py: 1d-padding-in-front-only; 41 of 37,790 problems of large strides"},
    {kReads, kFprop, "*brgconv", "*", kBF16, kAllVersions, HasOddChannels,
     "tests/cpu/test_guarded.py: NaNs behind x"},
    {kWrong, {}, "*1x1", kAmx, {}, kAllVersions, HasThreeAxes,
     "benchmarks/cpu/guarded.txt: windows of one pixel along three axes, 18 wrong"},
    // Fixed in 2026 (pull request 5494 of oneDNN), in no release that was tried here.
    {kWrites, kFprop, "*brgconv", kAmx, {}, kAllVersions, HasRowsApart,
     "benchmarks/cpu/guarded.txt: 18 of 2,591 wrong, 11 crashes"},
    {kWrong, kFprop, "*brgconv", kAmx, {}, kAllVersions, HasTileRowsOfSeveralPixels,
     "benchmarks/cpu/guarded.txt: 51 of 343 wrong, nearly every element of those"},
    {kWrites, kFprop, "*jit", kAmx, {}, kAllVersions, HasThreeAxes,
     "benchmarks/cpu/guarded.txt: 6 wrong, others crashed"},
    {kWrong, kDgrad, "*jit", kAmx, {}, kAllVersions, HasUnreadPlanes,
     "benchmarks/cpu/guarded.txt: 38 wrong"},
    // It multiplies what it reads behind its scratch memory by zero, so that a NaN there comes out.
    // The jit kernel that oneDNN offers next, which nobody has seen run, is passed over too.
    {kReads, kWgrad, "*", kAmx, {}, kAllVersions, HasStridedRowsOnly,
     "benchmarks/cpu/guarded.txt: 4 of 1,102 wrong by brgconv_bwd_w"},
    {kCrashes, {}, "*", kAmx, {}, kAllVersions, HasUndescribedTiles,
     "benchmarks/cpu/guarded.txt: 162 of 162 problems in a machine without leaf 0x1D"},
}};
// clang-format on

const OnednnErratum* FindErratum(ConvKind op, const ConvGeometry& geometry,
                                 ffi::DataType operand_type, std::string_view implementation,
                                 int version) {
  const size_t colon = std::min(implementation.find(':'), implementation.size());
  const std::string_view primitive = implementation.substr(0, colon);
  const std::string_view instructions =
      implementation.substr(std::min(colon + 1, implementation.size()));
  const auto found =
      std::find_if(kOnednnErrata.begin(), kOnednnErrata.end(), [&](const OnednnErratum& erratum) {
        return erratum.op.value_or(op) == op &&
               erratum.operand_type.value_or(operand_type) == operand_type &&
               erratum.versions.Contains(version) && MatchesPattern(primitive, erratum.primitive) &&
               MatchesPattern(instructions, erratum.instructions) && erratum.affects(geometry);
      });
  return found == kOnednnErrata.end() ? nullptr : &*found;
}

}  // namespace jax_convgrad
