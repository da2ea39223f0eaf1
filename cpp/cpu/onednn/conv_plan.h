#ifndef JAX_CONVGRAD_CPU_ONEDNN_CONV_PLAN_H_
#define JAX_CONVGRAD_CPU_ONEDNN_CONV_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cpu/conv_problem.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// A convolution made ready for oneDNN: cut into pieces, with the primitives that run them.
// Immutable, so any number of threads can run one plan at the same time.
//
// oneDNN runs single-threaded, on pieces, in XLA's own threads: it has no way to use XLA's pool,
// and a second pool of threads beside it would fight it for the processors. All results are the
// same bits at every call: which piece is added to which sum depends on the problem, which
// has the number of threads in it, never on timing.
class ConvPlan {
 public:
  // Throws dnnl::error and std::bad_alloc. To be called with oneDNN single-threaded.
  static std::shared_ptr<const ConvPlan> Make(const ConvProblem& problem);

  ConvPlan(const ConvPlan&) = delete;
  ConvPlan& operator=(const ConvPlan&) = delete;
  ~ConvPlan();

  // Runs it. `x`, `w` and `y` are the arrays of those shapes, one of them the result, which is
  // overwritten. Throws dnnl::error and std::bad_alloc.
  void Run(::xla::ffi::ThreadPool& pool, void* x, void* w, void* y) const;

  // Scratch memory that Run takes. At most kMaxScratchBytes, unless the weights alone need more.
  size_t ScratchBytes() const;

  // Threads that can run it at once, and whether scratch memory is what keeps them from being more.
  int64_t workers() const;
  bool is_cramped() const;

 private:
  struct Impl;
  explicit ConvPlan(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// Whether oneDNN has a real implementation of all three operators for this type on this processor,
// not only the slow one it keeps as a reference.
bool OnednnSupports(::xla::ffi::DataType type);

// Whether this processor has instructions that multiply bfloat16, and oneDNN uses them. Without
// them its kernels widen every element, at every use.
bool OnednnMultipliesBf16();

// Version of the oneDNN library that was loaded, "3.2.0".
std::string OnednnVersionText();

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_ONEDNN_CONV_PLAN_H_
