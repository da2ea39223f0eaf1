#include "cuda/cudnn/plan.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/cudnn/backend_descriptor.h"
#include "cuda/cudnn/engine_config.h"
#include "cuda/cudnn/errata.h"
#include "cuda/cudnn/handle.h"
#include "cuda/kernels/common/device_attribute.h"

namespace jax_convgrad {
namespace {

// Names of the arrays inside cuDNN's graph.
constexpr int64_t kX = 1, kW = 2, kY = 3;
// Finalized variant packs that a plan keeps, see VariantPacks.
constexpr size_t kMaxVariantPacks = 8;

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

// `error` of one of cuDNN's calls, with the action that failed.
ffi::Error InContext(const ConvProblem& problem, const std::string& what, const ffi::Error& error) {
  return ffi::Error(error.errc().value_or(ffi::ErrorCode::kInternal),
                    Text(ConvName(problem.kind), ": ", what, ": cuDNN: ", error.message()));
}

std::vector<int64_t> Joined(int64_t first, int64_t second, const ConvGeometry::PerAxis& spatial,
                            int count) {
  std::vector<int64_t> dims{first, second};
  dims.insert(dims.end(), spatial.begin(), spatial.begin() + count);
  return dims;
}

// Channels-last strides of dims (outer, channels, spatial...): for x and y, and for w, whose bytes
// are then in the order output channel, kernel, input channel. Only with that order do cuDNN's
// channels-last engines compute the right result: they accept other strides of w and ignore them.
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

ffi::ErrorOr<BackendDescriptor> MakeTensor(const DnnBackend& backend, int64_t id,
                                           const std::vector<int64_t>& dims, ffi::DataType type,
                                           const ConvProblem& problem) {
  const std::vector<int64_t> strides = ChannelsLast(dims);
  const int64_t rank = static_cast<int64_t>(dims.size());
  return DescriptorBuilder(backend, JAX_CONVGRAD_NAMED(CUDNN_BACKEND_TENSOR_DESCRIPTOR))
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_TENSOR_DATA_TYPE), DnnType(type))
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_TENSOR_DIMENSIONS), dims.data(), rank)
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_TENSOR_STRIDES), strides.data(), rank)
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_TENSOR_UNIQUE_ID), id)
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT), problem.alignment)
      .Build();
}

ffi::ErrorOr<BackendDescriptor> MakeConvolution(const DnnBackend& backend,
                                                const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  const cudnnDataType_t compute_type =
      problem.operand_type == ffi::DataType::F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  const int64_t spatial = g.spatial;
  return DescriptorBuilder(backend, JAX_CONVGRAD_NAMED(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR))
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_CONVOLUTION_COMP_TYPE), compute_type)
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_CONVOLUTION_CONV_MODE), CUDNN_CROSS_CORRELATION)
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS), spatial)
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS), g.padding_low.data(), spatial)
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS), g.padding_high.data(), spatial)
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_CONVOLUTION_DILATIONS), g.dilation.data(), spatial)
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES), g.strides.data(), spatial)
      .Build();
}

// The names of an operation's attributes, which differ among the three operators.
struct OperationNames {
  DescriptorType operation;
  AttributeName x, w, y, convolution, alpha, beta;
};

OperationNames NamesOf(ConvKind kind) {
  switch (kind) {
    case ConvKind::kDgrad:
      return {JAX_CONVGRAD_NAMED(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR),
              JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX),
              JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W),
              JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY),
              JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC),
              JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA),
              JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA)};
    case ConvKind::kWgrad:
      return {JAX_CONVGRAD_NAMED(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR),
              JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X),
              JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW),
              JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY),
              JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC),
              JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA),
              JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA)};
    case ConvKind::kFprop:
      break;
  }
  return {JAX_CONVGRAD_NAMED(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR),
          JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X),
          JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W),
          JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y),
          JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC),
          JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA),
          JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA)};
}

