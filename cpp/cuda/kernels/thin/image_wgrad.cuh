// wgrad of a thin image. The gradient is a matrix of elements of a window by output channels, a sum
// over windows of all images: a product whose depth is the windows. (A thin y is served too, if its
// gradient takes the image's place: image_wgrad_plan.h.)
//
// A tensor core wants two neighbors of the depth, two windows, in a register, where memory has two
// neighbors of a window. So a lane reads the same pair of elements of two windows, and makes of
// them the first elements of both and the second elements of both. No transposed copy is made, and
// no channel is padded. Where windows begin at odd elements too, it reads single elements. y's
// gradient lies as rows of channels, which ldmatrix transposes. Of floats a register has one, of
// the image and of the gradient, and there is nothing to make or to transpose.
//
// Sums stay in registers while a block goes through its tiles. Its warps share the elements and the
// channels; warps left over after that split the tile's windows. All windows of a tile exist: the
// last tile of a row or of a plane begins earlier than it would, and the gradients that another
// tile has are zeros there. So a NaN in the image is multiplied at its own elements of windows
// alone; an infinity there may be multiplied by such a zero too, which makes a NaN of its sum. What
// is around the image is multiplied as zeros: a NaN of y's gradient is in the gradients of all taps
// of its channel.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_WGRAD_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_WGRAD_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/warp_product.cuh"
#include "cuda/kernels/thin/ring.cuh"
#include "cuda/kernels/thin/starts.cuh"

namespace jax_convgrad {

constexpr int kImageWgradWarps = 16;
constexpr int kImageWgradThreads = 32 * kImageWgradWarps;
constexpr int kImageWgradRows = 16;      // elements of a window, of a warp's product
constexpr int kImageWgradChannels = 32;  // of a warp
constexpr int kImageWgradDepth = 16;     // windows of a step

// Rows that a lane reads apart from each other, of the two that it has of 16: all but pairs of
// 16-bit elements at even places.
template <typename T, Starts kStarts>
constexpr int kImageWgradApart = kStarts == Starts::kWords && sizeof(T) == 2 ? 1 : 2;

struct ImageWgradParams {
  const void* x;
  const void* y;  // its gradient
  float* partial;
  int in[3], out[3], strides[3], padding[3], dilation[3];
  int channels;
  int channel_bytes;  // of the gradient that are copied at once, 16 or less
  bool sixteen;       // the image is copied 16 bytes at a time, else 4
  int line;           // elements of an image's row
  int step;           // elements between windows that are neighbors along x
  int padding_line;   // elements in front of a row
  // Rows of the result are elements of a window, each of its rows with `lead` elements in front, 0
  // or 1, and maybe one behind, so that all pairs of them are words of the image.
  int run, lead, run_rows;
  int size;  // elements of a window
  int rows;  // of the result, for all of its `size` elements
  int kernel_y;
  Divider by_run_rows, by_kernel_y;
  // The result is shared by blocks, a block's part of it by warps, and its windows by those warps
  // that have the same part. Numbers of warps are powers of two.
  int channel_tiles, row_tiles;
  int channel_warps, row_warps, depth_warps;
  // A tile: `tile_y` rows of `tile_x` windows of one plane, neighbors in memory.
  int tile_x, tile_y, windows;
  int steps;  // of 16 windows
  int tiles, parts;
  Divider by_tile_x, by_tiles_x, by_tiles_y, by_out_z;
  // What is staged of the image for a tile: rows of the planes that a block's elements are in, from
  // the plane of its first one on.
  int stages;
  int image_rows, plane_rows;
  int row_words;          // from one to the next
  int row_pieces;         // of each
  int image_parts;        // 32 pieces of a row, or its rest
  Divider by_plane_rows;  // rows of a plane
  Divider by_row_parts;   // parts of a row
};

// Shared memory: stages of the gradient, a row of channels for each window, and of the image as it
// lies; then for each window where it begins, and 16 bytes of each warp and of the block. In the
// end, what half of the warps hand over to the other half.
constexpr int64_t ImageWgradGradientElements(int64_t steps, int64_t channel_warps) {
  return steps * kImageWgradDepth * channel_warps * kImageWgradChannels;
}
constexpr int64_t ImageWgradTableBytes(int64_t steps) {
  return steps * kImageWgradDepth * 4 + (kImageWgradWarps + 1) * 16;
}
constexpr int64_t ImageWgradSumsBytes(int64_t groups) {
  return kImageWgradWarps / 2 * groups * kImageWgradRows * kImageWgradChannels * 4;
}

// The halves of two words, each the first in the low half.
__device__ inline uint32_t LowHalves(uint32_t first, uint32_t second) {
  return __byte_perm(first, second, 0x5410);
}
__device__ inline uint32_t HighHalves(uint32_t first, uint32_t second) {
  return __byte_perm(first, second, 0x7632);
}

// Where a lane's four windows of a step begin.
using ImageWgradWindows = const unsigned char* [4];

// Multiplies kGroups times 16 elements of four windows of a lane with 32 channels, of which `b` has
// the fragments.
template <typename T, int kGroups, int kApart>
__device__ inline void MultiplyHalves(const ImageWgradWindows& windows,
                                      const int (&offsets)[kGroups][kApart],
                                      const uint32_t (&b)[2][4], float (&sums)[kGroups][4][4]) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    uint32_t a[4];
    if constexpr (kApart == 2) {
      uint32_t element_of[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          element_of[i][k] = *reinterpret_cast<const uint16_t*>(windows[k] + offsets[group][i]);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        a[i] = LowHalves(element_of[i][0], element_of[i][1]);
        a[2 + i] = LowHalves(element_of[i][2], element_of[i][3]);
      }
    } else {
      uint32_t pair[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        pair[k] = *reinterpret_cast<const uint32_t*>(windows[k] + offsets[group][0]);
      }
      a[0] = LowHalves(pair[0], pair[1]);
      a[1] = HighHalves(pair[0], pair[1]);
      a[2] = LowHalves(pair[2], pair[3]);
      a[3] = HighHalves(pair[2], pair[3]);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      MultiplyAdd(static_cast<const T*>(nullptr), a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1],
                  sums[group][n]);
    }
  }
}

