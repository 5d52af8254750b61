#include "tools/atlas-bench/kernel_plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "daemon/exec/step_walk.h"
#include "daemon/exec/weight_loader.h"
#include "tools/atlas-bench/synthetic.h"

namespace atlas::bench {

using kernels::align_up;

namespace {

constexpr const char* kProduct = "product";
constexpr const char* kLayer = "mlp";
constexpr uint64_t kPart = 256;  // parts of a buffer begin at multiples of this

/// Tensors by module, without contents.
class Shapes final : public plan::WeightSource {
 public:
  Status add(const std::string& quant, const std::string& module, uint64_t n, uint64_t k) {
    ATLAS_ASSIGN_OR_RETURN(modules_[module], synthetic_matrix(quant, module, n, k));
    return {};
  }
  std::vector<AtlasTensor> module_tensors(const std::string& module) const override {
    std::vector<AtlasTensor> tensors;
    const auto found = modules_.find(module);
    if (found == modules_.end()) return tensors;
    for (const SyntheticTensor& one : found->second) {
      AtlasTensor& tensor = tensors.emplace_back();
      tensor.struct_size = sizeof(tensor);
      tensor.dtype = one.dtype;
      tensor.name = one.name.c_str();
      tensor.rank = static_cast<uint32_t>(one.dims.size());
      std::copy(one.dims.begin(), one.dims.end(), tensor.dims);
      tensor.bytes = one.bytes();
    }
    return tensors;
  }
  Result<AtlasTensor> tensor(const std::string& name) const override {
    return not_found("there is no tensor '{}'", name);
  }
  Status read(const AtlasTensor& tensor, uint64_t, std::span<std::byte>) const override {
    return internal_error("tensor '{}' has no contents", tensor.name);
  }
  std::string identity() const override { return "shapes"; }
  void drop_cache(const AtlasTensor&) const override {}

 private:
  std::map<std::string, std::vector<SyntheticTensor>> modules_;
};

Result<std::shared_ptr<Shapes>> shapes_of(const KernelShape& shape) {
  auto shapes = std::make_shared<Shapes>();
  if (shape.experts == 0) {
    ATLAS_RETURN_IF_ERROR(shapes->add(shape.format, kProduct, shape.n, shape.k));
    return shapes;
  }
  const std::string layer = kLayer;
  ATLAS_RETURN_IF_ERROR(shapes->add("bf16", layer + ".gate", shape.experts, shape.k));
  for (uint32_t expert = 0; expert < shape.experts; ++expert) {
    const std::string one = fmt::format("{}.experts.{}.", layer, expert);
    ATLAS_RETURN_IF_ERROR(shapes->add(shape.format, one + "gate_proj", shape.n, shape.k));
    ATLAS_RETURN_IF_ERROR(shapes->add(shape.format, one + "up_proj", shape.n, shape.k));
    ATLAS_RETURN_IF_ERROR(shapes->add(shape.format, one + "down_proj", shape.k, shape.n));
  }
  return shapes;
}

/// The product or the layer, and an attention layer that nobody runs: plans count positions in the
/// pages of one.
plan::StepProgram program_of(const KernelShape& shape) {
  plan::StepBuilder builder;
  const plan::Value x = builder.activation("x", shape.k);
  const plan::Value y = builder.activation("y", shape.experts == 0 ? shape.n : shape.k);
  if (shape.experts == 0) {
    builder.linear(x, {{kProduct, shape.n, shape.k}}, y);
  } else {
    plan::MoeOp layer;
    layer.x = x;
    layer.y = y;
    layer.module = kLayer;
    layer.experts = shape.experts;
    layer.top = shape.top;
    layer.intermediate = static_cast<uint32_t>(shape.n);
    builder.add("experts", layer);
  }
  constexpr uint32_t kHeadDim = 64;
  plan::AttentionOp attention;
  attention.backend = "gqa";
  attention.q = builder.activation("q", kHeadDim);
  attention.k = builder.activation("k", kHeadDim);
  attention.v = builder.activation("v", kHeadDim);
  attention.out = builder.activation("out", kHeadDim);
  attention.heads = attention.kv_heads = 1;
  attention.head_dim = kHeadDim;
  attention.scale = 1;
  builder.add("attention", attention);
  plan::StepProgram program = std::move(builder).take();
  program.vocab = 1;
  return program;
}

plan::Shape plan_shape(const std::vector<uint32_t>& rows) {
  plan::Shape shape;
  shape.max_sequences = 1;
  shape.context_tokens = 1;
  shape.cache_tokens = 1;
  for (const uint32_t count : rows) {
    shape.buckets.push_back({plan::StepKind::kPrefill, count, 1});
  }
  return shape;
}

/// Numbers around zero that activations could be.
std::vector<float> random_floats(size_t count) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> value(-1.7f, 1.7f);
  std::vector<float> floats(count);
  for (float& one : floats) one = value(random);
  return floats;
}

}  // namespace

