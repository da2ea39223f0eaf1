#ifndef JAX_CONVGRAD_CPU_RUNTIME_PARALLEL_FOR_H_
#define JAX_CONVGRAD_CPU_RUNTIME_PARALLEL_FOR_H_

#include <cstdint>
#include <functional>

#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

// The number of threads that XLA's intra-op pool offers, at least one.
int64_t NumThreads(const ::xla::ffi::ThreadPool& pool);

// Runs body(task, worker) for every task in [0, tasks), on at most `workers` threads at once: the
// caller is one of them, the others are tasks of `pool`. Each worker number in [0, workers) is used
// by one thread at a time, so it can index scratch memory. `body` must not throw.
//
// Safe inside an FFI handler, also when every pool thread is busy or waits in a call like this one:
// the caller works too and waits only for tasks that another thread has already begun.
void ParallelFor(::xla::ffi::ThreadPool& pool, int64_t workers, int64_t tasks,
                 const std::function<void(int64_t task, int64_t worker)>& body);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_RUNTIME_PARALLEL_FOR_H_
