// A convolution that is run as several, each with some of the channels: because its weights are so
// large that oneDNN's copies of them would not fit into the memory that a call may take, one after
// another; or because it has many groups that are large enough to be run side by side.

#ifndef JAX_CONVGRAD_CPU_ONEDNN_SLICED_CONV_H_
#define JAX_CONVGRAD_CPU_ONEDNN_SLICED_CONV_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/onednn/conv_plan.h"

namespace jax_convgrad {

// Channels of a convolution that can be computed apart from the others: output channels of fprop,
// input channels of dgrad, either of wgrad, and groups of any. x and y of a slice lie close
// together in arrays of its own where it has not all their channels; w stays where it is.
struct ChannelSlice {
  ConvGeometry geometry;
  int64_t x_channel = 0;  // the first
  int64_t y_channel = 0;
  int64_t w_offset = 0;  // in elements
};

// Cuts a problem into about `count` slices.
std::vector<ChannelSlice> SliceChannels(const ConvProblem& problem, int64_t count);

// The plan or plans of a problem. Immutable, like ConvPlan.
class SlicedConv {
 public:
  // From a bounded cache, or newly made. Throws dnnl::error and std::bad_alloc.
  static std::shared_ptr<const SlicedConv> Get(const ConvProblem& problem);

  // As ConvPlan::Run.
  void Run(::xla::ffi::ThreadPool& pool, void* x, void* w, void* y) const;

 private:
  struct Slice {
    ChannelSlice channels;
    std::shared_ptr<const ConvPlan> plan;
  };

  // About `count` slices, of which `at_once` run at the same time, each in one thread if several
  // do.
  SlicedConv(const ConvProblem& problem, int64_t count, int64_t at_once);
  size_t SliceBytes(const ChannelSlice& slice) const;
  size_t ScratchBytes() const;
  bool IsCramped() const;
  bool IsBetterThan(const SlicedConv& other) const;
  void RunSlice(const Slice& slice, ::xla::ffi::ThreadPool& pool, char* x, char* w, char* y) const;

  const ConvProblem problem_;
  const int64_t at_once_;
  std::vector<Slice> slices_;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_ONEDNN_SLICED_CONV_H_