std::string KernelShape::name() const {
  const std::string matrix = fmt::format("{}x{}", k, n);
  return experts == 0 ? matrix : fmt::format("{}of{}:{}", top, experts, matrix);
}

Result<std::unique_ptr<KernelDevice>> KernelDevice::open(const settings::Settings& settings) {
  auto opened = std::make_unique<KernelDevice>();
  opened->settings = settings;
  ATLAS_RETURN_IF_ERROR(app::load_plugins(settings, opened->plugins));
  ATLAS_ASSIGN_OR_RETURN(opened->device, app::open_device(settings, opened->plugins));
  ATLAS_ASSIGN_OR_RETURN(opened->info, opened->device->info());
  ATLAS_ASSIGN_OR_RETURN(opened->modules, app::load_modules(opened->device, opened->plugins.packs));
  for (const auto& plugin : opened->plugins.registry.plugins()) {
    if (plugin->descriptor().kind == plugin_host::PluginKind::kQuant) {
      opened->quant.push_back({plugin->name(), &plugin->quant()});
    } else if (plugin->descriptor().kind == plugin_host::PluginKind::kAttention) {
      opened->attention.push_back({plugin->name(), &plugin->attention()});
    }
  }
  return opened;
}

Result<std::unique_ptr<KernelPlan>> KernelPlan::build(const KernelDevice& device,
                                                      const KernelShape& shape,
                                                      const std::vector<uint32_t>& rows,
                                                      uint64_t resident_bytes) {
  ATLAS_ASSIGN_OR_RETURN(const auto shapes, shapes_of(shape));
  ATLAS_ASSIGN_OR_RETURN(Stream stream, device.device->create_stream());
  std::unique_ptr<KernelPlan> made(new KernelPlan(device, shape, std::move(stream)));
  const plan::StepProgram program = program_of(shape);
  const auto weights = synthetic_weights(shapes);
  plan::PlanInput input;
  input.platform = device.settings.platform.name;
  input.weights = weights.get();
  input.quant = device.quant;
  input.attention = device.attention;
  input.program = &program;
  input.shape = plan_shape(rows);
  ATLAS_RETURN_IF_ERROR(made->plan_steps(input, resident_bytes));
  ATLAS_RETURN_IF_ERROR(made->allocate());
  ATLAS_RETURN_IF_ERROR(exec::load_weights(
      input, made->plan_, made->buffers_, made->stream_, std::thread::hardware_concurrency(),
      [](uint64_t, uint64_t) {}, [] { return false; }));
  if (shape.experts == 0) ATLAS_RETURN_IF_ERROR(made->copy_weights());
  ATLAS_RETURN_IF_ERROR(made->fill_buffers());
  return made;
}

bool KernelPlan::routes(const plan::Record& record) {
  return record.kernel == "route" || record.kernel == "group_experts" ||
         record.kernel == "choose_experts";
}

const plan::Buffer* KernelPlan::find_buffer(const std::string& name, plan::BufferId& id) const {
  for (id = 0; id < plan_.buffers.size(); ++id) {
    if (plan_.buffers[id].name == name) return &plan_.buffers[id];
  }
  return nullptr;
}

/// Copies of a call's records: as many as there are copies of weights; or few enough calls of
/// experts for a short step, and enough for all experts to be chosen at some time.
uint32_t KernelPlan::copies(uint32_t rows) const {
  if (shape_.experts == 0) return weight_copies_;
  constexpr std::pair<uint32_t, uint32_t> kCalls[] = {{1, 48}, {2, 32}, {4, 24},
                                                      {8, 16}, {64, 8}, {512, 6}};
  for (const auto& [most, calls] : kCalls) {
    if (rows <= most) return calls;
  }
  return 4;
}

