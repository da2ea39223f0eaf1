#include "cuda/kernels/resample/tiling.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ffi/integers.h"

namespace jax_convgrad {
namespace {

// Figures beside choices are measured times on an H100, as multiples of the memory roofline: the
// time to read x once and to write y once at 3.0 TB/s.

constexpr int64_t kMaxScheduleBytes = 16 << 10;
constexpr int64_t kMaxChunk = 128, kMaxFlatChunk = 256;
constexpr int64_t kMaxLineThreads = 256;
constexpr int64_t kMaxStageBytes = 48 << 10;
constexpr int64_t kRunBytes = 16;  // kFlat: of a row
constexpr int64_t kMaxSheetBytes = 20 << 10, kMaxSlabBytes = 16 << 10;
// kShifted: of the threads of a block, one in 32 helps.
constexpr int64_t kShiftedPlaces = 31 * 5, kMaxShiftedPlaces = 31 * (kMaxThreads / 32);
constexpr int64_t kMaxIndex = std::numeric_limits<int32_t>::max();

int64_t Even(int64_t all, int64_t max) { return CeilDivide(all, CeilDivide(all, max)); }

// The elements that `count` neighboring outputs read in all, if starts are evenly spaced.
int64_t Window(const ResampleAxis& axis, int64_t count) {
  if (!axis.resampled) return count;
  const double reach = std::ceil(static_cast<double>(count - 1) * StepOf(axis));
  return std::min(axis.in, static_cast<int64_t>(reach) + axis.taps + 1);
}

// The most columns of a strip of this many elements of x.
int64_t StripColumns(const ResampleTask& task, int64_t elements, int64_t shift) {
  const int64_t inner = task.form.inner;
  int64_t low = 0, high = task.form.width.out;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    const bool fits =
        Window(task.form.width, middle) * inner + shift <= elements && middle * inner <= elements;
    fits ? low = middle : high = middle - 1;
  }
  return low;
}

bool IsStrip(ResampleLoad load) {
  return load == ResampleLoad::kStrip || load == ResampleLoad::kPairs;
}

// The threads of a line in a strip and its columns: of all sizes, the one that leaves the fewest
// threads idle. Single warps are preferred, because they need not wait for others.
struct Strip {
  int64_t threads = 0, columns = 0;
};
Strip ChooseStrip(const ResampleTask& task, const ResampleInstance& instance, bool pairs,
                  int element_bytes) {
  const int64_t vector = instance.vector, line = task.form.width.in * task.form.inner;
  const double all = static_cast<double>(line);
  Strip best;
  double min_cost = HUGE_VAL;
  for (int64_t threads = 16; threads <= kMaxLineThreads;
       threads += std::min<int64_t>(threads, 32)) {
    // A strip's first column may lie within a vector or a piece.
    const int64_t shift = instance.stages > 0 ? kStagePieceBytes / element_bytes - 1
                          : instance.aligned > 1 && threads * vector < line ? vector - 1
                                                                            : 0;
    int64_t max_columns =
        StripColumns(task, threads * vector, shift + (pairs ? task.form.inner - 1 : 0));
    if (pairs) max_columns = std::min(max_columns, threads / task.form.inner * 2);
    if (max_columns == 0) continue;
    const int64_t strips = CeilDivide(task.form.width.out, max_columns);
    const double cost =
        static_cast<double>(strips * threads * vector) / all * (threads <= 32 ? 1.0 : 1.1);
    if (cost < min_cost * 0.98) {
      min_cost = cost;
      best = {threads, CeilDivide(task.form.width.out, strips)};
    }
  }
  return best;
}

// The same where each thread has two columns: as few tiles of them as possible.
Strip ChooseColumns(const ResampleTask& task, const ResampleInstance& instance, int& lanes) {
  const ResampleAxis& width = task.form.width;
  const int64_t room = kMaxStageBytes / (instance.stages * static_cast<int64_t>(sizeof(float)));
  const int64_t staged = (room - instance.taps) / (2 * CeilDivide(width.in, width.out));
  const int64_t pairs = CeilDivide(width.out, 2);
  const int64_t tile = Even(pairs, std::max<int64_t>(1, std::min(staged, kMaxLineThreads)));
  const auto threads = [&](int64_t in_eight) {
    const int64_t all = CeilDivide(tile, in_eight) * 8;
    return all <= 16 ? all : RoundUp(all, 32);
  };
  // Where threads would be idle anyway, every eighth one is: the windows of 16 columns that become
  // 7 are then in different banks. Times the roofline: 1.57 instead of 1.65.
  lanes = threads(7) == threads(8) ? 7 : 8;
  return {threads(lanes), 2 * tile};
}

// Whether rows and columns are only repeated: each vector is then read once and written unchanged.
bool Repeats(const ResampleNeeds& needs) {
  return needs.load == ResampleLoad::kVectors && needs.grow && needs.rows == 1 && needs.taps == 1 &&
         needs.mid_taps == 1;
}

// The number of walks that replace one column of blocks, so that nearly as many blocks as possible
// run at a time, and all multiprocessors finish together. The work of a block besides its rows
// costs as much as a row. The gradient of 8x linear upsampling of 16 bits takes 1.59 times the
// roofline with the 630 blocks of this rule, and 1.67 with 735.
double EvenWalks(double columns, double at_a_time, int64_t multiprocessors,
                 const ResampleAxis& walk, double twice) {
  const double max_walks = std::floor(at_a_time / columns);
  double best = max_walks, min_cost = HUGE_VAL;
  for (double walks = max_walks; walks >= 1 && walks >= 0.8 * max_walks; --walks) {
    const double rows = std::ceil(static_cast<double>(walk.out) / walks) + twice + 1;
    const double cost = rows * std::ceil(columns * walks / static_cast<double>(multiprocessors));
    if (cost < min_cost) {
      min_cost = cost;
      best = walks;
    }
  }
  return best;
}

// Threads and walks as measured on an H100, scaled to the number of multiprocessors.
ResampleLimits MeasuredLimits(const ResampleNeeds& needs, const ResampleInstance& instance,
                              int element_bytes, int64_t multiprocessors) {
  // If walks that follow each other read rows twice, or a walk needs much preparation, all threads
  // run at once. Elsewhere short walks keep them evenly busy.
  const int64_t wave = multiprocessors * instance.threads;
  if (needs.load == ResampleLoad::kSpread) {
    // With 768 blocks that end together 1.6 times the roofline, with 4096 short ones 1.85.
    return {128, multiprocessors * 4096, 0.25, wave};
  }
  if (needs.load == ResampleLoad::kFlat) {
    // Times the roofline: 1.43 with 504 blocks that begin at once, 1.6 with 840 shorter ones.
    return {kFlatThreads, multiprocessors * 640, 0.5};
  }
  if (needs.load == ResampleLoad::kShifted) {
    // With 16 bits a thread keeps twice as many sums, and fewer threads are at work.
    if (element_bytes == 4) return {256, multiprocessors * 4096, 0.5};
    return {128, multiprocessors * 640, 0.25, multiprocessors * 640};
  }
  // Blocks that write as many whole columns side by side as possible, and few rows of them. Times
  // the roofline, of 2x nearest upsampling: 1.08 instead of 1.12, of 16 bits 1.14 instead of 1.16.
  if (Repeats(needs)) return {256, multiprocessors * 131072, 1.0};
  bool light = needs.rows == 1 && !needs.grow;
  if (needs.load == ResampleLoad::kVectors) {
    light = needs.grow || needs.rows == 1;
  } else if (needs.load == ResampleLoad::kElements || needs.load == ResampleLoad::kStaged) {
    light = needs.rows <= 4 && (element_bytes >= 4 || instance.aligned == 1);
  } else if (IsStrip(needs.load)) {
    light = false;
  }
  if (needs.load == ResampleLoad::kColumns) return {128, wave, 0.25, wave};
  if (light && needs.load == ResampleLoad::kElements) {
    // Blocks that write single elements are fastest with the most threads.
    if (instance.aligned > 1) return {128, multiprocessors * 4096, 0.5};
    return element_bytes >= 4 ? ResampleLimits{128, multiprocessors * 8192, 1.0}
                              : ResampleLimits{128, multiprocessors * 4096, 0.5};
  }
  if (light) return {128, multiprocessors * 8192, 0.5};
  if (needs.load == ResampleLoad::kStrip) {
    // Strips compute as much as they read: fewer threads are enough for both.
    if (instance.stages > 0 && element_bytes == 4) return {128, wave * 2 / 3, 0.1, wave * 2 / 3};
    if (instance.stages > 0) return {128, wave, 0.25, wave};
    if (instance.aligned > 1 && instance.rows > 4) return {128, wave * 3 / 4, 0.25};
  }
  return {needs.load == ResampleLoad::kWindow ? 256 : 128, wave, 0.25};
}

}  // namespace

