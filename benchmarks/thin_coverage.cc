// Which thin kernels serve problems that are read from the standard input, one a line, and why none
// does. Host code alone: compiled with tests/cpp/emulated_cuda. thin_coverage.py runs it.
//
// A line: kind (0 fprop, 1 dgrad, 2 wgrad), type (0 float16, 1 bfloat16, 2 float32 as TF32),
// batch, input channels,
// output channels, then z, y, x each of in, kernel, out, strides, padding and dilation, then the
// workspace limit. The answer: names of plans, the first choice first, and after "; " whether that
// is "fast" or "slow" beside a library's kernels; or "- " and reasons.

#include <cstdint>
#include <iostream>
#include <string>

#include "cuda/kernels/thin/image_warpgroup.cu"
#include "cuda/kernels/thin/plan.cu"
#include "cuda/kernels/thin/windows_warpgroup.cu"

namespace {

using namespace jax_convgrad;  // NOLINT: a benchmark

// Why no plan of any family that a problem belongs to serves it.
std::string Reasons(const ThinProblem& p) {
  std::string reasons;
  const auto add_if = [&](bool holds, const char* reason) {
    if (holds && reasons.find(reason) == std::string::npos) {
      reasons += (reasons.empty() ? "" : "; ") + std::string(reason);
    }
  };
  const auto is_odd = [](int64_t elements) { return !Multiple(elements, 2); };
  const bool fprop = p.kind == ThinKind::kFprop, dgrad = p.kind == ThinKind::kDgrad;
  bool belongs = false, beside = true, covered = true;
  for (size_t axis = 0; axis < 3; ++axis) {
    beside = beside && p.strides[axis] == p.kernel[axis] && p.dilation[axis] == 1 &&
             p.padding_low[axis] == 0;
    covered = covered && p.out[axis] * p.kernel[axis] == p.in[axis];
  }
  if (beside && p.type != ThinType::kTf32) {
    belongs = true;
    add_if(dgrad && !covered, "windows: x has elements that no window reads");
    add_if(!Multiple(p.out_channels, 8), "windows: output channels are no multiple of 8");
    add_if(is_odd(p.kernel[2] * p.in_channels), "windows: a window's row has an odd size");
    add_if(is_odd(p.in[2] * p.in_channels), "windows: a row has an odd size");
    add_if(HasWindows(p), "windows: shared memory or the workspace is too small");
  }
  if (!dgrad && IsThin(p, p.in_channels)) {
    belongs = true;
    add_if(p.dilation[2] != 1, "image: dilation along x");
    add_if(fprop ? HasImage(p) : HasImageWgrad(p),
           "image: shared memory or the workspace is too small");
  }
  if (dgrad && IsThin(p, p.out_channels) && !beside) {
    belongs = true;
    add_if(HasStrides(p), "image: dgrad with a stride");
    add_if(p.dilation[2] != 1, "image: dilation along x");
    add_if(!HasStrides(p) && HasImage(Exchanged(p)), "image: shared memory is too small");
  }
  const int64_t few = dgrad ? p.in_channels : p.out_channels;
  const int64_t channels = dgrad ? p.out_channels : p.in_channels;
  if (IsThin(p, few)) {
    belongs = true;
    add_if(p.kind != ThinKind::kWgrad && !Multiple(channels, 8),
           "few outputs: the other channels are no multiple of 8");
    add_if(dgrad && FewPeriod(p) > kFewThreads, "few outputs: a long stride along x");
    if (p.kind == ThinKind::kWgrad) {
      add_if(HasStrides(p), "few outputs: wgrad with a stride");
      add_if(p.dilation[2] != 1, "few outputs: dilation along x");
      add_if(!HasStrides(p) && HasImageWgrad(Exchanged(p)),
             "few outputs: shared memory or the workspace is too small");
    } else {
      add_if(few * p.kernel[2] > kFewMaxColumns, "few outputs: more than 32 columns");
      add_if(HasFewOutputs(p), "few outputs: shared memory is too small");
    }
  }
  return belongs ? reasons : "not thin";
}

bool Read(ThinProblem::PerAxis* values) {
  for (int64_t& value : *values) std::cin >> value;
  return std::cin.good();
}

}  // namespace

int main() {
  ThinProblem p;
  p.device = {132, 228 * 1024, 227 * 1024, true};  // an H100
  int kind = 0, type = 0;
  while (std::cin >> kind >> type >> p.batch >> p.in_channels >> p.out_channels && Read(&p.in) &&
         Read(&p.kernel) && Read(&p.out) && Read(&p.strides) && Read(&p.padding_low) &&
         Read(&p.dilation) && std::cin >> p.workspace_limit) {
    p.kind = static_cast<ThinKind>(kind);
    p.type = static_cast<ThinType>(type);
    std::string line;
    for (const auto& plan : ThinPlan::Candidates(p)) {
      line += (line.empty() ? "" : " ") + plan->name();
    }
    if (!line.empty()) line += ThinPlan::IsFast(p) ? "; fast" : "; slow";
    std::cout << (line.empty() ? "- " + Reasons(p) : line) << "\n";
  }
}