Status KernelPlan::plan_steps(const plan::PlanInput& input, uint64_t resident_bytes) {
  ATLAS_ASSIGN_OR_RETURN(plan_, plan::make_plan(input));
  ATLAS_RETURN_IF_ERROR(app::settle_kernels(device_.plugins, plan_));
  std::set<plan::BufferId> rotated;
  uint32_t parts = 0;
  if (shape_.experts == 0) {
    const plan::BufferId weight = plan_.weights.front().buffer;
    rotated.insert(weight);
    constexpr uint64_t kMostCopies = 1024;
    const uint64_t bytes = align_up(plan_.buffers[weight].bytes, kPart);
    weight_copies_ = static_cast<uint32_t>(
        std::clamp<uint64_t>((resident_bytes + bytes - 1) / bytes, 2, kMostCopies));
  }
  plan::BufferId logits = 0;
  static_cast<void>(find_buffer("experts logits", logits));
  for (plan::StepPlan& step : plan_.steps) {
    std::erase_if(step.records, [](const plan::Record& one) { return one.program_index != 0; });
    parts = std::max(parts, copies(step.bucket.rows));
    for (const plan::Record& record : step.records) {
      if (!routes(record)) continue;
      for (const AtlasRelocation& place : record.relocations) {
        const plan::BufferId id = place.target.buffer;
        if (id != plan_.control && id != logits) rotated.insert(id);
      }
    }
  }
  for (const plan::BufferId id : rotated) {
    plan::Buffer& buffer = plan_.buffers[id];
    const uint64_t part = align_up(buffer.bytes, kPart);
    rotated_.emplace_back(id, part);
    buffer.bytes = part * parts;
  }
  for (plan::StepPlan& step : plan_.steps) {
    lengths_.push_back(step.records.size());
    rotate(step, copies(step.bucket.rows));
  }
  ATLAS_ASSIGN_OR_RETURN(kernels_, exec::resolve_kernels(plan_, device_.modules));
  return {};
}

void KernelPlan::rotate(plan::StepPlan& step, uint32_t copies) const {
  const size_t length = step.records.size();
  for (uint32_t copy = 1; copy < copies; ++copy) {
    for (size_t i = 0; i < length; ++i) {
      plan::Record record = step.records[i];
      for (AtlasRelocation& place : record.relocations) {
        for (const auto& [id, part] : rotated_) {
          if (place.target.buffer == id) place.target.offset += copy * part;
        }
      }
      step.records.push_back(std::move(record));
    }
  }
}

Status KernelPlan::allocate() {
  using plan::LedgerLine;
  uint64_t bytes = 0;
  for (const plan::Buffer& buffer : plan_.buffers) bytes += buffer.bytes;
  ATLAS_ASSIGN_OR_RETURN(const DeviceInfo info, device_.device->info());
  if (bytes > info.available_bytes) {
    return resource_exhausted(
        "{} of {} needs {} MB of memory, and {} MB are free: take fewer rows, or fewer copies of "
        "weights",
        shape_.name(), shape_.format, bytes / 1000000, info.available_bytes / 1000000);
  }
  ATLAS_ASSIGN_OR_RETURN(const auto set,
                         exec::BufferSet::allocate(
                             device_.device, plan_,
                             {LedgerLine::kWeights, LedgerLine::kCache, LedgerLine::kAnchors,
                              LedgerLine::kWorkspace, LedgerLine::kControl, LedgerLine::kPinned}));
  ATLAS_ASSIGN_OR_RETURN(buffers_, exec::BufferTable::bind(plan_, {set}));
  return {};
}

Status KernelPlan::copy_weights() {
  const auto& [id, part] = rotated_.front();
  std::vector<std::byte> packed(part);
  ATLAS_RETURN_IF_ERROR(stream_.copy_to_host(packed.data(), address(id), part));
  ATLAS_RETURN_IF_ERROR(stream_.synchronize());
  for (uint32_t copy = 1; copy < weight_copies_; ++copy) {
    ATLAS_RETURN_IF_ERROR(stream_.copy_to_device(address(id) + copy * part, packed.data(), part));
  }
  return stream_.synchronize();
}

