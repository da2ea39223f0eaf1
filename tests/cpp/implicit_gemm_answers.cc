// Which implicit GEMM kernels serve problems that are read from the standard input, one a line, on
// a device like an H200: names of plans, and after "; " whether they are "fast" or "slow" beside a
// library's kernels; or "-". A line is as benchmarks/thin_coverage.cc has it.

#include <cstdint>
#include <iostream>
#include <string>

#include "cuda/kernels/implicit_gemm/plan.cu"
#include "cuda/kernels/implicit_gemm/warpgroup/plan.cu"

namespace {

using jax_convgrad::GemmKind;
using jax_convgrad::GemmType;
using jax_convgrad::ImplicitGemmPlan;
using jax_convgrad::ImplicitGemmProblem;

bool Read(ImplicitGemmProblem::PerAxis* values) {
  for (int64_t& value : *values) std::cin >> value;
  return std::cin.good();
}

}  // namespace

int main() {
  ImplicitGemmProblem p;
  p.device = {132, 228 * 1024, 227 * 1024, true};
  int kind = 0, type = 0;
  while (std::cin >> kind >> type >> p.batch >> p.in_channels >> p.out_channels && Read(&p.in) &&
         Read(&p.kernel) && Read(&p.out) && Read(&p.strides) && Read(&p.padding_low) &&
         Read(&p.dilation) && std::cin >> p.workspace_limit) {
    p.kind = static_cast<GemmKind>(kind);
    p.type = static_cast<GemmType>(type);
    std::string line;
    for (const auto& plan : ImplicitGemmPlan::Candidates(p)) {
      line += (line.empty() ? "" : " ") + plan->name();
    }
    if (line.empty()) {
      std::cout << "-\n";
    } else {
      std::cout << line << (ImplicitGemmPlan::IsFast(p) ? "; fast\n" : "; slow\n");
    }
  }
}
