// Which implicit GEMM kernels serve problems, on a device like an H200.
//
//   implicit_gemm_answers                of problems that are read from the standard input, one a
//       line, as benchmarks/thin_coverage.cc has them: names of plans; how many of these use slots
//       in shared memory again; whether they are "fast" or "slow" beside a library's kernels. Parts
//       are divided by "; ". Or "-".
//   implicit_gemm_answers COUNT SEED     of those that benchmarks/implicit_gemm_kernels.cu draws:
//       of fprop, dgrad and wgrad by warps and by warpgroups, how many have a plan and how many
//       have one that uses slots again; and how many problems are short walks with dilation

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels/implicit_gemm/plan.cu"
#include "cuda/kernels/implicit_gemm/warpgroup/plan.cu"
#include "implicit_gemm_draws.h"

namespace {

using jax_convgrad::GemmKind;
using jax_convgrad::GemmType;
using jax_convgrad::ImplicitGemmPlan;
using jax_convgrad::ImplicitGemmProblem;

bool Read(ImplicitGemmProblem::PerAxis* values) {
  for (int64_t& value : *values) std::cin >> value;
  return std::cin.good();
}

constexpr jax_convgrad::GemmDevice kDevice{132, 228 * 1024, 227 * 1024, true};

int64_t ReusingSlots(const std::vector<std::unique_ptr<const ImplicitGemmPlan>>& plans) {
  return std::count_if(plans.begin(), plans.end(),
                       [](const auto& plan) { return plan->ReusesSlots(); });
}

void CountDrawn(int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  struct Counts {
    int served = 0, reusing = 0;
  };
  std::map<std::string, Counts> counts;
  int short_walks = 0;
  for (int i = 0; i < count; ++i) {
    const ImplicitGemmProblem p = jax_convgrad::DrawGemmProblem(kDevice, &random);
    const auto plans = ImplicitGemmPlan::Candidates(p);
    if (plans.empty()) continue;
    const std::string& name = plans.front()->name();
    const bool by_warps = name.find("_warp_") != std::string::npos;
    Counts& of = counts[name.substr(0, 5) + (by_warps ? " by warps" : " by warpgroups")];
    ++of.served;
    of.reusing += ReusingSlots(plans) > 0;
    short_walks += p.kernel[0] > 1 && p.out[0] <= p.dilation[0];
  }
  for (const auto& [name, of] : counts) {
    std::cout << name << ": " << of.served << " served, " << of.reusing << " use slots again\n";
  }
  std::cout << short_walks << " short walks\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    CountDrawn(std::atoi(argv[1]), std::strtoull(argv[2], nullptr, 10));
    return 0;
  }
  ImplicitGemmProblem p;
  p.device = kDevice;
  int kind = 0, type = 0;
  while (std::cin >> kind >> type >> p.batch >> p.in_channels >> p.out_channels && Read(&p.in) &&
         Read(&p.kernel) && Read(&p.out) && Read(&p.strides) && Read(&p.padding_low) &&
         Read(&p.dilation) && std::cin >> p.workspace_limit) {
    p.kind = static_cast<GemmKind>(kind);
    p.type = static_cast<GemmType>(type);
    const auto plans = ImplicitGemmPlan::Candidates(p);
    for (const auto& plan : plans) std::cout << plan->name() << (plan == plans.back() ? "; " : " ");
    if (plans.empty()) {
      std::cout << "-\n";
    } else {
      std::cout << ReusingSlots(plans) << (ImplicitGemmPlan::IsFast(p) ? "; fast\n" : "; slow\n");
    }
  }
}
