#include "cuda/cudnn/errata.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace jax_convgrad {
namespace {

// NOTE [Wrong engines]. Found by benchmarks/check_engines.py, which compares every engine with
// exact sums, on an H100 with cuDNN 9.19.0: in 3333 runs in bfloat16 and float32, and later in
// 12009 in five arithmetics. All wrong results were gradients with padding that differs between the
// two sides of an axis, and far off in most elements: these engines seem to know one padding per
// axis. With the same padding on both sides they were right in each of their runs, and are needed
// there: for float64 they are 70 times faster than the only other engine (dcgan4: 761 us against
// 54679). They are kept out for every version of cuDNN, since none is known that has them right; to
// try one, empty the list and run check_engines.py.
//
// Of the runs with such padding these were wrong:
// wgrad, engine 1: 27 of 28, in bfloat16 and float32, both layouts, 2-D and 3-D.
// wgrad, engine 18: 8 of 8, in float32 with and without TF32.
// wgrad, engine 20: 4 of 4, float32, both layouts.
// wgrad, engine 70: 1 of 8, bfloat16 with channels first. It was the fastest only where the two
// sides are the same, so it is kept out of all other problems.
// dgrad, engine 50: 18 of 20, in float16 and in float32 with and without TF32.
struct WrongEngine {
  ConvKind kind;
  const char* number;
};
constexpr WrongEngine kOnePaddingPerAxis[] = {{ConvKind::kWgrad, "eng1"},
                                              {ConvKind::kWgrad, "eng18"},
                                              {ConvKind::kWgrad, "eng20"},
                                              {ConvKind::kWgrad, "eng70"},
                                              {ConvKind::kDgrad, "eng50"}};

bool SidesDiffer(const ConvGeometry& g) {
  for (int axis = 0; axis < g.spatial; ++axis) {
    if (g.padding_low[axis] != g.padding_high[axis]) return true;
  }
  return false;
}

}  // namespace

bool ComputesWrongNumbers(const ConvProblem& problem, const std::string& engine) {
  if (!SidesDiffer(problem.geometry)) return false;
  const std::string number = engine.substr(0, engine.find('_'));
  return std::any_of(std::begin(kOnePaddingPerAxis), std::end(kOnePaddingPerAxis),
                     [&](const WrongEngine& wrong) {
                       return wrong.kind == problem.kind && wrong.number == number;
                     });
}

}  // namespace jax_convgrad
