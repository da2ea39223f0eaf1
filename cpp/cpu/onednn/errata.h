// The implementations that oneDNN offers for problems that they compute wrongly, as data.

#ifndef JAX_CONVGRAD_CPU_ONEDNN_ERRATA_H_
#define JAX_CONVGRAD_CPU_ONEDNN_ERRATA_H_

#include <array>
#include <optional>
#include <string_view>

#include "ffi/conv.h"
#include "ffi/errata.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// The table below was validated on this version of oneDNN, on processors with AVX2, AVX-512 and
// AMX (benchmarks/cpu/guarded.txt). To validate another, empty the table and run
// tests/cpu/test_guarded.py with a large JAX_CONVGRAD_GUARDED_CASES.
inline constexpr char kValidatedOnednn[] = "3.2";

// An implementation is named after its primitive and the instructions that it uses:
// "jit_bf16:avx512_core_bf16". Both are patterns here, see MatchesPattern.
struct OnednnErratum {
  ErratumKind kind;
  std::optional<ConvKind> op;  // nothing: all three
  std::string_view primitive;
  std::string_view instructions;
  std::optional<::xla::ffi::DataType> operand_type;  // nothing: both
  VersionRange versions;
  bool (*affects)(const ConvGeometry& geometry);
  const char* evidence;  // a file of this repository, then what it showed
};

extern const std::array<OnednnErratum, 15> kOnednnErrata;

// The erratum that forbids an implementation for a problem, whose padding may have been written out
// (cpu/onednn/staging.h) so that it has none; null if none does. `version` is oneDNN's.
const OnednnErratum* FindErratum(ConvKind op, const ConvGeometry& geometry,
                                 ::xla::ffi::DataType operand_type, std::string_view implementation,
                                 int version);

// Whether CPUID describes the tiles of AMX, without which oneDNN can use none of them.
bool DescribesAmxTiles();

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_ONEDNN_ERRATA_H_
