// A thin convolution, cut into tasks that may run in any order and at the same time: the
// work of a Job.

#ifndef JAX_CONVGRAD_CPU_KERNELS_THIN_WORK_H_
#define JAX_CONVGRAD_CPU_KERNELS_THIN_WORK_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "cpu/conv_problem.h"
#include "cpu/kernels/thin/kernels.h"
#include "cpu/runtime/scratch.h"

namespace jax_convgrad {

// Weights as a table of taps, and of rows and columns for each.
struct WeightsTable {
  std::array<int64_t, kMaxSpatialAxes> taps{1, 1, 1};
  std::array<int64_t, kMaxSpatialAxes> tap_strides{};
  int64_t rows, columns, row_stride, column_stride;

  int64_t tap_count() const { return taps[0] * taps[1] * taps[2]; }
  int64_t TapOffset(int64_t tap) const;
  // The same table without gaps, columns innermost.
  WeightsTable Dense() const;
  bool IsDense() const;
};

// Between tables of the same sizes.
void CopyWeights(const WeightsTable& from_table, const float* from, const WeightsTable& to_table,
                 float* to);

// y = conv(x, w) or dx = conv^T(dy, w). Each element is one sum over taps and channels.
//
// dx with stride s is s convolutions with stride 1 along an axis: elements s apart have the same
// taps. They are phases here, of which y has one.
class ThinGather {
 public:
  static bool Supports(const ConvProblem& problem);

  ThinGather(const ConvProblem& problem, const ThinKernels& kernels, int64_t threads,
             const float* from, const float* w, float* to);

  int64_t task_count() const { return tasks_; }
  void RunTask(int64_t task) const;
  void Finish() const {}  // every element is written by one task

 private:
  // Neighbors in a phase have the same taps inside `from`.
  struct Segment {
    Range positions, taps;
  };
  // Position p of a phase reads from_first + p from_step + t from_tap for tap t, whose weights are
  // number w_first + t w_tap.
  struct Phase {
    int64_t positions, from_first, taps, w_first;
    // Of the innermost axis.
    std::vector<Segment> segments;
    std::vector<Range> inside;  // of each tap, if one segment is cut by them
    Range whole;
  };
  struct Axis {
    int64_t from = 1, to = 1;  // sizes
    int64_t from_step = 1, from_tap = 1, w_tap = 1;
    std::vector<Phase> phases;  // element e of `to` is position e / count of phase e % count
  };

  static Axis FpropAxis(const ConvGeometry& geometry, int axis);
  static Axis DgradAxis(const ConvGeometry& geometry, int axis);
  static Range TapsInside(const Axis& axis, const Phase& phase, int64_t position);
  static void FindSegments(Axis* axis, bool join);
  void RunUnit(int64_t unit, std::vector<TapOffset>* outer) const;

  const ThinKernels& kernels_;
  const float* const from_;
  float* const to_;
  int64_t batch_, from_channels_, to_channels_;
  std::array<Axis, kMaxSpatialAxes> axes_;  // those that are not there come first
  WeightsTable table_;                      // rows are channels of `from`, columns those of `to`
  std::optional<Scratch> packed_;
  const float* w_;
  int64_t parts_;  // of each row of `to`; a unit is one part of one
  int64_t tasks_;
};

// dw. The positions are cut into parts, whose sums are added in their order; the cut depends on the
// problem alone.
class ThinWgrad {
 public:
  static bool Supports(const ConvProblem& problem);

  ThinWgrad(const ConvProblem& problem, const ThinKernels& kernels, int64_t threads, const float* x,
            const float* dy, float* dw);

  int64_t task_count() const { return parts_ * groups_; }
  void RunTask(int64_t task) const;
  // After all tasks.
  void Finish() const;

 private:
  // Windows: images and those of three axes.
  using Box = std::array<Range, 4>;

  void RunBlock(int64_t block, Range taps, bool add, float* sums) const;
  Range WindowsInside(size_t axis, int64_t tap, Range windows) const;
  // Adds up a box of windows for one tap, or for several neighbors that all of them have inside x.
  void SumTaps(int64_t first_tap, int64_t taps, const Box& box, bool add, float* sums) const;

  const ThinKernels& kernels_;
  ConvGeometry geometry_;  // with three axes
  const float* const x_;
  const float* const dy_;
  float* const dw_;
  bool columns_are_y_;  // vectors are of dy's channels, not of x's
  WeightsTable table_;  // dw
  WeightsTable sums_table_;
  std::array<int64_t, 4> block_, blocks_;  // sizes and numbers: batch and axes
  int64_t parts_, groups_;                 // of the blocks and of the taps
  // Neighbors along the innermost axis that are summed at once, as rows of one table: all, or 1.
  // Their elements of x lie side by side.
  int64_t joined_taps_;
  bool direct_;  // sums go to dw at once
  std::optional<Scratch> scratch_;
  float* sums_;  // of each part
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_THIN_WORK_H_
