#include "fake_cudnn.h"

#include <cstring>
#include <set>
#include <sstream>

namespace {

struct Descriptor {
  int type = 0;
  bool finalized = false;
  std::string text;  // the attributes in the order in which they were set
  std::map<int, std::vector<Descriptor>> children;  // copies, as of attributes that are descriptors
  int mode = 0;
  FakeEngine engine;
  std::pair<int, int64_t> setting;
};

FakeCudnn& State() {
  static FakeCudnn* const state = [] {
    auto* const made = new FakeCudnn;
    made->heuristics[CUDNN_HEUR_MODE_A].emplace_back().number = 1;
    return made;
  }();
  return *state;
}

std::set<const void*>& Alive() {
  static auto* const alive = new std::set<const void*>;
  return *alive;
}

bool Fails(const char* call, int type, int attribute) {
  const FakeCudnn& state = State();
  return state.failing_call == call && state.failing_type == type &&
         state.failing_attribute == attribute;
}

// Null, and counted, where there is none.
Descriptor* Get(const void* descriptor) {
  if (Alive().count(descriptor) == 1) {
    return const_cast<Descriptor*>(static_cast<const Descriptor*>(descriptor));
  }
  ++State().misuses;
  return nullptr;
}

template <typename T>
void Write(std::ostringstream& text, const void* elements, int64_t count) {
  for (int64_t i = 0; i < count; ++i) text << ' ' << static_cast<const T*>(elements)[i];
}

std::string Serialized(const Descriptor& descriptor) {
  return std::to_string(descriptor.type) + "{" + descriptor.text + "}";
}

// Copies numbers, as many as are asked for, and says how many there are.
template <typename To, typename From>
void Give(const std::vector<From>& from, int64_t requested, int64_t* count, void* elements) {
  if (count != nullptr) *count = static_cast<int64_t>(from.size());
  if (elements == nullptr) return;
  for (size_t i = 0; i < from.size() && static_cast<int64_t>(i) < requested; ++i) {
    static_cast<To*>(elements)[i] = static_cast<To>(from[i]);
  }
}

}  // namespace

extern "C" {

FakeCudnn* fake_cudnn() { return &State(); }

size_t cudnnGetVersion() { return State().version; }

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = reinterpret_cast<cudnnHandle_t>(new char);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete reinterpret_cast<char*>(handle);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  ++State().calls["set_stream"];
  return CUDNN_STATUS_SUCCESS;
}

const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_FAKE";
}