Status KernelPlan::fill_buffers() {
  for (plan::BufferId id = 0; id < plan_.buffers.size(); ++id) {
    const plan::LedgerLine line = plan_.buffers[id].line;
    if (line != plan::LedgerLine::kWorkspace && line != plan::LedgerLine::kControl) continue;
    ATLAS_RETURN_IF_ERROR(stream_.fill(address(id), 0, plan_.buffers[id].bytes));
  }
  plan::BufferId x = 0;
  const plan::Buffer* buffer = find_buffer(plan::activation_buffer_name("x"), x);
  if (buffer == nullptr) return internal_error("a plan has no buffer of its activation 'x'");
  constexpr uint64_t kSlice = 16u << 20;
  const std::vector<float> floats = random_floats(std::min(kSlice, buffer->bytes) / sizeof(float));
  for (uint64_t done = 0; done < buffer->bytes; done += kSlice) {
    ATLAS_RETURN_IF_ERROR(stream_.copy_to_device(address(x) + done, floats.data(),
                                                 std::min(kSlice, buffer->bytes - done)));
  }
  return stream_.synchronize();
}

/// All of a call but the router's product and what follows from it. The input's encoding stands
/// before the router where both take the same: it is the layer's where the layer reads it.
std::vector<size_t> KernelPlan::timed_records(const plan::StepPlan& step, size_t length) const {
  const auto touches = [](const plan::Record& record, plan::BufferId id) {
    return std::any_of(record.relocations.begin(), record.relocations.end(),
                       [&](const AtlasRelocation& place) { return place.target.buffer == id; });
  };
  size_t layer = 0;  // the first record that no choice waits for
  for (size_t i = 0; i < length; ++i) {
    if (routes(step.records[i])) layer = i + 1;
  }
  std::vector<size_t> timed;
  plan::BufferId logits = 0, x = 0;
  static_cast<void>(find_buffer("experts logits", logits));
  static_cast<void>(find_buffer(plan::activation_buffer_name("x"), x));
  for (size_t i = 0; i < layer; ++i) {
    const plan::Record& record = step.records[i];
    if (touches(record, logits) || touches(record, plan_.weights.front().buffer)) continue;
    bool read = false;
    for (size_t later = layer; later < length && !routes(record); ++later) {
      for (const AtlasRelocation& place : record.relocations) {
        const plan::BufferId id = place.target.buffer;
        read |= id != x && id != plan_.control && touches(step.records[later], id);
      }
    }
    if (read) timed.push_back(i);
  }
  for (size_t i = layer; i < length; ++i) timed.push_back(i);
  return timed;
}

Result<KernelCalls> KernelPlan::prepare(uint32_t rows) {
  KernelCalls calls;
  calls.bucket = {plan::StepKind::kPrefill, rows, 1};
  const plan::StepPlan* step = plan_.find(calls.bucket);
  if (step == nullptr) return not_found("there is no step of {} rows", rows);
  calls.length = lengths_[static_cast<size_t>(step - plan_.steps.data())];
  calls.calls = copies(rows);
  calls.timed = timed_records(*step, calls.length);
  for (const size_t i : calls.timed) calls.kernels.push_back(step->records[i].kernel);
  const uint64_t count =
      offsetof(kernels::StepControl, step) + offsetof(kernels::RowSet, row_count);
  ATLAS_RETURN_IF_ERROR(
      stream_.copy_to_device(address(plan_.control) + count, &rows, sizeof(rows)));
  const auto matrix = static_cast<double>(shape_.k * shape_.n);
  if (shape_.experts == 0) {
    calls.bytes = static_cast<double>(plan_.weights.front().parts.front().bytes);
    calls.weights = matrix;
    calls.operations = 2.0 * rows * matrix;
  } else {
    calls.operations = 6.0 * rows * shape_.top * matrix;
    ATLAS_RETURN_IF_ERROR(choose_experts(calls));
  }
  ATLAS_RETURN_IF_ERROR(stream_.synchronize());
  return calls;
}

