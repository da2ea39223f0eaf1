// The instances of the resize kernels, one table with a row for each, and which of them takes a
// problem.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_INSTANCES_H_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_INSTANCES_H_

#include <cstdint>

namespace jax_convgrad {

struct ResampleTask;

// The part of a line of y, which is the columns and the inner run of one row, that a thread owns,
// and how it reads x for that: each has a file in modes/, kFlat has flat.cuh.
enum class ResampleLoad {
  kVectors,   // a vector of the inner run of one column: whole vectors of x
  kElements,  // elements, each with reads of its own: few x that become many y
  kStaged,    // the same from rows of x in shared memory
  kWindow,    // columns a fixed distance apart in x: the elements that they read in all
  kStrip,     // elements of x, whose columns are combined when their rows are: many x, few y
  kPairs,     // the same, each thread combining two columns with weights that it keeps
  kColumns,   // two columns of lines of one channel, from rows of x in shared memory
  kSpread,    // columns that each become equally many: the elements that they read, as vectors
  kShifted,   // kElements that are passed on to a neighbor, for lines of y that are not aligned
  kFlat,      // elements of lines that are written as one
};

// The properties that a problem needs from an instance of the kernel.
struct ResampleNeeds {
  ResampleLoad load;
  int64_t aligned;   // elements by which all lines of y are aligned, of x for strips; 1 to 8
  bool grow;         // rows of y are made from a ring of rows of x, else rows of x are added up
  int64_t rows;      // rows of that ring, or of y that add up at a time
  int64_t taps;      // along the width
  int64_t mid_taps;  // along the axis between walk and width, 2 or more; 1 where there is none
  int64_t step;      // kWindow, strips, kColumns: columns of x from one column of y to the next;
                     // kSpread: columns of y of each of x
  bool gather;       // rows of y one by one, because there is no kernel for so many rows
};

// The properties that an instance was compiled with.
struct ResampleInstance {
  int aligned;  // elements by which lines of y must be, of x for strips; 1: not at all
  int rows;     // of the ring, or that are added up
  int vector;   // elements of a thread
  int taps;     // along the width that are read, also where a band has fewer; 0: its own
  int threads;  // of a multiprocessor at a time, at least
  int stages;   // rows of x in shared memory at a time; 0 where they are read directly
};

struct ResampleRow {
  ResampleLoad load;
  unsigned types;  // resample_rows::Types
  // Whether a thread's elements lie side by side, in lines so aligned that they are read, or
  // written, as vectors.
  bool aligned;
  bool grow;  // rows of y are made from a ring of rows of x, else rows of x are added up
  int rows;   // of that ring, or of y that add up at a time
  int taps;   // along the width; 0: any number
  int mid;    // taps along the middle axis
  int step;   // columns from one to the next, of the side that has more of them; 0: any number
};

namespace resample_rows {

// The types that a row is compiled for, by their letters: a sum of bits.
enum Types : unsigned {
  kH = 1,  // float16
  kB = 2,  // bfloat16
  kF = 4,  // float32
  kD = 8,  // float64
  kHB = kH | kB,
  kBF = kB | kF,
  kHBF = kH | kBF,
  kHBFD = kHBF | kD,
};

using Load = ResampleLoad;
constexpr bool kAligned = true, kAny = false, kGrow = true, kShrink = false;

// Sorted from few rows and taps to many: of the rows of one load, the first that serves is taken.
// float16 has fewer instances, and float64 only those that take anything, so that less is compiled.
//
// Beside a row: the best and the worst case that it took of benchmarks/h100/resample_kernels.txt,
// in times of the memory roofline; nothing where it took none of them.
//
// clang-format off: a row stays in its columns.
inline constexpr ResampleRow kRows[] = {
  //    load      types  lines     walk    rows taps mid step
  {Load::kVectors,  kHBF,  kAligned, kShrink,  1,  2, 1, 0},  // 1.04, 1.10 nearest2x
  {Load::kVectors,  kHBF,  kAligned, kShrink,  2,  4, 1, 0},  // 1.11 big2x, 1.35 unet2x
  {Load::kVectors,  kBF,   kAligned, kShrink,  2,  6, 1, 0},  // 1.09, 1.24 odd_scale
  {Load::kVectors,  kHBF,  kAligned, kShrink,  2,  8, 1, 0},  // 1.16 segformer4x
  {Load::kVectors,  kBF,   kAligned, kShrink,  2,  4, 4, 0},  // 1.06, 1.17 trilinear2x
  {Load::kVectors,  kHBFD, kAligned, kShrink,  2,  0, 1, 0},
  {Load::kVectors,  kBF,   kAligned, kShrink,  4, 16, 1, 0},  // 1.13, 1.47 cubic4x
  {Load::kVectors,  kHBF,  kAligned, kShrink,  4,  0, 1, 0},
  {Load::kVectors,  kHBFD, kAligned, kShrink, 12,  0, 1, 0},  // 8.85 wide_aa
  {Load::kVectors,  kHBF,  kAligned, kGrow,    1,  1, 1, 0},  // 1.08, 1.14 nearest2x
  {Load::kVectors,  kHBF,  kAligned, kGrow,    2,  2, 1, 0},  // 1.12 segformer4x, 1.34 unet2x
  {Load::kVectors,  kBF,   kAligned, kGrow,    2,  2, 2, 0},  // 1.12, 1.35 trilinear2x
  {Load::kVectors,  kD,    kAligned, kGrow,    2,  0, 1, 0},
  {Load::kVectors,  kHBF,  kAligned, kGrow,    4,  4, 1, 0},  // 1.09, 1.33 cubic4x
  {Load::kVectors,  kHBFD, kAligned, kGrow,   10,  0, 1, 0},  // 0.99 wide_aa

  {Load::kElements, kHBF,  kAligned, kGrow,    1,  1, 1, 0},  // 1.18 nearest2x
  {Load::kElements, kBF,   kAligned, kGrow,    1,  2, 1, 0},  // 1.33 linear1d
  {Load::kElements, kHBF,  kAligned, kGrow,    2,  2, 1, 0},  // 1.04 wide_aa3, 1.28 linear_aa_down
  {Load::kElements, kBF,   kAligned, kGrow,    2,  2, 2, 0},  // 1.16 trilinear2x
  {Load::kElements, kHBF,  kAligned, kGrow,    4,  4, 1, 0},  // 1.19, 1.63 cubic4x
  {Load::kElements, kBF,   kAligned, kGrow,    6,  6, 1, 0},
  {Load::kElements, kHBF,  kAny,     kGrow,    2,  2, 1, 0},  // 1.35, 2.13 odd_scale
  {Load::kElements, kD,    kAny,     kGrow,    2,  0, 1, 0},
  {Load::kElements, kBF,   kAny,     kGrow,    4,  4, 1, 0},
  {Load::kElements, kHBFD, kAny,     kGrow,   10,  0, 1, 0},
  {Load::kElements, kHBFD, kAny,     kShrink, 12,  0, 1, 0},

  {Load::kStaged,   kBF,   kAligned, kGrow,    6,  6, 1, 0},  // 0.97 wide_aa, 2.55 lanczos_down
  {Load::kStaged,   kBF,   kAny,     kGrow,    6,  6, 1, 0},

  {Load::kWindow,   kHBF,  kAligned, kShrink,  1,  2, 1, 2},  // 1.05, 1.20 nearest2x
  {Load::kWindow,   kHBF,  kAligned, kShrink,  2,  4, 1, 2},  // 1.23, 1.46 unet2x
  {Load::kWindow,   kBF,   kAligned, kShrink,  2,  4, 4, 2},  // 1.06, 1.31 trilinear2x
  {Load::kWindow,   kBF,   kAligned, kGrow,    1,  4, 1, 2},  // 1.24 linear1d
  {Load::kWindow,   kHBF,  kAligned, kShrink,  2,  8, 1, 4},  // 1.25 segformer4x
  {Load::kWindow,   kBF,   kAligned, kShrink,  4, 16, 1, 4},  // 1.36, 1.60 cubic4x

  {Load::kStrip,    kBF,   kAligned, kGrow,    1,  1, 1, 0},
  {Load::kStrip,    kHBFD, kAny,     kGrow,    1,  1, 1, 0},
  {Load::kStrip,    kBF,   kAligned, kShrink,  2,  1, 1, 0},  // 1.49 linear_aa_down, 1.56 wide_aa3
  {Load::kStrip,    kBF,   kAny,     kShrink,  2,  1, 1, 4},  // 1.28, 1.76 odd_scale
  {Load::kStrip,    kHBFD, kAny,     kShrink,  2,  1, 1, 0},  // 1.28, 1.55 deeplab
  {Load::kStrip,    kBF,   kAligned, kShrink,  4,  1, 1, 0},
  {Load::kStrip,    kBF,   kAny,     kShrink,  4,  1, 1, 0},
  {Load::kStrip,    kBF,   kAligned, kShrink,  6,  1, 1, 0},  // 1.69 wide_aa
  {Load::kStrip,    kBF,   kAligned, kShrink,  8,  1, 1, 0},
  {Load::kStrip,    kBF,   kAny,     kShrink,  8,  1, 1, 0},
  {Load::kStrip,    kHBFD, kAny,     kShrink, 12,  1, 1, 0},
  {Load::kStrip,    kBF,   kAny,     kShrink,  2,  0, 1, 0},
  {Load::kStrip,    kHBFD, kAny,     kShrink, 12,  0, 1, 0},

  {Load::kPairs,    kBF,   kAligned, kShrink,  6, 20, 1, 0},  // 1.51, 2.91 lanczos_down

  {Load::kColumns,  kF,    kAny,     kShrink,  2, 12, 1, 0},  // 1.31 linear_aa_down
  {Load::kColumns,  kF,    kAny,     kShrink,  6, 20, 1, 0},  // 1.43 lanczos_down

  {Load::kSpread,   kB,    kAligned, kGrow,    1,  1, 1, 2},  // 1.16 nearest2x
  {Load::kSpread,   kB,    kAligned, kGrow,    2,  2, 1, 2},  // 1.19 big2x, 1.52 unet2x
  {Load::kSpread,   kB,    kAligned, kGrow,    2,  2, 2, 2},  // 1.18 trilinear2x
  {Load::kSpread,   kB,    kAligned, kGrow,    1,  1, 1, 4},
  {Load::kSpread,   kB,    kAligned, kGrow,    2,  3, 1, 4},  // 1.22 segformer4x

  {Load::kShifted,  kBF,   kAny,     kGrow,    1,  1, 1, 0},
  {Load::kShifted,  kBF,   kAny,     kGrow,    2,  2, 1, 0},  // 1.21, 1.39 deeplab

  {Load::kFlat,     kHB,   kAny,     kGrow,    2,  2, 1, 0},  // 1.42 deeplab
};
// clang-format on

}  // namespace resample_rows

inline constexpr const auto& kResampleRows = resample_rows::kRows;
inline constexpr int kResampleRowCount = sizeof(kResampleRows) / sizeof(kResampleRows[0]);

// What a problem needs, by the load that is the fastest for it if there is an instance.
ResampleNeeds GetResampleNeeds(const ResampleTask& task, int element_bytes);

// What a problem needs of an instance, possibly of another load than the fastest one, and the row
// that serves.
struct ResampleChoice {
  int row;
  ResampleNeeds needs;
};

// Chooses among the instances of a type, by row; those that are not compiled for it have a vector
// of 0. The rows that gather (ResampleNeeds) take every problem, so that there is always one.
ResampleChoice ChooseResampleInstance(const ResampleNeeds& needs,
                                      const ResampleInstance (&instances)[kResampleRowCount]);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_INSTANCES_H_
