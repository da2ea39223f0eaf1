#ifndef JAX_CONVGRAD_CPU_RUNTIME_SCRATCH_H_
#define JAX_CONVGRAD_CPU_RUNTIME_SCRATCH_H_

#include <cstddef>

namespace jax_convgrad {

// Scratch memory of one call. Two gradients can run at once, and a layer's backward pass may take
// 64 MB beside its arrays, oneDNN's code and tables included.
inline constexpr size_t kMaxScratchBytes = size_t{24} << 20;

// Scratch memory that goes back to a small process-wide pool instead of to the system: the page
// faults of a fresh buffer cost more than many a convolution. What is in use and what is kept
// together stay within a fixed number of bytes as long as what is in use alone does.
class Scratch {
 public:
  // Aligned to a page. Throws std::bad_alloc.
  explicit Scratch(size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_RUNTIME_SCRATCH_H_
