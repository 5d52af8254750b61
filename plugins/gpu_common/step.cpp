// Checks that the device can run each launch, then keeps the list or makes a graph of it.
#include "plugins/gpu_common/step.h"

#include <algorithm>
#include <mutex>

#include "plugins/gpu_common/stream.h"
#include "plugins/sdk/guard.h"

namespace atlas::gpu {
namespace {

using sdk::Failure;

std::string sides(const uint32_t (&side)[3]) {
  return std::to_string(side[0]) + " x " + std::to_string(side[1]) + " x " +
         std::to_string(side[2]);
}

bool fits(const uint32_t (&side)[3], const uint32_t (&most)[3]) {
  return side[0] <= most[0] && side[1] <= most[1] && side[2] <= most[2];
}

/// Why the device cannot run a launch; empty: it can.
std::string obstacle(const AtlasLaunch& launch, const Kernel& kernel, const Facts& facts) {
  const uint64_t threads = uint64_t{launch.block[0]} * launch.block[1] * launch.block[2];
  const uint32_t most_threads = std::min(kernel.max_block_threads, facts.max_block_threads);
  if (threads == 0) return "has a block of 0 threads";
  if (threads > most_threads || !fits(launch.block, facts.max_block)) {
    return "has blocks of " + sides(launch.block) + " threads; its kernel takes at most " +
           std::to_string(most_threads) + ", in " + sides(facts.max_block) + " at most";
  }
  if (!fits(launch.grid, facts.max_grid)) {
    return "has a grid of " + sides(launch.grid) + " blocks; the device takes at most " +
           sides(facts.max_grid);
  }
  for (int side = 0; side < 3 && facts.max_grid_threads != 0; ++side) {
    if (uint64_t{launch.grid[side]} * launch.block[side] > facts.max_grid_threads) {
      return "has a grid of " + sides(launch.grid) + " blocks of " + sides(launch.block) +
             " threads; the device takes at most " + std::to_string(facts.max_grid_threads) +
             " threads along a side";
    }
  }
  if (uint64_t{launch.shared_bytes} + kernel.static_shared_bytes > facts.most_shared_bytes) {
    return "asks for " + std::to_string(launch.shared_bytes) + " bytes of shared memory beside " +
           std::to_string(kernel.static_shared_bytes) + " of its kernel's own; a block has " +
           std::to_string(facts.most_shared_bytes);
  }
  if (kernel.params_bytes != 0 && launch.params_size != kernel.params_bytes) {
    return "has " + std::to_string(launch.params_size) + " bytes of parameters; its kernel takes " +
           std::to_string(kernel.params_bytes);
  }
  return {};
}

/// Unmakes a graph under construction.
struct Graph {
  Runtime& runtime;
  void* handle = nullptr;
  ~Graph() {
    if (handle != nullptr) (void)runtime.graph_destroy(handle);
  }
};

}  // namespace

Step::Step(Device& device, const AtlasLaunch* launches, uint32_t count, AtlasStepMode mode)
    : device_(device) {
  device.enter();
  const sdk::LaunchList list(launches, count, mode, [&](AtlasKernel kernel) {
    return device.find_kernel(kernel) != nullptr;
  });
  if (mode == ATLAS_STEP_GRAPH && device.options().check_launches) {
    throw Failure(ATLAS_UNIMPLEMENTED,
                  "there are no graphs with platform option check_launches, which waits for each "
                  "launch");
  }
  shapes_.reserve(count);
  for (uint32_t i = 0; i < count; ++i) add(list[i], i);
  text_ = std::make_shared<const std::string>(
      (mode == ATLAS_STEP_GRAPH ? "the graph of " : "the step of ") + std::to_string(count) +
      (count == 1 ? " launch, '" + names_.front() + "'"
                  : " launches from '" + names_.front() + "' to '" + names_.back() + "'"));
  if (mode != ATLAS_STEP_GRAPH) return;
  build_graph(list);
  // The graph holds copies of all of it.
  shapes_ = {};
  names_ = {};
  params_ = {};
}

Step::~Step() {
  if (executable_ == nullptr || device_.is_lost()) return;
  if (device_.runtime().bind().result == 0) (void)device_.runtime().graph_release(executable_);
}

std::string Step::name_of(uint32_t index) const {
  return "launch " + std::to_string(index) + " (" + names_[index] + ")";
}

void Step::add(const AtlasLaunch& launch, uint32_t index) {
  LoadedKernel& loaded = *device_.find_kernel(launch.kernel);
  names_.push_back(launch.name == nullptr || *launch.name == '\0' ? loaded.name : launch.name);
  const Facts& facts = device_.runtime().facts();
  if (const std::string why = obstacle(launch, loaded.kernel, facts); !why.empty()) {
    throw Failure(ATLAS_INVALID_ARGUMENT, name_of(index) + " " + why);
  }
  if (launch.shared_bytes + loaded.kernel.static_shared_bytes > facts.shared_bytes) {
    const std::lock_guard lock(device_.mutex());
    if (launch.shared_bytes > loaded.allowed_shared_bytes) {
      device_.check(device_.runtime().allow_shared(loaded.kernel.handle, launch.shared_bytes), [&] {
        return std::to_string(launch.shared_bytes) + " bytes of " + name_of(index);
      });
      loaded.allowed_shared_bytes = launch.shared_bytes;
    }
  }
  // A kernel reads one struct, whatever its size: never less than a byte is there.
  std::vector<std::byte> params(std::max(launch.params_size, 1u));
  const auto* bytes = static_cast<const std::byte*>(launch.params);
  std::copy(bytes, bytes + launch.params_size, params.begin());
  params_.push_back(std::move(params));
  Shape shape{loaded.kernel.handle, {}, {}, launch.shared_bytes, params_.back().data(),
              loaded.kernel.waits};
  std::copy(launch.grid, launch.grid + 3, shape.grid);
  std::copy(launch.block, launch.block + 3, shape.block);
  shapes_.push_back(shape);
}

void Step::build_graph(const sdk::LaunchList& list) {
  Runtime& runtime = device_.runtime();
  Graph graph{runtime};
  device_.check(runtime.graph_create(&graph.handle), [this] { return *text_; });
  std::vector<void*> nodes(shapes_.size());
  for (uint32_t i = 0; i < shapes_.size(); ++i) {
    std::vector<Edge> edges;
    // A kernel that begins early ends after all that it follows has ended, as it waits for that: so
    // what follows it, early or not, follows those as well.
    for (const uint32_t before : list.after(i)) edges.push_back({nodes[before], shapes_[i].waits});
    device_.check(runtime.graph_add(graph.handle, edges, shapes_[i], &nodes[i]),
                  [&] { return name_of(i); });
  }
  device_.check(runtime.graph_instantiate(graph.handle, &executable_), [this] { return *text_; });
  // Sends the graph's own data to the device now, where the first launch would.
  try {
    Queue queue(device_);
    device_.check(runtime.graph_upload(executable_, queue.handle()), [this] { return *text_; });
    queue.drain();
  } catch (...) {
    if (!device_.is_lost()) (void)runtime.graph_release(executable_);
    throw;
  }
}

void Step::launch(void* stream) {
  Runtime& runtime = device_.runtime();
  // Before the launch, which may be told of a fault of its own first records.
  device_.note_step(text_);
  if (executable_ != nullptr) {
    device_.check(runtime.graph_launch(executable_, stream), [this] { return *text_; });
    return;
  }
  const bool checked = device_.options().check_launches;
  for (uint32_t i = 0; i < shapes_.size(); ++i) {
    device_.check(runtime.launch(shapes_[i], stream), [&] { return name_of(i); });
    if (!checked) continue;
    device_.wait([&] { return runtime.stream_query(stream); }, kForever,
                 [&] { return name_of(i) + " of " + *text_; });
  }
}

}  // namespace atlas::gpu
