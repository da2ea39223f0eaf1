#include "cuda/cudnn/plan.h"

#include <algorithm>
#include <array>
#include <exception>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

// Not cudnn_frontend.h: its other half takes most of the compiler's time and wants nvrtc.h.
#include <cudnn.h>

#include "cuda/cudnn/errata.h"
#include "cuda/kernels/common/device_attribute.h"
#include "cudnn_frontend_ConvDesc.h"
#include "cudnn_frontend_ExecutionPlan.h"
#include "cudnn_frontend_Heuristics.h"
#include "cudnn_frontend_Operation.h"
#include "cudnn_frontend_OperationGraph.h"
#include "cudnn_frontend_Tensor.h"
#include "cudnn_frontend_VariantPack.h"

namespace cudnn_frontend {
// Read by every call of the frontend; set from DnnLibrary before the first one.
void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace jax_convgrad {
namespace {

namespace fe = ::cudnn_frontend;

// Names of the arrays inside cuDNN's graph.
constexpr int64_t kX = 1, kW = 2, kY = 3;

cudnnDataType_t DnnType(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F16:
      return CUDNN_DATA_HALF;
    case ffi::DataType::BF16:
      return CUDNN_DATA_BFLOAT16;
    case ffi::DataType::F64:
      return CUDNN_DATA_DOUBLE;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

ffi::ErrorCode CodeOf(cudnnStatus_t status) {
  if (IsOutOfMemory(status)) return ffi::ErrorCode::kResourceExhausted;
  // The categories of cuDNN 9: 2xxx bad parameter, 3xxx not supported.
  switch (static_cast<int>(status) / 1000) {
    case 2:
      return ffi::ErrorCode::kInvalidArgument;
    case 3:
      return ffi::ErrorCode::kUnimplemented;
    default:
      return ffi::ErrorCode::kInternal;
  }
}

// Runs `body`, which calls the frontend, and turns what it throws into an error.
template <typename Body>
auto Guarded(const ConvProblem& problem, const std::string& what, Body body) -> decltype(body()) {
  const char* op = ConvName(problem.kind);
  try {
    return body();
  } catch (const fe::cudnnException& error) {
    return ffi::Unexpected(
        ffi::Error(CodeOf(error.error_status), Text(op, ": ", what, ": cuDNN: ", error.what())));
  } catch (const std::bad_alloc&) {
    return ffi::Unexpected(
        ffi::Error(ffi::ErrorCode::kResourceExhausted, Text(op, ": ", what, ": no host memory")));
  } catch (const std::exception& error) {
    return ffi::Unexpected(
        ffi::Error(ffi::ErrorCode::kInternal, Text(op, ": ", what, ": ", error.what())));
  }
}

std::vector<int64_t> Joined(int64_t first, int64_t second, const ConvGeometry::PerAxis& spatial,
                            int count) {
  std::vector<int64_t> dims{first, second};
  dims.insert(dims.end(), spatial.begin(), spatial.begin() + count);
  return dims;
}

// Channels-last strides of dims (outer, channels, spatial...): for x and y, and for w, whose bytes
// are then output channel, kernel, input channel. That order is the only one with which cuDNN's
// channels-last engines compute the right thing: they take other strides of w and ignore them.
std::vector<int64_t> ChannelsLast(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size());
  strides[1] = 1;
  int64_t stride = dims[1];
  for (size_t axis = dims.size(); axis-- > 2;) {
    strides[axis] = stride;
    stride *= dims[axis];
  }
  strides[0] = stride;
  return strides;
}

fe::Tensor MakeTensor(int64_t id, const std::vector<int64_t>& dims, ffi::DataType type,
                      const ConvProblem& problem) {
  const std::vector<int64_t> strides = ChannelsLast(dims);
  const int64_t rank = static_cast<int64_t>(dims.size());
  return fe::TensorBuilder()
      .setDim(rank, dims.data())
      .setStride(rank, strides.data())
      .setId(id)
      .setAlignment(problem.alignment)
      .setDataType(DnnType(type))
      .build();
}

fe::OperationGraph MakeGraph(const ConvProblem& problem, cudnnHandle_t handle) {
  const ConvGeometry& g = problem.geometry;
  const auto type_of = [&](ConvKind result_of) {
    return problem.kind == result_of ? problem.result_type : problem.operand_type;
  };
  const fe::Tensor x = MakeTensor(kX, Joined(g.batch, g.in_channels, g.in, g.spatial),
                                  type_of(ConvKind::kDgrad), problem);
  const fe::Tensor w =
      MakeTensor(kW, Joined(g.out_channels, g.in_channels / g.groups, g.kernel, g.spatial),
                 type_of(ConvKind::kWgrad), problem);
  const fe::Tensor y = MakeTensor(kY, Joined(g.batch, g.out_channels, g.out, g.spatial),
                                  type_of(ConvKind::kFprop), problem);
  const fe::ConvDesc conv =
      fe::ConvDescBuilder()
          .setComputeType(problem.operand_type == ffi::DataType::F64 ? CUDNN_DATA_DOUBLE
                                                                     : CUDNN_DATA_FLOAT)
          .setMathMode(CUDNN_CROSS_CORRELATION)
          .setSpatialDimCount(g.spatial)
          .setSpatialStride(g.spatial, g.strides.data())
          .setPrePadding(g.spatial, g.padding_low.data())
          .setPostPadding(g.spatial, g.padding_high.data())
          .setDilation(g.spatial, g.dilation.data())
          .build();
  const fe::Operation operation = [&]() -> fe::Operation {
    switch (problem.kind) {
      case ConvKind::kDgrad:
        return fe::OperationBuilder(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
            .setdxDesc(x)
            .setwDesc(w)
            .setdyDesc(y)
            .setcDesc(conv)
            .build();
      case ConvKind::kWgrad:
        return fe::OperationBuilder(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR)
            .setxDesc(x)
            .setdwDesc(w)
            .setdyDesc(y)
            .setcDesc(conv)
            .build();
      case ConvKind::kFprop:
        break;
    }
    return fe::OperationBuilder(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
        .setxDesc(x)
        .setwDesc(w)
        .setyDesc(y)
        .setcDesc(conv)
        .build();
  }();
  std::array<const fe::Operation*, 1> operations{&operation};
  return fe::OperationGraphBuilder()
      .setHandle(handle)
      .setOperationGraph(1, operations.data())
      .build();
}

bool Forbidden(const ConvProblem& problem, cudnnBackendDescriptor_t config) {
  if (fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION>(config)) return true;
  if (problem.deterministic &&
      fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC>(config)) {
    return true;
  }
  const bool strict = problem.operand_type == ffi::DataType::F32 && !problem.allow_tf32;
  return strict && (fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_TENSOR_CORE>(config) ||
                    fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS>(config));
}

bool Transforms(cudnnBackendDescriptor_t config) {
  return fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_FFT>(config) ||
         fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_WINOGRAD>(config) ||
         fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4>(config) ||
         fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6>(config) ||
         fe::hasNumericalNote<CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13>(config);
}

auto Fields(const ConvProblem& p) {
  return std::tie(p.kind, p.operand_type, p.result_type, p.allow_tf32, p.deterministic,
                  p.workspace_limit, p.alignment, p.device);
}

void Mix(size_t* hash, int64_t value) {
  *hash ^= static_cast<size_t>(value) + 0x9e3779b97f4a7c15u + (*hash << 6) + (*hash >> 2);
}

class DnnPlan : public ConvPlan {
 public:
  DnnPlan(const ConvProblem& problem, std::string engine, fe::ExecutionPlan plan)
      : problem_(problem), engine_(std::move(engine)), plan_(std::move(plan)) {
    const auto& notes = plan_.getAllBehaviorNotes();
    owns_kernels_ = std::find(notes.begin(), notes.end(),
                              CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) != notes.end();
  }

  const std::string& engine() const override { return engine_; }
  int64_t workspace_bytes() const override { return plan_.getWorkspaceSize(); }
  bool owns_kernels() const override { return owns_kernels_; }

  ffi::Error Run(const DnnHandle& handle, const ConvBuffers& buffers) const override {
    const auto done = Guarded(problem_, "running", [&]() -> ffi::ErrorOr<cudnnStatus_t> {
      void* pointers[] = {buffers.x, buffers.w, buffers.y};
      const int64_t ids[] = {kX, kW, kY};
      const fe::VariantPack pack = fe::VariantPackBuilder()
                                       .setDataPointers(3, pointers)
                                       .setUids(3, ids)
                                       .setWorkspacePointer(buffers.workspace)
                                       .build();
      return fe::detail::execute(handle.get(), plan_.get_raw_desc(), pack.get_raw_desc());
    });
    if (done.has_error()) {
      return WithSizes(done.error(), [&] { return problem_.ToString(); });
    }
    if (*done == CUDNN_STATUS_SUCCESS) return ffi::Error::Success();
    return ffi::Error(CodeOf(*done),
                      Text(ConvName(problem_.kind), ": cuDNN: ", fe::to_string(*done), ": ",
                           fe::detail::get_last_error_string_(), " (engine ", engine_, ", ",
                           problem_.ToString(), ")"));
  }

 private:
  const ConvProblem problem_;
  const std::string engine_;
  const fe::ExecutionPlan plan_;
  bool owns_kernels_ = false;
};

}  // namespace

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
              ", alignment ", alignment);
}

size_t ConvProblemHash::operator()(const ConvProblem& p) const {
  size_t hash = 0;
  const ConvGeometry& g = p.geometry;
  for (int64_t value :
       {static_cast<int64_t>(p.kind), static_cast<int64_t>(p.operand_type),
        static_cast<int64_t>(p.result_type), static_cast<int64_t>(p.allow_tf32),
        static_cast<int64_t>(p.deterministic), p.workspace_limit, p.alignment,
        static_cast<int64_t>(p.device), g.batch, g.in_channels, g.out_channels, g.groups}) {
    Mix(&hash, value);
  }
  for (const ConvGeometry::PerAxis& values :
       {g.in, g.kernel, g.out, g.strides, g.padding_low, g.padding_high, g.dilation}) {
    for (int64_t value : values) Mix(&hash, value);
  }
  return hash;
}

struct ConvCandidates::Impl {
  struct Candidate {
    std::string engine;
    int64_t workspace_bytes;
    bool transforms;
    fe::ManagedOpaqueDescriptor config;
  };

  ConvProblem problem;
  std::vector<Candidate> candidates;
};

ConvCandidates::ConvCandidates(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ConvCandidates::ConvCandidates(ConvCandidates&&) noexcept = default;
ConvCandidates& ConvCandidates::operator=(ConvCandidates&&) noexcept = default;
ConvCandidates::~ConvCandidates() = default;

ffi::ErrorOr<ConvCandidates> ConvCandidates::Query(const ConvProblem& problem,
                                                   const DnnHandle& handle) {
  const ffi::ErrorOr<const DnnLibrary*> library = DnnLibrary::Get();
  if (library.has_error()) return ffi::Unexpected(library.error());
  static const bool opened = [](void* dlhandle) {
    fe::cudnn_dlhandle = dlhandle;
    return true;
  }((*library)->dlhandle());
  (void)opened;

  const int version = static_cast<int>((*library)->version());
  const ffi::ErrorOr<int> capability = ComputeCapability(ConvName(problem.kind), problem.device);
  if (capability.has_error()) return ffi::Unexpected(capability.error());

  const std::string what = Text("asking for engines for ", problem.ToString());
  return Guarded(problem, what, [&]() -> ffi::ErrorOr<ConvCandidates> {
    fe::OperationGraph graph = MakeGraph(problem, handle.get());
    fe::EngineConfigList configs;
    // Mode A alone offers nothing for some problems (float64, for one).
    const std::vector<cudnnStatus_t> statuses = fe::get_heuristics_list(
        std::vector<fe::HeurMode_t>{fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}, graph,
        [&](cudnnBackendDescriptor_t config) { return Forbidden(problem, config); }, configs,
        /*evaluate_all=*/true);
    auto impl = std::make_unique<Impl>();
    impl->problem = problem;
    std::string wrong;
    for (fe::ManagedOpaqueDescriptor& config : configs) {
      std::string engine = fe::detail::get_engine_tag(config);
      if (FindErratum(problem.kind, problem.geometry, engine, version, *capability) != nullptr) {
        wrong += Text(wrong.empty() ? "; left out, being wrong: " : " ", engine);
        continue;
      }
      const bool known = std::any_of(impl->candidates.begin(), impl->candidates.end(),
                                     [&](const Impl::Candidate& c) { return c.engine == engine; });
      if (known) continue;
      int64_t bytes = -1;
      const cudnnStatus_t status = fe::detail::get_attribute(config->get_backend_descriptor(),
                                                             CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE,
                                                             CUDNN_TYPE_INT64, 1, nullptr, &bytes);
      if (status != CUDNN_STATUS_SUCCESS) bytes = -1;
      const bool transforms = Transforms(config->get_backend_descriptor());
      impl->candidates.push_back({std::move(engine), bytes, transforms, std::move(config)});
    }
    if (impl->candidates.empty()) {
      std::string words;
      for (cudnnStatus_t status : statuses) words += Text(" ", fe::to_string(status));
      return ffi::Unexpected(Unimplemented(
          ConvName(problem.kind), ": cuDNN has no engine for this problem:", words, " ",
          fe::detail::get_last_error_string_(), wrong, " (", problem.ToString(), ")"));
    }
    return ConvCandidates(std::move(impl));
  });
}

size_t ConvCandidates::size() const { return impl_->candidates.size(); }

const std::string& ConvCandidates::engine(size_t index) const {
  return impl_->candidates[index].engine;
}

int64_t ConvCandidates::workspace_bytes(size_t index) const {
  return impl_->candidates[index].workspace_bytes;
}

bool ConvCandidates::transforms(size_t index) const { return impl_->candidates[index].transforms; }

ffi::ErrorOr<std::shared_ptr<const ConvPlan>> ConvCandidates::Build(size_t index,
                                                                    const DnnHandle& handle) const {
  const Impl::Candidate& candidate = impl_->candidates[index];
  return Guarded(
      impl_->problem, "building a plan", [&]() -> ffi::ErrorOr<std::shared_ptr<const ConvPlan>> {
        fe::ExecutionPlan plan = fe::ExecutionPlanBuilder()
                                     .setHandle(handle.get())
                                     .setEngineConfig(candidate.config)
                                     .build();
        return std::shared_ptr<const ConvPlan>(
            std::make_shared<DnnPlan>(impl_->problem, candidate.engine, std::move(plan)));
      });
}

}  // namespace jax_convgrad
