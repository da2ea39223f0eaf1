// The errata of both libraries: each row is found for a problem that it is for, and not for one
// that differs in what the row is about. Prints the evidence of each row, one a line.

#include "cpu/onednn/errata.h"

#include <cstdint>
#include <cstdio>
#include <string_view>
#include <vector>

#include "cuda/cudnn/errata.h"
#include "ffi/conv.h"
#include "ffi/errata.h"

namespace {

using jax_convgrad::ConvGeometry;
using jax_convgrad::ConvKind;
using jax_convgrad::CudnnErratum;
using jax_convgrad::FindErratum;
using jax_convgrad::kCudnnErrata;
using jax_convgrad::kOnednnErrata;
using jax_convgrad::MatchesPattern;
using jax_convgrad::OnednnErratum;
using ::xla::ffi::DataType;

constexpr int kOnednn = 30200, kCudnn = 91900, kH100 = 90;

struct Axis {
  int64_t in, kernel, stride = 1, low = 0, high = 0, dilation = 1;
};

ConvGeometry Make(int64_t in_channels, int64_t groups, const std::vector<Axis>& axes) {
  ConvGeometry g;
  g.spatial = static_cast<int>(axes.size());
  g.batch = 1;
  g.in_channels = in_channels;
  g.out_channels = 2 * groups;
  g.groups = groups;
  for (size_t i = 0; i < axes.size(); ++i) {
    const Axis& axis = axes[i];
    g.in[i] = axis.in;
    g.kernel[i] = axis.kernel;
    g.strides[i] = axis.stride;
    g.padding_low[i] = axis.low;
    g.padding_high[i] = axis.high;
    g.dilation[i] = axis.dilation;
    const int64_t window = (axis.kernel - 1) * axis.dilation + 1;
    g.out[i] = (axis.in + axis.low + axis.high - window) / axis.stride + 1;
  }
  return g;
}

int failures = 0;

void Expect(bool holds, std::string_view what) {
  if (holds) return;
  std::printf("FAILED: %.*s\n", static_cast<int>(what.size()), what.data());
  ++failures;
}

constexpr int kNone = -1;

// The last row is for all that uses AMX, on a processor that does not describe its tiles.
const int kTiles = static_cast<int>(kOnednnErrata.size()) - 1;

// `row`: the number of the first row that is for the problem.
void ExpectOnednn(int row, ConvKind op, DataType type, std::string_view name,
                  const ConvGeometry& g) {
  const OnednnErratum* const found = FindErratum(op, g, type, name, kOnednn);
  const int got = found == nullptr ? kNone : static_cast<int>(found - kOnednnErrata.data());
  if (got != row) {
    std::printf("FAILED: %.*s has row %d, not %d, for %s\n", static_cast<int>(name.size()),
                name.data(), got, row, g.ToString().c_str());
    ++failures;
  }
}

// That no row is for the problem but the last, where that is for this processor.
void ExpectTilesAlone(ConvKind op, DataType type, std::string_view name, const ConvGeometry& g) {
  ExpectOnednn(kOnednnErrata[kTiles].affects(g) ? kTiles : kNone, op, type, name, g);
}

void TestOnednn() {
  constexpr ConvKind kFprop = ConvKind::kFprop, kDgrad = ConvKind::kDgrad;
  constexpr ConvKind kWgrad = ConvKind::kWgrad;
  constexpr DataType kBF16 = DataType::BF16, kF32 = DataType::F32;
  constexpr char kJitBf16[] = "jit_bf16:avx512_core_bf16";

  const std::vector<Axis> dilated = {{9, 3, 1, 2, 2, 2}, {40, 3, 1, 2, 2, 2}};
  ExpectOnednn(0, kWgrad, kBF16, kJitBf16, Make(24, 1, dilated));
  ExpectOnednn(kNone, kWgrad, kBF16, kJitBf16, Make(32, 1, dilated));
  ExpectOnednn(kNone, kWgrad, kBF16, kJitBf16, Make(16, 1, dilated));
  ExpectOnednn(0, kWgrad, kBF16, kJitBf16, Make(16, 2, dilated));
  ExpectOnednn(kNone, kFprop, kBF16, kJitBf16, Make(24, 1, dilated));
  ExpectOnednn(kNone, kWgrad, kBF16, "jit_bf16_1x1:avx512_core_bf16", Make(24, 1, dilated));
  ExpectOnednn(kNone, kWgrad, kBF16, kJitBf16, Make(24, 1, {{9, 3}, {40, 3, 1, 2, 2, 2}}));

  ExpectOnednn(1, kWgrad, kBF16, kJitBf16, Make(1, 1, {{6, 1, 8}}));
  ExpectOnednn(kNone, kWgrad, kBF16, kJitBf16, Make(1, 1, {{6, 1, 6}}));

  const std::vector<Axis> padded = {{79, 3, 2, 17, 17}};
  ExpectOnednn(2, kWgrad, kF32, "jit:avx512_core", Make(48, 3, padded));
  ExpectOnednn(kNone, kWgrad, kF32, "jit:avx2", Make(48, 3, padded));
  ExpectOnednn(kNone, kDgrad, kF32, "jit:avx512_core", Make(48, 3, padded));
  ExpectOnednn(kNone, kWgrad, kF32, "jit:avx512_core", Make(48, 3, {{79, 3, 2, 14, 14}}));

  const std::vector<Axis> apart = {{26, 1, 2}, {35, 1}};
  ExpectOnednn(3, kWgrad, kF32, "jit_1x1:avx2", Make(2, 1, apart));
  ExpectOnednn(3, kWgrad, kBF16, "jit_bf16_1x1:avx512_core", Make(15, 1, apart));
  ExpectOnednn(kNone, kWgrad, kF32, "jit_1x1:avx2", Make(16, 1, apart));
  ExpectOnednn(kNone, kFprop, kF32, "jit_1x1:avx2", Make(2, 1, apart));

  ExpectOnednn(4, kFprop, kBF16, "jit_bf16_1x1:avx512_core", Make(144, 1, {{5, 1}}));
  ExpectOnednn(5, kDgrad, kBF16, "jit_bf16_1x1:avx512_core", Make(144, 1, {{5, 1}, {1, 1}}));
  ExpectOnednn(kNone, kFprop, kBF16, "jit_bf16_1x1:avx512_core_bf16", Make(144, 1, {{5, 1}}));
  ExpectOnednn(kNone, kFprop, kBF16, "jit_bf16_1x1:avx512_core", Make(144, 1, {{6, 1}}));

  const std::vector<Axis> in_front = {{12, 16, 8, 3, 0}};
  ExpectOnednn(kNone, kFprop, kF32, "brgconv:avx512_core", Make(16, 1, in_front));
  ExpectOnednn(6, kFprop, kBF16, "brgconv:avx512_core_bf16", Make(16, 1, {{14, 8, 8, 3, 0}}));
  ExpectOnednn(kNone, kFprop, kBF16, "brgconv_1x1:avx512_core_bf16",
               Make(16, 1, {{14, 8, 8, 3, 0}}));

  ExpectOnednn(7, kFprop, kBF16, "brgconv:avx512_core_bf16", Make(15, 1, {{12, 3}}));
  ExpectOnednn(kNone, kFprop, kF32, "brgconv:avx512_core", Make(15, 1, {{12, 3}}));

  const std::vector<Axis> pixel = {{4, 1}, {3, 1}, {47, 1}};
  ExpectOnednn(8, kFprop, kBF16, "brgconv_1x1:avx512_core_amx", Make(56, 1, pixel));
  ExpectOnednn(8, kDgrad, kBF16, "brg_fwd+brgconv_1x1:avx512_core_amx", Make(56, 1, pixel));
  ExpectOnednn(kNone, kFprop, kBF16, "brgconv_1x1:avx512_core_bf16", Make(56, 1, pixel));

  const std::vector<Axis> rows_apart = {{23, 3, 7}, {55, 3, 1, 0, 0, 4}};
  ExpectOnednn(9, kFprop, kBF16, "brgconv:avx512_core_amx", Make(40, 1, rows_apart));
  ExpectOnednn(kNone, kFprop, kBF16, "brgconv:avx512_core_bf16", Make(40, 1, rows_apart));

  const std::vector<Axis> halved = {{20, 2, 2}, {8, 2, 2}};
  ExpectOnednn(10, kFprop, kBF16, "brgconv:avx512_core_amx", Make(48, 1, halved));
  ExpectTilesAlone(kFprop, kBF16, "brgconv:avx512_core_amx", Make(64, 1, halved));
  ExpectTilesAlone(kFprop, kBF16, "brgconv:avx512_core_amx", Make(96, 2, halved));

  const std::vector<Axis> volume = {{6, 3, 2}, {8, 3, 2}, {21, 3, 2}};
  ExpectOnednn(11, kFprop, kBF16, "jit:avx512_core_amx", Make(16, 1, volume));
  ExpectOnednn(12, kDgrad, kBF16, "jit:avx512_core_amx", Make(16, 1, volume));
  ExpectTilesAlone(kDgrad, kBF16, "jit:avx512_core_amx",
                   Make(16, 1, {{7, 3, 2}, {8, 3, 2}, {21, 3, 2}}));
  ExpectOnednn(kNone, kDgrad, kF32, "jit:avx512_core", Make(16, 1, volume));

  ExpectOnednn(13, kWgrad, kBF16, "brgconv_bwd_w:avx512_core_amx",
               Make(67, 1, {{9, 3, 3, 1, 1}, {88, 3, 1, 4, 4}}));
  ExpectTilesAlone(kWgrad, kBF16, "brgconv_bwd_w:avx512_core_amx",
                   Make(67, 1, {{9, 3, 3, 1, 1}, {88, 3, 3, 4, 4}}));

  const std::vector<Axis> strided = {{9, 3, 2, 1, 1}, {9, 3, 2, 1, 1}};
  ExpectTilesAlone(kDgrad, kBF16, "brgconv_strided:avx512_core_amx", Make(32, 1, strided));
  ExpectTilesAlone(kFprop, kBF16, "brgconv:avx512_core_amx_fp16", Make(32, 1, strided));
  ExpectOnednn(kNone, kDgrad, kBF16, "brgconv_strided:avx512_core_bf16", Make(32, 1, strided));
}

void TestCudnn() {
  const ConvGeometry even = Make(8, 1, {{9, 3, 2, 1, 1}, {9, 3, 2, 1, 1}});
  const ConvGeometry uneven = Make(8, 1, {{9, 3, 2, 1, 1}, {9, 3, 2, 0, 1}});
  const auto finds = [&](ConvKind op, const ConvGeometry& g, std::string_view engine) {
    return FindErratum(op, g, engine, kCudnn, kH100) != nullptr;
  };
  for (const CudnnErratum& erratum : kCudnnErrata) {
    Expect(FindErratum(erratum.op, uneven, erratum.engine, kCudnn, kH100) == &erratum, "a row");
    Expect(!finds(erratum.op, even, erratum.engine), "even padding is right");
    Expect(!finds(ConvKind::kFprop, uneven, erratum.engine), "gradients alone are wrong");
  }
  Expect(finds(ConvKind::kWgrad, uneven, "eng1_k2=3_k3=0"), "settings do not matter");
  Expect(!finds(ConvKind::kWgrad, uneven, "eng10_k2=3"), "another engine");
  Expect(!finds(ConvKind::kWgrad, uneven, "eng50"), "dgrad's");
}

void TestRanges() {
  constexpr jax_convgrad::VersionRange range{30200, 30500};
  Expect(!range.Contains(30199) && range.Contains(30200) && range.Contains(30499), "first");
  Expect(!range.Contains(30500), "fixed");
  constexpr jax_convgrad::CapabilityRange hopper{90, 99};
  Expect(hopper.Contains(90) && !hopper.Contains(89) && !hopper.Contains(100), "devices");
  Expect(MatchesPattern("jit_bf16", "jit*") && MatchesPattern("jit", "*jit"), "stars");
  Expect(MatchesPattern("a1x1b", "*1x1*") && MatchesPattern("", "*"), "stars at both ends");
  Expect(!MatchesPattern("jit_bf16", "jit") && !MatchesPattern("", "jit"), "the whole text");
  Expect(!MatchesPattern("xjit", "jit*"), "the start");
}

}  // namespace

int main() {
  TestOnednn();
  TestCudnn();
  TestRanges();
  for (const OnednnErratum& erratum : kOnednnErrata) std::printf("%s\n", erratum.evidence);
  for (const CudnnErratum& erratum : kCudnnErrata) std::printf("%s\n", erratum.evidence);
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