ResampleTask MakeResampleTask(const ResampleForm& form, int element_bytes, const void* x, void* y) {
  ResampleTask task;
  task.form = form;
  task.x_bytes =
      form.batches() * form.depth.in * form.height.in * form.width.in * form.inner * element_bytes;
  task.x = x;
  task.x_end = static_cast<const char*>(x) + task.x_bytes;
  task.y = y;
  if (form.depth.resampled) {
    task.walk = form.depth;
    task.x_walk = form.x_plane;
    task.y_walk = form.y_plane;
    task.mid = form.height;
    task.x_mid = form.x_row;
    task.y_mid = form.y_row;
  } else {
    task.walk = form.height;
    task.x_walk = form.x_row;
    task.y_walk = form.y_row;
  }
  task.x_walk_bytes = task.x_walk * element_bytes;
  return task;
}

ResampleLimits GetResampleLimits(const ResampleNeeds& needs, const ResampleInstance& instance,
                                 int element_bytes, int64_t multiprocessors) {
  ResampleLimits limits = MeasuredLimits(needs, instance, element_bytes, multiprocessors);
  limits.multiprocessors = multiprocessors;
  return limits;
}

ResampleTiling ChooseResampleTiling(const ResampleTask& task, const ResampleNeeds& needs,
                                    const ResampleInstance& instance, int element_bytes,
                                    const ResampleLimits& limits) {
  const ResampleForm& form = task.form;
  const ResampleAxis &walk = task.walk, &mid = task.mid, &width = form.width;
  const int64_t vector = instance.vector, rows = instance.rows;
  const int64_t sum_bytes = element_bytes == 8 ? 8 : 4, inner = form.inner;
  ResampleTiling tiling;
  // These sizes are counted in 32 bits.
  for (int64_t count : {width.in * inner, width.out * inner, form.batches(), walk.in, walk.out}) {
    if (count > kMaxIndex - 4096) return tiling;
  }

  const bool flat = needs.load == ResampleLoad::kFlat;
  int64_t line_threads = 1, max_lines = limits.threads;
  const int64_t lines_all = mid.out > 1 ? mid.out : form.batches();
  const int64_t mid_lines = std::min<int64_t>(mid.out > 1 ? 8 : 1, lines_all);
  if (needs.load == ResampleLoad::kVectors) {
    // Blocks as wide as high in columns and lines read the least twice.
    const int64_t vectors = inner / vector;
    const bool narrow = width.resampled && !Repeats(needs);
    tiling.vectors = static_cast<int>(Even(vectors, narrow ? 16 : limits.threads));
    const int64_t max_columns = std::max<int64_t>(1, limits.threads / tiling.vectors / mid_lines);
    tiling.columns = static_cast<int>(Even(width.out, max_columns));
    tiling.channel_tiles = CeilDivide(vectors, tiling.vectors);
    tiling.column_tiles = CeilDivide(width.out, tiling.columns);
    line_threads = tiling.vectors * tiling.columns;
  } else if (needs.load == ResampleLoad::kColumns) {
    const Strip columns = ChooseColumns(task, instance, tiling.column_lanes);
    line_threads = columns.threads;
    tiling.columns = static_cast<int>(std::min(columns.columns, width.out));
    tiling.column_tiles = CeilDivide(width.out, tiling.columns);
    if (line_threads > 32) max_lines = line_threads;
    // The staged elements begin at a pack, and have room for a window.
    const int64_t reach = Window(width, tiling.columns) + 3;
    tiling.stage_columns = static_cast<int>(RoundUp(std::max<int64_t>(reach, instance.taps), 4));
  } else if (flat) {
    // Of a line's words one may begin in front of it.
    line_threads = CeilDivide(width.out + 2, vector);
    max_lines = line_threads;
    tiling.strip_pitch = static_cast<int>(width.in + 1);
    tiling.sheet_rows = 16;
    while (tiling.sheet_rows > 2 &&
           tiling.sheet_rows * width.out * element_bytes > kMaxSheetBytes) {
      tiling.sheet_rows /= 2;
    }
    const int64_t sheet = tiling.sheet_rows * width.out * element_bytes + kStageLineBytes;
    tiling.sheet_pitch = static_cast<int>(RoundUp(sheet, kStageLineBytes) / element_bytes);
  } else if (!IsStrip(needs.load)) {
    const bool shifted = needs.load == ResampleLoad::kShifted;
    const int64_t vectors = CeilDivide(width.out * inner + (shifted ? vector - 1 : 0), vector);
    const int64_t max_threads = std::max<int64_t>(32, limits.threads / mid_lines);
    line_threads = Even(vectors, shifted ? std::min(max_threads, kMaxShiftedPlaces) : max_threads);
    tiling.column_tiles = CeilDivide(vectors, line_threads);
    if (shifted) max_lines = tiling.column_tiles > 1 ? line_threads : kShiftedPlaces;
  } else {
    // The rows that registers hold ahead are too few where columns have many taps. Times the
    // roofline: with 14 taps 1.7 instead of 2.5, with 64 taps 1.6 instead of 1.85, with 192
    // taps 1.76 instead of 1.98; but with 5 taps 2.0 instead of 1.9, and with 14 taps of elements
    // of 2 bytes 2.96 instead of 2.90.
    const bool pairs = needs.load == ResampleLoad::kPairs;
    if (instance.stages == 0 && (pairs || needs.taps >= kManyTaps) && element_bytes >= 4) {
      tiling.rows_ahead = 8;
    }
    const Strip strip = ChooseStrip(task, instance, pairs, element_bytes);
    if (strip.columns == 0) return tiling;
    line_threads = strip.threads;
    tiling.columns = static_cast<int>(strip.columns);
    tiling.column_tiles = CeilDivide(width.out, strip.columns);
    // Lines of several warps synchronize like blocks.
    if (line_threads > 32) max_lines = line_threads;
  }
  tiling.line_threads = static_cast<int>(line_threads);
  if (instance.stages > 0) {
    // A thread may read as many elements more as lie in front of the first in its piece, and those
    // of taps that its band does not have.
    int64_t elements = line_threads * vector, more = 0;
    if (needs.load == ResampleLoad::kStaged) {
      const int64_t columns = std::min(width.out, CeilDivide(elements, inner) + 1);
      elements = Window(width, columns) * inner + kStagePieceBytes / element_bytes - 1;
      more = (instance.taps - needs.taps) * inner;
    } else if (needs.load == ResampleLoad::kColumns) {
      elements = std::min<int64_t>(tiling.stage_columns, width.in);
      more = tiling.stage_columns - elements;
    }
    const int64_t pieces = CeilDivide(elements * element_bytes, kStagePieceBytes);
    tiling.stage_pieces = static_cast<int>(pieces);
    // A row's first piece may begin before it, its last pieces end among the rows that follow.
    const int64_t reach = CeilDivide(pieces * kStagePieceBytes, task.x_walk_bytes);
    tiling.stage_to = static_cast<int>(std::max<int64_t>(0, walk.in - reach));
    tiling.stage_from = IsAligned(task.x, kStagePieceBytes)
                            ? 0
                            : static_cast<int>(CeilDivide(kStagePieceBytes - 1, task.x_walk_bytes));
    // Lines that a warp reads at a time are in different banks.
    tiling.stage_pitch = static_cast<int>(
        RoundUp(pieces * kStagePieceBytes + kStageLineBytes + (more + 8) * element_bytes + 64,
                kStageLineBytes) -
        64);
    max_lines = std::min(
        max_lines, std::max<int64_t>(1, kMaxStageBytes / (instance.stages * tiling.stage_pitch)) *
                       line_threads);
  }
  tiling.lines = static_cast<int>(Even(lines_all, std::max<int64_t>(1, max_lines / line_threads)));
  tiling.threads = static_cast<int>(RoundUp(tiling.lines * line_threads, 32));
  if (needs.load == ResampleLoad::kShifted) {
    tiling.threads = static_cast<int>(CeilDivide(tiling.lines * line_threads, 31) * 32);
  }
  const int64_t line_tiles = CeilDivide(lines_all, tiling.lines);
  tiling.mid_tiles = mid.out > 1 ? line_tiles : 1;
  tiling.batch_tiles = mid.out > 1 ? form.batches() : line_tiles;

  // Walks are as short as is needed for enough threads, but not so short that too much is read
  // twice where one begins.
  const double columns_of_blocks = static_cast<double>(tiling.channel_tiles * tiling.column_tiles) *
                                   static_cast<double>(tiling.mid_tiles * tiling.batch_tiles);
  const double walks =
      std::max(1.0, std::floor(static_cast<double>(limits.all_threads) /
                               (columns_of_blocks * static_cast<double>(tiling.threads))));
  const double twice = walk.resampled ? static_cast<double>(walk.taps) / StepOf(walk) - 1.0 : 0.0;
  const double min_rows =
      std::max(needs.grow ? 4.0 : 1.0, (twice + (needs.grow ? 1.0 : 0.0)) / limits.overlap);
  const auto rows_of = [&](double of_walks) {
    const double even = std::ceil(static_cast<double>(walk.out) / of_walks);
    return std::min({static_cast<int64_t>(std::max(even, std::ceil(min_rows))), walk.out,
                     flat ? kMaxFlatChunk : kMaxChunk});
  };
  int64_t chunk = rows_of(walks);
  const double at_a_time = static_cast<double>(limits.wave / tiling.threads);
  if (at_a_time >= columns_of_blocks &&
      columns_of_blocks * static_cast<double>(CeilDivide(walk.out, chunk)) < 3 * at_a_time) {
    chunk = rows_of(EvenWalks(columns_of_blocks, at_a_time, limits.multiprocessors, walk, twice));
  }
  const int64_t row_bytes =
      needs.grow ? rows * sum_bytes + 4
                 : RecordSize(instance.rows, static_cast<int>(sum_bytes)) * sum_bytes;
  while (flat && chunk > min_rows &&
         Window(walk, chunk) * tiling.strip_pitch * sum_bytes > kMaxSlabBytes) {
    chunk = (chunk + 1) / 2;
  }
  if (needs.grow) {
    tiling.chunk = static_cast<int>(Even(walk.out, chunk));
  } else {
    const auto table_of = [&](int64_t rows_of_y) { return Window(walk, rows_of_y) + kMaxRound; };
    while (chunk > 1 && table_of(chunk) * row_bytes > kMaxScheduleBytes) chunk = (chunk + 1) / 2;
    chunk = Even(walk.out, chunk);
    const int64_t table_rows = table_of(chunk);
    tiling.chunk = static_cast<int>(chunk);
    if (table_rows * row_bytes <= 2 * kMaxScheduleBytes && !needs.gather) {
      tiling.table_rows = static_cast<int>(table_rows);
    }
  }
  tiling.chunks = CeilDivide(walk.out, tiling.chunk);
  const double blocks = columns_of_blocks * static_cast<double>(tiling.chunks);
  if (blocks > static_cast<double>(kMaxIndex)) return tiling;

  int64_t bytes = needs.grow ? tiling.chunk * row_bytes + 4
                             : tiling.table_rows * row_bytes + (2 * tiling.chunk + 1) * 4;
  if (flat) {
    tiling.runs_at = static_cast<int>(RoundUp(tiling.chunk * rows * sum_bytes, 16));
    tiling.strip_at = tiling.runs_at + tiling.chunk * kRunBytes;
    tiling.slab_rows = static_cast<int>(Window(walk, tiling.chunk));
    bytes = tiling.strip_at + (tiling.slab_rows + 1) * tiling.strip_pitch * sum_bytes;
  }
  if (needs.load == ResampleLoad::kPairs) {
    // Where there are several channels, their elements at the same place are in different banks.
    int64_t pitch =
        RoundUp(std::max<int64_t>(CeilDivide(line_threads * vector, inner) + 2, instance.taps), 4);
    while (inner > 1 && pitch % 32 != 12) pitch += 4;
    tiling.channel_pitch = static_cast<int>(pitch);
    tiling.strip_pitch = static_cast<int>(pitch * inner);
    tiling.strip_half = tiling.lines * tiling.strip_pitch;
    tiling.strip_at = static_cast<int>(RoundUp(bytes, 16));
    bytes = tiling.strip_at + 2 * tiling.strip_half * sum_bytes;
  } else if (needs.load == ResampleLoad::kStrip) {
    const int64_t pack = 16 / sum_bytes;
    // With one channel, zero weights in front make whole packs. The number of packs between columns
    // is odd, so that threads read theirs from different banks.
    const int64_t weights = width.taps + (inner == 1 ? pack - 1 : 0);
    tiling.width_pitch = static_cast<int>((CeilDivide(weights, pack) | 1) * pack);
    const int64_t elements = line_threads * vector;
    tiling.strip_pitch = static_cast<int>(elements);
    tiling.strip_half = tiling.lines * tiling.strip_pitch;
    tiling.width_weights_at = static_cast<int>(RoundUp(bytes, 16));
    tiling.strip_at = static_cast<int>(
        RoundUp(tiling.width_weights_at + tiling.columns * tiling.width_pitch * sum_bytes, 16));
    tiling.results_at =
        static_cast<int>(tiling.strip_at + (2 * tiling.strip_half + pack * inner) * sum_bytes);
    bytes = tiling.results_at + tiling.columns * inner * 4;
  }
  const int64_t piece = instance.stages > 0 || flat ? kStageLineBytes : 16;
  tiling.stage_at = static_cast<int>(RoundUp(bytes, piece));
  tiling.stage_slot_bytes =
      static_cast<int>(RoundUp(int64_t{tiling.lines} * tiling.stage_pitch, kStageLineBytes));
  bytes = tiling.stage_at + instance.stages * tiling.stage_slot_bytes;
  if (flat) bytes += int64_t{2} * tiling.sheet_pitch * element_bytes;
  tiling.flag_at = static_cast<int>(RoundUp(bytes, 4));
  bytes = tiling.flag_at + 4;
  if (bytes > kMaxSharedBytes) return tiling;
  tiling.shared_bytes = static_cast<int>(RoundUp(std::max<int64_t>(bytes, 16), 16));
  tiling.blocks = static_cast<int64_t>(blocks);
  return tiling;
}

}  // namespace jax_convgrad