ffi::ErrorOr<BackendDescriptor> MakeOperation(const DnnBackend& backend,
                                              const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  const auto type_of = [&](ConvKind result_of) {
    return problem.kind == result_of ? problem.result_type : problem.operand_type;
  };
  const auto x = MakeTensor(backend, kX, Joined(g.batch, g.in_channels, g.in, g.spatial),
                            type_of(ConvKind::kDgrad), problem);
  if (x.has_error()) return ffi::Unexpected(x.error());
  const auto w =
      MakeTensor(backend, kW, Joined(g.out_channels, g.in_channels / g.groups, g.kernel, g.spatial),
                 type_of(ConvKind::kWgrad), problem);
  if (w.has_error()) return ffi::Unexpected(w.error());
  const auto y = MakeTensor(backend, kY, Joined(g.batch, g.out_channels, g.out, g.spatial),
                            type_of(ConvKind::kFprop), problem);
  if (y.has_error()) return ffi::Unexpected(y.error());
  const auto convolution = MakeConvolution(backend, problem);
  if (convolution.has_error()) return ffi::Unexpected(convolution.error());

  const OperationNames names = NamesOf(problem.kind);
  DescriptorBuilder operation(backend, names.operation);
  operation.Set(names.x, *x).Set(names.w, *w).Set(names.y, *y);
  operation.Set(names.convolution, *convolution);
  // The scale factors, in the type of the sums.
  if (problem.operand_type == ffi::DataType::F64) {
    operation.Set(names.alpha, 1.0).Set(names.beta, 0.0);
  } else {
    operation.Set(names.alpha, 1.0f).Set(names.beta, 0.0f);
  }
  return operation.Build();
}

bool IsForbidden(const ConvProblem& problem, const EngineConfig& config) {
  if (config.Has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) return true;
  if (problem.deterministic && config.Has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) return true;
  const bool strict = problem.operand_type == ffi::DataType::F32 && !problem.allow_tf32;
  return strict && (config.Has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) ||
                    config.Has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
}

bool Transforms(const EngineConfig& config) {
  return config.Has(CUDNN_NUMERICAL_NOTE_FFT) || config.Has(CUDNN_NUMERICAL_NOTE_WINOGRAD) ||
         config.Has(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4) ||
         config.Has(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6) ||
         config.Has(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13);
}

bool operator==(const ConvBuffers& a, const ConvBuffers& b) {
  return a.x == b.x && a.w == b.w && a.y == b.y && a.workspace == b.workspace;
}

// Finalized variant packs of earlier calls, by the addresses in them: a program that runs again
// mostly has its arrays where they were. A pack in use is removed, so no two threads have the same
// one.
class VariantPacks {
 public:
  std::optional<BackendDescriptor> Take(const ConvBuffers& buffers) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find_if(packs_.begin(), packs_.end(),
                                    [&](const Pack& pack) { return pack.buffers == buffers; });
    if (found == packs_.end()) return std::nullopt;
    std::optional<BackendDescriptor> descriptor(std::move(found->descriptor));
    packs_.erase(found);
    return descriptor;
  }

  void Keep(const ConvBuffers& buffers, BackendDescriptor descriptor) {
    std::optional<Pack> dropped;  // destroyed after the lock has been released
    const std::lock_guard<std::mutex> lock(mutex_);
    if (packs_.size() == kMaxVariantPacks) {
      dropped.emplace(std::move(packs_.front()));
      packs_.erase(packs_.begin());
    }
    packs_.push_back({buffers, std::move(descriptor)});
  }

 private:
  struct Pack {
    ConvBuffers buffers;
    BackendDescriptor descriptor;
  };

  std::mutex mutex_;
  std::vector<Pack> packs_;  // the most recently returned pack comes last
};

ffi::ErrorOr<BackendDescriptor> MakeVariantPack(const DnnBackend& backend,
                                                const ConvBuffers& buffers) {
  void* const pointers[] = {buffers.x, buffers.w, buffers.y};
  const int64_t ids[] = {kX, kW, kY};
  return DescriptorBuilder(backend, JAX_CONVGRAD_NAMED(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR))
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS), pointers, 3)
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS), ids, 3)
      .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_VARIANT_PACK_WORKSPACE), buffers.workspace)
      .Build();
}