// The same for floats. The lane's four channels of its first window lie at `gradient`, one for each
// product, those of its next window four rows further.
template <int kGroups>
__device__ inline void MultiplyFloats(const ImageWgradWindows& windows,
                                      const int (&offsets)[kGroups][2],
                                      const unsigned char* gradient, int row_bytes,
                                      float (&sums)[kGroups][4][4]) {
  uint32_t b[4][4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint4 piece = *reinterpret_cast<const uint4*>(gradient + k * 4 * row_bytes);
    b[k][0] = MultipliedWord<float>(piece.x), b[k][1] = MultipliedWord<float>(piece.y);
    b[k][2] = MultipliedWord<float>(piece.z), b[k][3] = MultipliedWord<float>(piece.w);
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = MultipliedWord<float>(
            *reinterpret_cast<const uint32_t*>(windows[k + i / 2] + offsets[group][i % 2]));
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        MultiplyAdd(static_cast<const float*>(nullptr), a, b[k][n], b[k + 1][n], sums[group][n]);
      }
    }
  }
}

// Whether what is copied is ragged: rows with an odd number of 16-bit elements, or channels that
// are not multiples of 16 bytes. This takes instructions and registers that others need not have.
// A warp that has them has no registers for more groups.
constexpr int kImageWgradRaggedGroups = 3;

