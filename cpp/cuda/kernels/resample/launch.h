// Resizes, as banded matrices along one to three axes, forward and as gradient. Knows the CUDA
// runtime and nothing of XLA. benchmarks/resample_kernels.cu measures these kernels alone.
//
// A line of y is the columns of one row with their inner run (ffi/resample_form.h). A block makes
// some neighboring lines, or parts of one, of some rows of y: it walks along the first axis that is
// resampled, combines the other axes on the way, and keeps everything that it needs twice in
// registers. Two drivers do that:
//
//   grow    (grow.cuh, ring.cuh) a ring of the last rows of x. Each row of y is a combination of
//           them.
//   shrink  (shrink.cuh, sums.cuh) the sums of those rows of y that a row of x adds to. The oldest
//           is written when the last row that it reads has been added. A schedule in shared memory
//           has the weights of a row of x for them, and how many are done after it (schedule.cuh).
//           If no schedule fits the bands, for example because their starts are not ascending, y is
//           gathered row by row.
//
// The driver of a mode that reads x through shared memory (stage.cuh) is grow_staged.cuh or
// shrink_staged.cuh.
//
// A load mode (mode.cuh) says which part of a line a thread owns, and how it reads x for that. Each
// is one struct in one file of modes/, whose front comment says when it is chosen, what it takes of
// a multiprocessor, what bounds it, and its best and worst measured case. A row is combined from x
// as it is read, by one thread alone: memory is read once, and repeated reads come from the caches
// (kVectors, kElements). But where many neighboring elements become few along the width and the
// inner run is short, the threads' reads would be far apart. There, if all bands are alike, they
// read whole vectors and a few elements beside them (kWindow). Otherwise they own elements of x,
// and combine the columns in shared memory when a row of y is done (kStrip), two columns per thread
// if each is made of many elements (kPairs). In aligned lines of one channel they make two columns
// each from rows of x in shared memory (kColumns). Where columns become many times as many, threads
// read vectors and write a few elements from each (kSpread), or pass elements on so that writes are
// vectors (kShifted), or write whole batches of rows as one run of memory (kFlat, flat.cuh, which
// has a driver of its own). Many taps of few columns that become many are read from shared memory
// (kStaged). Problems that fit no block are made element by element (direct.cuh).
//
//   Grid: one axis; channel, column, middle, walk and batch tiles, the first of these fastest
//   (ResampleTiling). As many blocks as keep the device busy, by its number of multiprocessors;
//   walks that read much twice are as long as all blocks running at once allow (tiling.cc).
//   Block: 128 or 256 threads, in whole warps; kFlat up to 288.
//   Shared memory: the tables of the walk, up to 32 KB, and what the mode says; at most 96 KB,
//   which every device since compute capability 8.0 has.
//
// Fast path: sums of many weights are accumulated without testing for zero weights. If the result
// is NaN, it is computed once more without the zero weights (0 * inf must not contribute). kPairs
// and kColumns accumulate all sums this way, and test what they wrote when their walk is done.
//
// Each element of y is written once, by one thread and in one order.
//
// instances.h has the table of all instances, a row each, and instances.cc says which of them takes
// a problem. A new load mode takes
//
//   modes/NAME.cuh  its struct and the ModeOf that makes it of a row, included by kernels.cuh;
//   instances.h     a name in ResampleLoad, a row for each instance;
//   instances.cc    when it is chosen (GetResampleNeeds), and which load takes what it does not;
//   tiling.cc       how lines are divided among threads, if no mode does it alike.
//
// A new method of resizing takes none of this: methods are bands, and bands are data.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_LAUNCH_H_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "ffi/resample_form.h"

namespace jax_convgrad {

enum class ResampleType { kF16, kBF16, kF32, kF64 };

// Launches the kernel for a problem with bands: x, y and the tables are on the current device. Does
// nothing else, so it may be captured.
cudaError_t LaunchResample(const ResampleForm& form, ResampleType type, const void* x, void* y,
                           cudaStream_t stream);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_LAUNCH_H_
