#include <algorithm>

#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/transpose/launch.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

constexpr int kTile = 32;  // rows and columns of a tile
// A tile's columns are read one element further each, or all would be in one bank.
constexpr int kPitch = kTile + 1;
constexpr int kThreads = 256;
constexpr int kRowsAtOnce = kThreads / kTile;
// More than any device runs at once; blocks of larger matrices take several tiles.
constexpr int64_t kMaxBlocks = int64_t{1} << 16;

struct TransposeParams {
  const void* from;
  void* to;
  int64_t rows, columns;  // of `from`
  int64_t tiles, column_tiles;
  int64_t blocks;
};

template <typename Element>
__global__ void __launch_bounds__(kThreads)
    TransposeTiles(const __grid_constant__ TransposeParams p) {
  Element* const tile = SharedMemory<Element>();
  const Element* const from = static_cast<const Element*>(p.from);
  Element* const to = static_cast<Element*>(p.to);
  const int lane = static_cast<int>(threadIdx.x) % kTile;
  const int first = static_cast<int>(threadIdx.x) / kTile;
  for (int64_t i = blockIdx.x; i < p.tiles; i += p.blocks) {
    const int64_t row = i / p.column_tiles * kTile, column = i % p.column_tiles * kTile;
    for (int r = first; r < kTile; r += kRowsAtOnce) {
      if (row + r < p.rows && column + lane < p.columns) {
        tile[r * kPitch + lane] = from[(row + r) * p.columns + column + lane];
      }
    }
    __syncthreads();
    for (int c = first; c < kTile; c += kRowsAtOnce) {
      if (column + c < p.columns && row + lane < p.rows) {
        to[(column + c) * p.rows + row + lane] = tile[lane * kPitch + c];
      }
    }
    __syncthreads();  // before the next tile takes this one's place
  }
}

template <typename Element>
cudaError_t Launch(TransposeParams params, cudaStream_t stream) {
  void* arguments[] = {&params};
  return cudaLaunchKernel(&TransposeTiles<Element>, dim3(static_cast<unsigned>(params.blocks)),
                          dim3(kThreads), arguments, kTile * kPitch * sizeof(Element), stream);
}

// With as many blocks as there are tiles, and at most `max_blocks`.
cudaError_t LaunchTiles(const void* from, void* to, int64_t rows, int64_t columns,
                        int64_t element_bytes, int64_t max_blocks, cudaStream_t stream) {
  TransposeParams params{from, to, rows, columns, 0, CeilDivide(columns, kTile), 0};
  params.tiles = CeilDivide(rows, kTile) * params.column_tiles;
  params.blocks = std::min(params.tiles, max_blocks);
  switch (element_bytes) {
    case 2:
      return Launch<uint16_t>(params, stream);
    case 4:
      return Launch<uint32_t>(params, stream);
    case 8:
      return Launch<uint64_t>(params, stream);
    default:
      return cudaErrorInvalidConfiguration;
  }
}

}  // namespace

cudaError_t LaunchTranspose(const void* from, void* to, int64_t rows, int64_t columns,
                            int64_t element_bytes, cudaStream_t stream) {
  return LaunchTiles(from, to, rows, columns, element_bytes, kMaxBlocks, stream);
}

}  // namespace jax_convgrad