void cudnnGetLastErrorString(char* message, size_t max_size) {
  std::strncpy(message, State().last_error.c_str(), max_size);
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  FakeCudnn& state = State();
  const std::lock_guard<std::mutex> lock(state.mutex);
  ++state.calls["create"];
  if (Fails("create", type, 0)) return state.status;
  auto* const made = new Descriptor;
  made->type = type;
  Alive().insert(made);
  ++state.alive;
  *descriptor = made;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  FakeCudnn& state = State();
  const std::lock_guard<std::mutex> lock(state.mutex);
  Descriptor* const gone = Get(descriptor);
  if (gone == nullptr) return CUDNN_STATUS_BAD_PARAM;
  Alive().erase(gone);
  --state.alive;
  delete gone;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t raw) {
  FakeCudnn& state = State();
  const std::lock_guard<std::mutex> lock(state.mutex);
  Descriptor* const descriptor = Get(raw);
  if (descriptor == nullptr || descriptor->finalized) return CUDNN_STATUS_BAD_PARAM;
  if (Fails("finalize", descriptor->type, 0)) return state.status;
  descriptor->finalized = true;
  state.log.push_back(Serialized(*descriptor));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t raw,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  FakeCudnn& state = State();
  const std::lock_guard<std::mutex> lock(state.mutex);
  Descriptor* const descriptor = Get(raw);
  if (descriptor == nullptr || descriptor->finalized) {
    ++state.misuses;
    return CUDNN_STATUS_BAD_PARAM;
  }
  if (Fails("set", descriptor->type, name)) return state.status;
  std::ostringstream text;
  text << name << ':' << type << '=';
  switch (type) {
    case CUDNN_TYPE_INT64:
      Write<int64_t>(text, elements, count);
      break;
    case CUDNN_TYPE_FLOAT:
      Write<float>(text, elements, count);
      break;
    case CUDNN_TYPE_DOUBLE:
      Write<double>(text, elements, count);
      break;
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      for (int64_t i = 0; i < count; ++i) {
        const Descriptor* const child = Get(static_cast<void* const*>(elements)[i]);
        if (child == nullptr || !child->finalized) {
          ++state.misuses;
          return CUDNN_STATUS_BAD_PARAM;
        }
        descriptor->children[name].push_back(*child);
        text << ' ' << Serialized(*child);
        if (name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) descriptor->engine = child->engine;
      }
      break;
    case CUDNN_TYPE_VOID_PTR:
      Write<void*>(text, elements, count);
      break;
    case CUDNN_TYPE_HANDLE:
      text << " handle";
      break;
    default:  // enumerations
      Write<int>(text, elements, count);
      if (name == CUDNN_ATTR_ENGINEHEUR_MODE) descriptor->mode = *static_cast<const int*>(elements);
      break;
  }
  descriptor->text += text.str() + ";";
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t raw,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t requested,
                                       int64_t* count, void* elements) {
  FakeCudnn& state = State();
  const std::lock_guard<std::mutex> lock(state.mutex);
  const Descriptor* const descriptor = Get(raw);
  if (descriptor == nullptr || !descriptor->finalized) {
    ++state.misuses;
    return CUDNN_STATUS_BAD_PARAM;
  }
  if (Fails("get", descriptor->type, name)) return state.status;
  // Fills created descriptors.
  const auto fill = [&](size_t size, const auto& write) {
    if (count != nullptr) *count = static_cast<int64_t>(size);
    for (size_t i = 0; elements != nullptr && i < size && static_cast<int64_t>(i) < requested;
         ++i) {
      Descriptor* const target = Get(static_cast<void**>(elements)[i]);
      if (target == nullptr) return;
      write(*target, i);
      target->finalized = true;
    }
  };
  const FakeEngine& engine = descriptor->engine;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      const std::vector<FakeEngine>& engines = state.heuristics[descriptor->mode];
      fill(engines.size(), [&](Descriptor& target, size_t i) {
        target.engine = engines[i];
        target.text = "engine " + std::to_string(engines[i].number);
      });
      break;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      fill(1, [&](Descriptor& target, size_t) { target.engine = engine; });
      break;
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
      fill(engine.settings.size(),
           [&](Descriptor& target, size_t i) { target.setting = engine.settings[i]; });
      break;
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
      if (engine.workspace < 0) return CUDNN_STATUS_NOT_SUPPORTED;
      Give<int64_t>(std::vector<int64_t>{engine.workspace}, requested, count, elements);
      break;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      Give<int64_t>(std::vector<int64_t>{engine.number}, requested, count, elements);
      break;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      Give<int>(engine.numerical_notes, requested, count, elements);
      break;
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
      Give<int>(engine.behavior_notes, requested, count, elements);
      break;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE:
      Give<int>(std::vector<int>{descriptor->setting.first}, requested, count, elements);
      break;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE:
      Give<int64_t>(std::vector<int64_t>{descriptor->setting.second}, requested, count, elements);
      break;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      Give<int64_t>(std::vector<int64_t>{engine.plan_workspace}, requested, count, elements);
      break;
    default:
      return CUDNN_STATUS_BAD_PARAM;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant_pack) {
  FakeCudnn& state = State();
  const std::lock_guard<std::mutex> lock(state.mutex);
  const Descriptor* const p = Get(plan);
  const Descriptor* const pack = Get(variant_pack);
  if (p == nullptr || pack == nullptr || !p->finalized || !pack->finalized) {
    ++state.misuses;
    return CUDNN_STATUS_BAD_PARAM;
  }
  ++state.calls["execute"];
  if (Fails("execute", static_cast<int>(p->engine.number), 0)) return state.status;
  state.log.push_back("execute eng" + std::to_string(p->engine.number) + " " + Serialized(*pack));
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
