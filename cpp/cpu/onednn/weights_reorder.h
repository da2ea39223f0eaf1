#ifndef JAX_CONVGRAD_CPU_ONEDNN_WEIGHTS_REORDER_H_
#define JAX_CONVGRAD_CPU_ONEDNN_WEIGHTS_REORDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ffi/checked.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// Copies weights from one format to another. Large ones are cut into parts along their first axis
// (output channels or groups), because layers with many channels spend a good part of their time
// here.
class WeightsReorder {
 public:
  // Does nothing.
  WeightsReorder() = default;

  WeightsReorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to, int64_t workers);

  // Scratch memory that Run needs.
  size_t ScratchBytes() const { return MultipliedBytes(parts_.size(), scratchpad_bytes_); }

  // Throws dnnl::error.
  void Run(::xla::ffi::ThreadPool& pool, char* from, char* to, char* scratch) const;

 private:
  struct Part {
    dnnl::reorder primitive;
    dnnl::memory::desc from, to, scratchpad;
  };

  void Cut(const dnnl::memory::desc& from, const dnnl::memory::desc& to, int64_t parts);

  std::vector<Part> parts_;
  size_t scratchpad_bytes_ = 0;  // of one part
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_ONEDNN_WEIGHTS_REORDER_H_