// Copies a piece's first `channels` channels, or all if there are more, `bytes` bytes at once, less
// than 16. Behind them there are zeros.
template <typename T>
__device__ inline void CopyChannels(unsigned char* to, const T* from, int channels, int bytes) {
  constexpr int kWord = kWordElements<T>;
  if (bytes >= 4) {
#pragma unroll 1
    for (int i = 0; i < 4; i += bytes / 4) {
      const bool inside = channels > i * kWord;
      if (bytes == 8) CopyAsync<8>(to + i * 4, from + i * kWord, inside);
      if (bytes == 4) CopyAsync<4>(to + i * 4, from + i * kWord, inside);
    }
  } else if constexpr (sizeof(T) == 2) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = PairOf(from + i * 2, channels > i * 2, channels > i * 2 + 1);
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Which of a lane's 8 columns (two of each of four products) follow each other: of 16-bit elements
// those of a product, of floats all products' first ones, then their second ones.
template <typename T>
__device__ inline int ImageWgradColumn(int n, int t, int i) {
  return sizeof(T) == 4 ? t * 8 + i * 4 + n : n * 8 + t * 2 + i;
}

// The first `kGroups` times 16 rows of the result that are a warp's, by 32 channels.
template <typename T, int kGroups, Starts kStarts, bool kRagged>
__global__ void __launch_bounds__(kImageWgradThreads, 1)
    ImageWgrad(const __grid_constant__ ImageWgradParams p) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int g = lane / 4, t = lane % 4;
  int block = static_cast<int>(blockIdx.x);
  const int first_channel = block % p.channel_tiles * p.channel_warps * kImageWgradChannels;
  block /= p.channel_tiles;
  const int row_tile = block % p.row_tiles, part = block / p.row_tiles;

  // Neighboring warps have the same windows, so that each scheduler has a share of all.
  const int warps_abreast = p.channel_warps * p.row_warps;
  const int depth_warp = thread / 32 / warps_abreast, warp_abreast = thread / 32 % warps_abreast;
  const int channel_warp = warp_abreast % p.channel_warps;
  const int rows_of_warp = kGroups * kImageWgradRows;
  const int rows_before = row_tile * p.row_warps * rows_of_warp;  // the block's first one
  const int first_row = rows_before + warp_abreast / p.channel_warps * rows_of_warp;

  constexpr int kElementBytes = static_cast<int>(sizeof(T)), kPiece = kPieceElements<T>;
  constexpr int kApart = kImageWgradApart<T, kStarts>;
  const int pieces = p.channel_warps * (kImageWgradChannels / kPiece);  // of a window's channels
  const int row_bytes = pieces * 16;
  const int gradient_bytes = p.steps * kImageWgradDepth * row_bytes;
  const int stage_bytes = gradient_bytes + p.image_rows * p.row_words * 4;
  unsigned char* const stages = SharedMemory<unsigned char>();
  int* const table = reinterpret_cast<int*>(stages + p.stages * stage_bytes);
  // What a warp needs in the end waits here, and what a block does for a tile: registers are
  // scarce.
  int* const kept_plane = table + p.steps * kImageWgradDepth;
  int4* const kept = reinterpret_cast<int4*>(kept_plane + 4) + thread / 32;
  const int first_plane = p.by_kernel_y.Quotient(p.by_run_rows.Quotient(rows_before));
  if (thread == 0) *kept_plane = first_plane;
  if (lane == 0) {
    *kept = make_int4(first_row, first_channel + channel_warp * kImageWgradChannels, warp_abreast,
                      part);
  }

  // The byte of a piece of a window's channels. Windows that are read at once lie in different
  // banks: eight one below the other, or two pieces each of four floats' windows.
  const int swizzle_shift = p.channel_warps == 1;
  const auto gradient_byte = [&](int window, int piece) {
    const int moved = kElementBytes == 4 ? window % 4 * 2 : window >> swizzle_shift & (pieces - 1);
    return window * row_bytes + (piece ^ moved) * 16;
  };

  struct Place {
    int image, z, y, x;  // of a tile's first window
    int had;             // windows that another tile has, in front
  };
  const auto place_of = [&](int tile) {
    Place place;
    const int x = p.by_tiles_x.Split(&tile) * p.tile_x;
    const int y = p.by_tiles_y.Split(&tile) * p.tile_y;
    place.x = min(x, p.out[2] - p.tile_x);
    place.y = min(y, p.out[1] - p.tile_y);
    place.had = (y - place.y) * p.tile_x + x - place.x;
    place.z = p.by_out_z.Split(&tile);
    place.image = tile;
    return place;
  };
  // The element of the image's row at which the tile's first window begins. What is staged begins
  // at the piece that it is in.
  const auto first_element = [&](const Place& at) { return at.x * p.step - p.padding_line; };

  // A thread copies the same 8 channels of several windows, to the same banks. A tile's windows are
  // neighbors in memory. Channels that do not exist are not written, whatever their sums.
  const int copied_window = thread / pieces, copied_channel = thread % pieces * kPiece;
  const int copied_byte = gradient_byte(copied_window, thread % pieces);
  const auto copy_gradient = [&](const Place& at, unsigned char* to) {
    if (first_channel + copied_channel >= p.channels) return;
    const int64_t start =
        ((static_cast<int64_t>(at.image) * p.out[0] + at.z) * p.out[1] + at.y) * p.out[2] + at.x;
    const T* from = static_cast<const T*>(p.y) + (start + copied_window) * p.channels +
                    first_channel + copied_channel;
    to += copied_byte;
    const int windows = kImageWgradThreads / pieces;
#pragma unroll 1
    for (int window = copied_window; window < p.windows; window += windows) {
      if (!kRagged || p.channel_bytes == 16) {
        CopyAsync(to, from, window >= at.had);
      } else {
        const int channels = p.channels - first_channel - copied_channel;
        CopyChannels(to, from, window >= at.had ? channels : 0, p.channel_bytes);
      }
      from += static_cast<int64_t>(windows) * p.channels;
      to += kImageWgradThreads * 16;
    }
  };

  // The first row of the image that is staged for a tile, of the window's plane `plane`.
  const auto first_row_of = [&](const Place& at, int plane) {
    return Place{at.image, at.z * p.strides[0] - p.padding[0] + plane * p.dilation[0],
                 at.y * p.strides[1] - p.padding[1], 0, 0};
  };
  // The first element of a row of them, or -1 if there is no such row.
  const auto image_row = [&](const Place& first, int row) {
    const int y = first.y + p.by_plane_rows.Split(&row);
    const int z = first.z + row * p.dilation[0];
    const bool exists = Inside(z, p.in[0]) && Inside(y, p.in[1]);
    const int64_t line = (static_cast<int64_t>(first.image) * p.in[0] + z) * p.in[1] + y;
    return exists ? line * p.line : int64_t{-1};
  };

  // Copies the image's rows, `kCopied` elements at once. A warp takes 32 pieces of a row.
  const auto copy_image = [&](auto piece_size, const Place& at, int plane, unsigned char* to) {
    constexpr int kCopied = decltype(piece_size)::value;
    const int first = first_element(at) & ~(kCopied - 1);
    const Place rows = first_row_of(at, plane);
#pragma unroll 1
    for (int i = thread / 32; i < p.image_parts; i += kImageWgradWarps) {
      int row = i;
      const int piece = p.by_row_parts.Split(&row) * 32 + lane;
      unsigned char* const staged = to + row * p.row_words * 4;
      const int64_t begin = image_row(rows, row);
      const int element = first + piece * kCopied;
      const bool inside = begin >= 0 && Inside(element, p.line);
      if (piece >= p.row_pieces) continue;
      CopyAsync<kCopied * kElementBytes>(
          staged + piece * (kCopied * kElementBytes),
          static_cast<const T*>(p.x) + (inside ? begin + element : 0), inside);
    }
  };

  // The same for rows that may begin between two words. A warp takes a row.
  const auto copy_odd_image = [&](const Place& at, int plane, unsigned char* to) {
    const int first = first_element(at) & ~1;
    const Place rows = first_row_of(at, plane);
#pragma unroll 1
    for (int row = thread / 32; row < p.image_rows; row += kImageWgradWarps) {
      const int64_t begin = image_row(rows, row);
      if constexpr (kElementBytes == 2) {
        CopyOddRow(reinterpret_cast<uint32_t*>(to + row * p.row_words * 4),
                   static_cast<const T*>(p.x) + begin, first, begin >= 0 ? p.line : 0, lane, 32,
                   p.row_pieces);
      }
    }
  };

  const auto copy = [&](int tile, int plane, unsigned char* to) {
    const Place at = place_of(tile);
    copy_gradient(at, to);
    if (p.sixteen) {
      copy_image(std::integral_constant<int, kPiece>(), at, plane, to + gradient_bytes);
    } else if (kRagged && kElementBytes == 2 && p.line % 2 != 0) {
      copy_odd_image(at, plane, to + gradient_bytes);
    } else {
      copy_image(std::integral_constant<int, kWordElements<T>>(), at, plane, to + gradient_bytes);
    }
  };

  for (int i = 0; i < p.stages - 1; ++i) {
    if (part + i * p.parts < p.tiles)
      copy(part + i * p.parts, first_plane, stages + i * stage_bytes);
    CommitCopies();
  }

  // Where the windows of each step begin, in the order that lanes read them. Behind the last window
  // of a tile: its elements again, with gradients of zero.
  for (int i = thread; i < p.steps * kImageWgradDepth; i += kImageWgradThreads) {
    const int window = i / kImageWgradDepth * kImageWgradDepth + i % 4 * 4 + i / 4 % 4;
    int row = min(window, p.windows - 1);
    const int column = p.by_tile_x.Split(&row);
    table[i] = row * p.strides[1] * p.row_words * 4 + column * p.step * kElementBytes;
  }
  const int rest = (p.steps * kImageWgradDepth - p.windows) * pieces;
  for (int i = thread; i < rest * p.stages; i += kImageWgradThreads) {
    unsigned char* const to = stages + i / rest * stage_bytes + p.windows * row_bytes;
    reinterpret_cast<uint4*>(to)[i % rest] = make_uint4(0, 0, 0, 0);
  }

  // From the begin of a window to the lane's rows of the result, in bytes.
  int offsets[kGroups][kApart];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < kApart; ++i) {
      const int row = first_row + group * kImageWgradRows + 2 * g + i;
      int z = row < p.rows ? row : rows_before;  // what is no row is not written
      const int element = p.by_run_rows.Split(&z);
      const int y = p.by_kernel_y.Split(&z);
      const int line = (z - first_plane) * p.plane_rows + y * p.dilation[1];
      offsets[group][i] = line * p.row_words * 4 + element * kElementBytes;
    }
  }
  // Where the lane finds a matrix's row of the gradient, of the first step and 16 channels. Lane t
  // of four has windows t, t + 4, t + 8 and t + 12 of a step: with one next to the other, lanes
  // read what is near, often the same words. Of floats the lane's own four channels of window t.
  const int window_of_lane =
      kElementBytes == 4 ? t : lane / 2 % 4 + lane % 2 * 4 + lane / 8 % 2 * 8;
  const int piece_of_lane = kElementBytes == 4 ? g : lane / 16;
  const int of_gradient =
      gradient_byte(window_of_lane, channel_warp * (kImageWgradChannels / kPiece) + piece_of_lane);

  float sums[kGroups][4][4] = {};
  int stage = 0;
  for (int tile = part; tile < p.tiles; tile += p.parts) {
    WaitForOldest(p.stages);
    if (const int next = tile + (p.stages - 1) * p.parts; next < p.tiles) {
      copy(next, *kept_plane, stages + (stage == 0 ? p.stages - 1 : stage - 1) * stage_bytes);
    }
    CommitCopies();
    const unsigned char* const gradient = stages + stage * stage_bytes;
    if (++stage == p.stages) stage = 0;
    const Place at = place_of(tile);
    const int element = first_element(at);
    const unsigned char* const image =
        gradient + gradient_bytes +
        ((element & (p.sixteen ? kPiece - 1 : kWordElements<T> - 1)) - p.lead) * kElementBytes;

#pragma unroll 1
    for (int step = depth_warp; step < p.steps; step += p.depth_warps) {
      const int4 starts = reinterpret_cast<const int4*>(table)[step * 4 + t];
      const int of_windows[4] = {starts.x, starts.y, starts.z, starts.w};
      ImageWgradWindows windows;
#pragma unroll
      for (int k = 0; k < 4; ++k) windows[k] = image + of_windows[k];
      const unsigned char* const of_step = gradient + step * kImageWgradDepth * row_bytes;
      if constexpr (kElementBytes == 4) {
        MultiplyFloats(windows, offsets, of_step + of_gradient, row_bytes, sums);
      } else {
        // Pieces two to the right: this bit is set in the other's place alone.
        uint32_t b[2][4];
        LoadTransposedMatrices(of_step + of_gradient, b[0]);
        LoadTransposedMatrices(of_step + (of_gradient ^ 32), b[1]);
        MultiplyHalves<T>(windows, offsets, b, sums);
      }
    }
  }

  // The sums of warps that had different windows: half of the warps hand theirs over to the other
  // half, then half of these, until one has all.
  WaitForCopies<0>();
  float4* const handed = reinterpret_cast<float4*>(stages) + lane;
  __syncthreads();
  const int4 of_warp = *kept;
  for (int half = p.depth_warps / 2; half > 0; half /= 2) {
    __syncthreads();
    const int place = depth_warp % half * warps_abreast + of_warp.z;
    float4* const here = handed + place * (kGroups * 4 * 32);
    if (depth_warp >= half && depth_warp < 2 * half) {
#pragma unroll
      for (int i = 0; i < kGroups * 4; ++i) {
        const float (&of)[4] = sums[i / 4][i % 4];
        here[i * 32] = make_float4(of[0], of[1], of[2], of[3]);
      }
    }
    __syncthreads();
    if (depth_warp < half) {
#pragma unroll
      for (int i = 0; i < kGroups * 4; ++i) {
        const float4 other = here[i * 32];
        float (&of)[4] = sums[i / 4][i % 4];
        of[0] += other.x, of[1] += other.y, of[2] += other.z, of[3] += other.w;
      }
    }
  }
  if (depth_warp > 0) return;

  float* const partial = p.partial + static_cast<int64_t>(of_warp.w) * p.size * p.channels;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = of_warp.x + group * kImageWgradRows + 2 * g + i;
      int window_row = row;
      const int element = p.by_run_rows.Split(&window_row) - p.lead;
      if (row >= p.rows || !Inside(element, p.run)) continue;
      float* const to = partial + static_cast<int64_t>(window_row * p.run + element) * p.channels;
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        // Two neighbors, of one product or of two.
        const int n = kElementBytes == 4 ? j % 4 : j / 2, next = kElementBytes == 4 ? n + 1 : n;
        const int first = kElementBytes == 4 ? j / 4 : 0, second = kElementBytes == 4 ? first : 1;
        const int channel = of_warp.y + ImageWgradColumn<T>(n, t, first);
        const float2 two =
            make_float2(sums[group][n][2 * i + first], sums[group][next][2 * i + second]);
        if (!kRagged || p.channels % 2 == 0) {
          if (channel < p.channels) *reinterpret_cast<float2*>(to + channel) = two;
        } else {
          if (channel < p.channels) to[channel] = two.x;
          if (channel + 1 < p.channels) to[channel + 1] = two.y;
        }
      }
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_WGRAD_CUH_
