#include "cpu/onednn/weights_reorder.h"

#include <algorithm>

#include "cpu/onednn/conv.h"
#include "cpu/runtime/first_exception.h"
#include "cpu/runtime/parallel_for.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

using dnnl::memory;

constexpr size_t kMinPartBytes = size_t{256} << 10;
// A multiple of every block that oneDNN has along the first axis of weights.
constexpr memory::dim kAlignment = 64;

}  // namespace

WeightsReorder::WeightsReorder(const memory::desc& from, const memory::desc& to, int64_t workers) {
  const size_t max_parts = std::max(from.get_size(), to.get_size()) / kMinPartBytes;
  const int64_t parts =
      std::min({workers, static_cast<int64_t>(max_parts), from.get_dims()[0] / kAlignment});
  if (parts > 1) {
    try {
      Cut(from, to, parts);
      return;
    } catch (const dnnl::error&) {
      parts_.clear();  // a format that cannot be cut like this
    }
  }
  Cut(from, to, 1);
}

void WeightsReorder::Cut(const memory::desc& from, const memory::desc& to, int64_t parts) {
  const memory::dims dims = from.get_dims();
  const memory::dim blocks = CeilDivide(dims[0], kAlignment);
  for (int64_t part = 0; part < parts; ++part) {
    memory::dims offset(dims.size(), 0), size = dims;
    offset[0] = blocks * part / parts * kAlignment;
    size[0] = std::min(dims[0], blocks * (part + 1) / parts * kAlignment) - offset[0];
    const memory::desc part_from = parts > 1 ? from.submemory_desc(size, offset) : from;
    const memory::desc part_to = parts > 1 ? to.submemory_desc(size, offset) : to;
    const dnnl::reorder::primitive_desc desc(CpuEngine(), part_from, CpuEngine(), part_to,
                                             UserScratchpad());
    parts_.push_back({dnnl::reorder(desc), part_from, part_to, desc.scratchpad_desc()});
    scratchpad_bytes_ =
        std::max(scratchpad_bytes_, (desc.scratchpad_desc().get_size() + 63) / 64 * 64);
  }
}

void WeightsReorder::Run(::xla::ffi::ThreadPool& pool, char* from, char* to, char* scratch) const {
  const int64_t parts = static_cast<int64_t>(parts_.size());
  FirstException exception;
  ParallelFor(pool, parts, parts, [&](int64_t task, int64_t) {
    exception.Guard([&] {
      const SingleThreaded single;
      dnnl::stream stream(CpuEngine());
      const Part& part = parts_[static_cast<size_t>(task)];
      char* const scratchpad = scratch + static_cast<size_t>(task) * scratchpad_bytes_;
      Execute(part.primitive, stream,
              {{DNNL_ARG_FROM, memory(part.from, CpuEngine(), from)},
               {DNNL_ARG_TO, memory(part.to, CpuEngine(), to)},
               {DNNL_ARG_SCRATCHPAD, memory(part.scratchpad, CpuEngine(), scratchpad)}});
    });
  });
  exception.Rethrow();
}

}  // namespace jax_convgrad
