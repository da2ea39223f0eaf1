#include "cuda/conv_plan.h"

#include <tuple>

namespace jax_convgrad {
namespace {

auto Fields(const ConvProblem& p) {
  return std::tie(p.kind, p.operand_type, p.result_type, p.weights, p.allow_tf32, p.deterministic,
                  p.workspace_limit, p.alignment, p.device);
}

void Mix(size_t* hash, int64_t value) {
  *hash ^= static_cast<size_t>(value) + 0x9e3779b97f4a7c15u + (*hash << 6) + (*hash >> 2);
}

}  // namespace

std::optional<WeightsOrder> WeightsOrderNamed(std::string_view name) {
  if (name == "OXI") return WeightsOrder::kOXI;
  if (name == "XIO") return WeightsOrder::kXIO;
  return std::nullopt;
}

ConvGeometry Widened(const ConvGeometry& geometry) {
  if (geometry.spatial != 1) return geometry;
  ConvGeometry g = geometry;
  g.spatial = 2;
  const auto shift = [](ConvGeometry::PerAxis& values, int64_t neutral) {
    values[1] = values[0];
    values[0] = neutral;
  };
  for (ConvGeometry::PerAxis* values : {&g.in, &g.kernel, &g.out, &g.strides, &g.dilation}) {
    shift(*values, 1);
  }
  shift(g.padding_low, 0);
  shift(g.padding_high, 0);
  return g;
}

bool ConvProblem::operator==(const ConvProblem& other) const {
  return Fields(*this) == Fields(other) && geometry == other.geometry;
}

std::string ConvProblem::ToString() const {
  return Text(ConvName(kind), ": ", geometry.ToString(), ", ", operand_type, " to ", result_type,
              allow_tf32 || operand_type != ffi::DataType::F32 ? "" : ", no TF32",
              deterministic ? ", deterministic" : "", ", workspace limit ", workspace_limit,
              ", alignment ", alignment, weights == WeightsOrder::kXIO ? ", weights XIO" : "");
}

size_t ConvProblemHash::operator()(const ConvProblem& p) const {
  size_t hash = 0;
  const ConvGeometry& g = p.geometry;
  for (int64_t value : {static_cast<int64_t>(p.kind), static_cast<int64_t>(p.operand_type),
                        static_cast<int64_t>(p.result_type), static_cast<int64_t>(p.weights),
                        static_cast<int64_t>(p.allow_tf32), static_cast<int64_t>(p.deterministic),
                        p.workspace_limit, p.alignment, static_cast<int64_t>(p.device), g.batch,
                        g.in_channels, g.out_channels, g.groups}) {
    Mix(&hash, value);
  }
  for (const ConvGeometry::PerAxis& values :
       {g.in, g.kernel, g.out, g.strides, g.padding_low, g.padding_high, g.dilation}) {
    for (int64_t value : values) Mix(&hash, value);
  }
  return hash;
}

}  // namespace jax_convgrad
