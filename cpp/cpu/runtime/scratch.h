#ifndef JAX_CONVGRAD_CPU_RUNTIME_SCRATCH_H_
#define JAX_CONVGRAD_CPU_RUNTIME_SCRATCH_H_

#include <cstddef>

namespace jax_convgrad {

// Scratch memory of one call. Two gradients can run at once, and a layer's backward pass may use 64
// MB beside its arrays, including oneDNN's code and tables.
inline constexpr size_t kMaxScratchBytes = size_t{24} << 20;

// Scratch memory that goes back to a small process-wide pool instead of the system: the page faults
// of a fresh buffer cost more than many a convolution. Memory in use and memory kept together stay
// within a fixed number of bytes, as long as the memory in use alone does.
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
