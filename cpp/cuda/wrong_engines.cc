#include "cuda/wrong_engines.h"

#include <algorithm>
#include <iterator>

namespace jax_convgrad {
namespace {

// NOTE [Wrong engines]. Found by benchmarks/check_engines.py, which compares every engine with
// exact sums, in 3333 runs on an H100 with cuDNN 9.19.0. All 32 wrong results were weight gradients
// with padding that differs between the two sides of an axis, and far off in most elements: these
// engines seem to know one padding per axis. With the same padding on both sides they were right
// in each of their runs, and are needed there: for float64 they are 70 times faster than the only
// other engine (dcgan4: 761 us against 54679). They are kept out for every version of cuDNN, since
// none is known that has them right; to try one, empty the list and run check_engines.py.
//
// Engine 1: 27 of 28 runs wrong, in bfloat16 and float32, both layouts, 2-D and 3-D.
// Engine 20: 4 of 4, float32, both layouts.
// Engine 70: 1 of 8, bfloat16 with channels first. It was the fastest only where the two sides are
// the same, so it is kept out of all other problems.
constexpr const char* kOnePaddingPerAxis[] = {"eng1", "eng20", "eng70"};

bool SidesDiffer(const ConvGeometry& g) {
  for (int axis = 0; axis < g.spatial; ++axis) {
    if (g.padding_low[axis] != g.padding_high[axis]) return true;
  }
  return false;
}

}  // namespace

bool ComputesWrongNumbers(const ConvProblem& problem, const std::string& engine) {
  if (problem.kind != ConvKind::kWgrad || !SidesDiffer(problem.geometry)) return false;
  const std::string number = engine.substr(0, engine.find('_'));
  return std::find(std::begin(kOnePaddingPerAxis), std::end(kOnePaddingPerAxis), number) !=
         std::end(kOnePaddingPerAxis);
}

}  // namespace jax_convgrad