class DnnPlan : public ConvPlan {
 public:
  // `engine` describes `config`, and `plan` runs it; `config` stays alive as long as the plan.
  DnnPlan(const DnnBackend& backend, const ConvProblem& problem, const EngineConfig& engine,
          std::shared_ptr<const BackendDescriptor> config, BackendDescriptor plan,
          int64_t workspace_bytes)
      : backend_(backend),
        problem_(problem),
        engine_(engine.name),
        owns_kernels_(engine.Has(CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION)),
        config_(std::move(config)),
        plan_(std::move(plan)),
        workspace_bytes_(workspace_bytes) {}

  const std::string& engine() const override { return engine_; }
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  bool owns_kernels() const override { return owns_kernels_; }
  bool needs_handle() const override { return true; }

  ffi::Error Run(cudnnHandle_t handle, cudaStream_t, const ConvBuffers& buffers) const override {
    std::optional<BackendDescriptor> pack = packs_.Take(buffers);
    if (!pack) {
      ffi::ErrorOr<BackendDescriptor> made = MakeVariantPack(backend_, buffers);
      if (made.has_error()) return Failure(made.error());
      pack.emplace(*std::move(made));
    }
    const cudnnStatus_t status = backend_.execute(handle, plan_.get(), pack->get());
    if (status != CUDNN_STATUS_SUCCESS) {
      return Failure(backend_.ErrorOf("cudnnBackendExecute", status));
    }
    packs_.Keep(buffers, *std::move(pack));
    return ffi::Error::Success();
  }

 private:
  ffi::Error Failure(const ffi::Error& error) const {
    const std::string text = problem_.ToString();
    return InContext(problem_, Text("running engine ", engine_, " (", text, ")"), error);
  }

  const DnnBackend& backend_;
  const ConvProblem problem_;
  const std::string engine_;
  const bool owns_kernels_;
  const std::shared_ptr<const BackendDescriptor> config_;
  const BackendDescriptor plan_;
  const int64_t workspace_bytes_;
  mutable VariantPacks packs_;
};

}  // namespace

struct ConvCandidates::Impl {
  struct Candidate {
    EngineConfig engine;
    std::shared_ptr<const BackendDescriptor> config;
  };

  const DnnBackend& backend;
  ConvProblem problem;
  std::vector<Candidate> candidates;
};