/// Gives the router random logits and lets it choose, call by call. A single row's calls have
/// experts in turn, so that none is read twice in a row of calls.
Status KernelPlan::choose_experts(KernelCalls& calls) {
  const plan::StepPlan& step = *plan_.find(calls.bucket);
  plan::BufferId logits_id = 0, offsets_id = 0;
  if (find_buffer("experts logits", logits_id) == nullptr ||
      find_buffer("experts offsets", offsets_id) == nullptr) {
    return internal_error("the layer of experts keeps logits or offsets elsewhere");
  }
  std::mt19937 random(calls.bucket.rows);
  std::uniform_real_distribution<float> value(0.0f, 1.0f);
  std::vector<uint32_t> order(shape_.experts);
  std::iota(order.begin(), order.end(), 0);
  size_t next = order.size();
  size_t distinct_of_all = 0;
  for (uint32_t call = 0; call < calls.calls; ++call) {
    std::vector<float> logits;
    std::set<uint32_t> distinct;
    for (uint32_t row = 0; row < calls.bucket.rows; ++row) {
      if (calls.bucket.rows > 1 || next + shape_.top > order.size()) {
        std::shuffle(order.begin(), order.end(), random);
        next = 0;
      }
      const size_t first = logits.size();
      for (uint32_t e = 0; e < shape_.experts; ++e) logits.push_back(value(random));
      for (uint32_t i = 0; i < shape_.top; ++i) {
        const uint32_t expert = order[next++];
        logits[first + expert] += 8;
        distinct.insert(expert);
      }
    }
    ATLAS_RETURN_IF_ERROR(
        stream_.copy_to_device(address(logits_id), logits.data(), logits.size() * sizeof(float)));
    std::vector<size_t> records;
    for (size_t i = 0; i < calls.length; ++i) {
      const size_t record = call * calls.length + i;
      if (routes(step.records[record])) records.push_back(record);
    }
    ATLAS_ASSIGN_OR_RETURN(const StepExecutable choose, step_of(calls.bucket, records));
    ATLAS_RETURN_IF_ERROR(choose.launch(stream_));
    ATLAS_RETURN_IF_ERROR(stream_.synchronize());
    for (const auto& [id, part] : rotated_) {
      if (id == offsets_id) ATLAS_RETURN_IF_ERROR(check_choice(call * part, distinct.size()));
    }
    distinct_of_all += distinct.size();
  }
  const double share = static_cast<double>(distinct_of_all) / calls.calls;
  for (const plan::Weight& weight : plan_.weights) {
    if (weight.experts > 1) calls.bytes += share * static_cast<double>(weight.expert_bytes);
  }
  calls.weights = 3.0 * share * static_cast<double>(shape_.k * shape_.n);
  return {};
}

/// Whether the router chose what its logits say: else times would be of other work than is said.
Status KernelPlan::check_choice(uint64_t offset, size_t distinct) {
  plan::BufferId id = 0;
  static_cast<void>(find_buffer("experts offsets", id));
  std::vector<uint32_t> offsets(shape_.experts + 1);
  ATLAS_RETURN_IF_ERROR(stream_.copy_to_host(offsets.data(), address(id) + offset,
                                             offsets.size() * sizeof(uint32_t)));
  ATLAS_RETURN_IF_ERROR(stream_.synchronize());
  size_t busy = 0;
  for (uint32_t e = 0; e < shape_.experts; ++e) busy += offsets[e] < offsets[e + 1] ? 1 : 0;
  if (busy == distinct) return {};
  return internal_error("the router chose {} different experts, and its logits say {}", busy,
                        distinct);
}

Result<StepExecutable> KernelPlan::step_of(const plan::Bucket& bucket,
                                           const std::vector<size_t>& records) const {
  return exec::step_of_records(device_.device, plan_, bucket, kernels_, buffers_, records,
                               device_.info.supports_graphs ? StepMode::kGraph : StepMode::kEager);
}

Result<StepExecutable> KernelPlan::chain(const KernelCalls& calls, uint32_t count) const {
  std::vector<size_t> records;
  for (uint32_t call = 0; call < count; ++call) {
    for (const size_t i : calls.timed) records.push_back(call % calls.calls * calls.length + i);
  }
  return step_of(calls.bucket, records);
}

}  // namespace atlas::bench