ConvCandidates::ConvCandidates(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ConvCandidates::ConvCandidates(ConvCandidates&&) noexcept = default;
ConvCandidates& ConvCandidates::operator=(ConvCandidates&&) noexcept = default;
ConvCandidates::~ConvCandidates() = default;

ffi::ErrorOr<ConvCandidates> ConvCandidates::Query(const ConvProblem& problem,
                                                   cudnnHandle_t handle) {
  const ffi::ErrorOr<const DnnBackend*> found = DnnBackend::Get();
  if (found.has_error()) return ffi::Unexpected(found.error());
  const DnnBackend& backend = **found;
  const auto failure = [&](const ffi::Error& error) {
    return ffi::Unexpected(
        InContext(problem, Text("asking for engines for ", problem.ToString()), error));
  };
  const ffi::ErrorOr<BackendDescriptor> operation = MakeOperation(backend, problem);
  if (operation.has_error()) return failure(operation.error());
  const ffi::ErrorOr<BackendDescriptor> graph =
      DescriptorBuilder(backend, JAX_CONVGRAD_NAMED(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR))
          .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATIONGRAPH_OPS), *operation)
          .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_OPERATIONGRAPH_HANDLE), handle)
          .Build();
  if (graph.has_error()) return failure(graph.error());

  const ffi::ErrorOr<const DnnLibrary*> library = DnnLibrary::Get();
  if (library.has_error()) return ffi::Unexpected(library.error());
  const int version = static_cast<int>((*library)->version());
  const ffi::ErrorOr<int> capability = ComputeCapability(ConvName(problem.kind), problem.device);
  if (capability.has_error()) return ffi::Unexpected(capability.error());

  auto impl = std::make_unique<Impl>(Impl{backend, problem, {}});
  std::string why;  // there is no candidate, if there is none
  const auto add_reason = [&](const auto&... parts) {
    why += Text(why.empty() ? "" : "; ", parts...);
  };
  const auto add = [&](BackendDescriptor config) {
    ffi::ErrorOr<EngineConfig> engine = EngineConfig::Read(backend, config);
    if (engine.has_error()) return add_reason("an engine was left out: ", engine.error().message());
    if (IsForbidden(problem, *engine)) {
      return add_reason(engine->name, " is left out: its precision or nondeterminism is forbidden");
    }
    const CudnnErratum* erratum =
        FindErratum(problem.kind, problem.geometry, engine->name, version, *capability);
    if (erratum != nullptr) {
      return add_reason(engine->name, " is left out by an erratum (", erratum->evidence, ")");
    }
    const auto same = [&](const Impl::Candidate& c) { return c.engine.name == engine->name; };
    if (std::any_of(impl->candidates.begin(), impl->candidates.end(), same)) return;
    impl->candidates.push_back(
        {*std::move(engine), std::make_shared<const BackendDescriptor>(std::move(config))});
  };
  // Mode A alone offers nothing for some problems (float64, for example).
  for (const auto& mode :
       {JAX_CONVGRAD_NAMED(CUDNN_HEUR_MODE_A), JAX_CONVGRAD_NAMED(CUDNN_HEUR_MODE_FALLBACK)}) {
    ffi::ErrorOr<std::vector<BackendDescriptor>> configs =
        QueryHeuristics(backend, *graph, mode.value);
    if (configs.has_error()) {
      add_reason(mode.name, ": ", configs.error().message());
      continue;
    }
    if (configs->empty()) add_reason(mode.name, " proposes no engine");
    for (BackendDescriptor& config : *configs) add(std::move(config));
  }
  if (impl->candidates.empty()) {
    return ffi::Unexpected(Unimplemented(ConvName(problem.kind),
                                         ": cuDNN has no engine for this problem: ", why, " (",
                                         problem.ToString(), ")"));
  }
  return ConvCandidates(std::move(impl));
}

size_t ConvCandidates::size() const { return impl_->candidates.size(); }

const std::string& ConvCandidates::engine(size_t index) const {
  return impl_->candidates[index].engine.name;
}

int64_t ConvCandidates::workspace_bytes(size_t index) const {
  return impl_->candidates[index].engine.workspace_bytes;
}

bool ConvCandidates::transforms(size_t index) const {
  return Transforms(impl_->candidates[index].engine);
}

ffi::ErrorOr<std::shared_ptr<const ConvPlan>> ConvCandidates::Build(size_t index) const {
  const Impl::Candidate& candidate = impl_->candidates[index];
  const auto failure = [&](const ffi::Error& error) {
    return ffi::Unexpected(InContext(impl_->problem, "building a plan", error));
  };
  ffi::ErrorOr<BackendDescriptor> plan =
      DescriptorBuilder(impl_->backend, JAX_CONVGRAD_NAMED(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR))
          .Set(JAX_CONVGRAD_NAMED(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG), *candidate.config)
          .Build();
  if (plan.has_error()) return failure(plan.error());
  const ffi::ErrorOr<int64_t> bytes =
      plan->Get<int64_t>(JAX_CONVGRAD_NAMED(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
  if (bytes.has_error()) return failure(bytes.error());
  if (*bytes < 0) {
    return failure(
        ffi::Error(ffi::ErrorCode::kInternal, Text("a plan with ", *bytes, " bytes of workspace")));
  }
  return std::shared_ptr<const ConvPlan>(
      std::make_shared<DnnPlan>(impl_->backend, impl_->problem, candidate.engine, candidate.config,
                                *std::move(plan), *bytes));
}

}  // namespace jax_convgrad
