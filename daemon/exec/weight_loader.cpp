#include "daemon/exec/weight_loader.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <thread>

#include "daemon/device/abi_call.h"

namespace atlas::exec {

using kernels::align_up;

namespace {

/// Bytes that are packed at once: large enough to copy fast, small enough to stay out of the
/// ledger.
constexpr uint64_t kSliceBytes = 8u << 20;

float half_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 31u;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

Result<std::vector<float>> read_floats(const plan::WeightSource& source, const AtlasTensor& tensor,
                                       uint64_t n) {
  std::vector<float> values(n);
  if (tensor.dtype == ATLAS_F32) {
    ATLAS_RETURN_IF_ERROR(source.read(tensor, 0, std::as_writable_bytes(std::span(values))));
    return values;
  }
  std::vector<uint16_t> halves(n);
  ATLAS_RETURN_IF_ERROR(source.read(tensor, 0, std::as_writable_bytes(std::span(halves))));
  std::transform(halves.begin(), halves.end(), values.begin(), [&](uint16_t raw) {
    return tensor.dtype == ATLAS_F16 ? half_to_float(raw)
                                     : std::bit_cast<float>(uint32_t{raw} << 16);
  });
  return values;
}

Status load_vector(const plan::PlanInput& input, const plan::Vector& vector,
                   const BufferTable& buffers, Stream& stream) {
  std::vector<float> values = vector.values;
  if (values.empty()) {
    ATLAS_ASSIGN_OR_RETURN(const AtlasTensor tensor, input.weights->tensor(vector.tensor));
    ATLAS_ASSIGN_OR_RETURN(values, read_floats(*input.weights, tensor, vector.n));
    if (vector.plus != 0) {
      for (float& value : values) value += vector.plus;
    }
    input.weights->drop_cache(tensor);
  }
  return stream.copy_to_device(buffers.at(vector.buffer).address(), values.data(),
                               values.size() * sizeof(float));
}

/// A module's tensors in memory of our own, because a mapped file that is cut short ends the
/// process and not the load. One buffer serves all modules, so it is as large as the largest.
class ModuleBuffer {
 public:
  /// Reads every tensor, on `threads` threads, and points it at its bytes.
  Status read(const plan::WeightSource& source, std::vector<AtlasTensor>& tensors,
              uint32_t threads) {
    constexpr uint64_t kAlignment = 64;
    uint64_t total = 0;
    for (const AtlasTensor& tensor : tensors) total += align_up(tensor.bytes, kAlignment);
    if (total > capacity_) {
      bytes_.reset();
      capacity_ = 0;
      bytes_.reset(new (std::nothrow) std::byte[total]);
      if (bytes_ == nullptr) {
        return resource_exhausted("there is no host memory for the {} bytes of '{}'", total,
                                  tensors.front().name);
      }
      capacity_ = total;
    }
    std::vector<Piece> pieces;
    std::byte* place = bytes_.get();
    for (AtlasTensor& tensor : tensors) {
      for (uint64_t begin = 0; begin < tensor.bytes; begin += kSliceBytes) {
        pieces.push_back(
            {&tensor, begin, {place + begin, std::min(kSliceBytes, tensor.bytes - begin)}});
      }
      tensor.data = place;
      place += align_up(tensor.bytes, kAlignment);
    }
    return read_side_by_side(source, pieces, threads);
  }

 private:
  struct Piece {
    const AtlasTensor* tensor;
    uint64_t offset;
    std::span<std::byte> out;
  };

  static Status read_side_by_side(const plan::WeightSource& source,
                                  const std::vector<Piece>& pieces, uint32_t threads) {
    std::atomic<size_t> next{0};
    std::mutex mutex;
    Status failed;
    const auto read_some = [&] {
      for (size_t i = next++; i < pieces.size(); i = next++) {
        const Status status = source.read(*pieces[i].tensor, pieces[i].offset, pieces[i].out);
        if (status.ok()) continue;
        next = pieces.size();
        const std::scoped_lock lock(mutex);
        if (failed.ok()) failed = status;
      }
    };
    std::vector<std::jthread> workers;
    for (size_t i = 1; i < std::min<size_t>(threads, pieces.size()); ++i) {
      workers.emplace_back(read_some);
    }
    read_some();
    workers.clear();  // joins
    return failed;
  }

  std::unique_ptr<std::byte[]> bytes_;
  uint64_t capacity_ = 0;
};

/// One part of one weight, cut into slices of whole row groups that threads pack side by side.
class PartLoader {
 public:
  /// `tensors`: the part's module, with its bytes.
  PartLoader(const plan::PlanInput& input, const plan::Weight& weight, const plan::WeightPart& part,
             std::span<const AtlasTensor> tensors)
      : part_(part), weight_(weight) {
    const auto found =
        std::find_if(input.quant.begin(), input.quant.end(),
                     [&](const plan::QuantBackend& one) { return one.name == weight.plugin; });
    api_ = found->api;
    query_.struct_size = sizeof(query_);
    query_.tensor_count = static_cast<uint32_t>(tensors.size());
    query_.platform = input.platform.c_str();
    query_.module = part.module.c_str();
    query_.n = part.claim.n;
    query_.k = part.claim.k;
    query_.tensors = tensors.data();
    groups_ = (part.bytes - part.claim.head_bytes) / part.claim.group_bytes;
    slice_groups_ = std::max<uint64_t>(1, kSliceBytes / part.claim.group_bytes);
  }

  /// Packs the whole part, which is a slice or less, into `out`.
  Status pack_whole(std::vector<std::byte>& out) const { return pack(0, groups_, out); }

  Status run(AtlasAddress base, Stream& stream, uint32_t threads,
             const std::function<Status(uint64_t bytes)>& done) {
    std::vector<std::vector<std::byte>> slices(threads);
    for (uint64_t begin = 0; begin < groups_; begin += slice_groups_ * threads) {
      ATLAS_RETURN_IF_ERROR(pack_side_by_side(begin, slices));
      for (uint32_t i = 0; i < threads; ++i) {
        const uint64_t first = begin + i * slice_groups_;
        if (first >= groups_) break;
        ATLAS_RETURN_IF_ERROR(stream.copy_to_device(base + part_.offset + place(first),
                                                    slices[i].data(), slices[i].size()));
        ATLAS_RETURN_IF_ERROR(done(slices[i].size()));
      }
    }
    return {};
  }

 private:
  /// Where group `group` begins in the part; the first brings the head.
  uint64_t place(uint64_t group) const {
    return group == 0 ? 0 : part_.claim.head_bytes + group * part_.claim.group_bytes;
  }

  Status pack(uint64_t first, uint64_t last, std::vector<std::byte>& out) const {
    out.resize(place(last) - place(first));
    return abi::call(fmt::format("plugin '{}', packing '{}'", weight_.plugin, part_.module),
                     api_->pack, &query_, &part_.claim, first, last,
                     static_cast<void*>(out.data()));
  }

  Status pack_side_by_side(uint64_t begin, std::vector<std::vector<std::byte>>& slices) {
    std::mutex mutex;
    Status failed;
    const auto pack_one = [&](uint32_t i) {
      const uint64_t first = begin + i * slice_groups_;
      const uint64_t last = std::min(groups_, first + slice_groups_);
      if (first >= last) return;
      const Status status = pack(first, last, slices[i]);
      const std::scoped_lock lock(mutex);
      if (!status.ok()) failed = status;
    };
    std::vector<std::jthread> workers;
    for (uint32_t i = 1; i < slices.size() && begin + i * slice_groups_ < groups_; ++i) {
      workers.emplace_back(pack_one, i);
    }
    pack_one(0);
    workers.clear();  // joins
    return failed;
  }

  const plan::WeightPart& part_;
  const plan::Weight& weight_;
  const AtlasQuantApi* api_ = nullptr;
  AtlasWeightQuery query_{};
  uint64_t groups_ = 0, slice_groups_ = 0;
};

/// All weights of a plan. A large part is read and packed by all threads together; small ones, as
/// experts are, side by side, a thread each.
class Loader {
 public:
  Loader(const plan::PlanInput& input, const BufferTable& buffers, Stream& stream, uint32_t threads,
         std::function<Status(uint64_t bytes)> done)
      : input_(input),
        buffers_(buffers),
        stream_(stream),
        threads_(threads),
        done_(std::move(done)) {}

  Status run(const plan::Plan& plan) {
    std::vector<Part> small;
    for (const plan::Weight& weight : plan.weights) {
      for (const plan::WeightPart& part : weight.parts) {
        if (part.bytes <= kSliceBytes) {
          small.push_back({&weight, &part});
          continue;
        }
        ATLAS_RETURN_IF_ERROR(load_large({&weight, &part}));
      }
    }
    return load_small(small);
  }

 private:
  struct Part {
    const plan::Weight* weight;
    const plan::WeightPart* part;
  };

  AtlasAddress base(const Part& one) const { return buffers_.at(one.weight->buffer).address(); }

  Status load_large(const Part& one) {
    std::vector<AtlasTensor> tensors = input_.weights->module_tensors(one.part->module);
    ATLAS_RETURN_IF_ERROR(module_.read(*input_.weights, tensors, threads_));
    PartLoader loader(input_, *one.weight, *one.part, tensors);
    ATLAS_RETURN_IF_ERROR(loader.run(base(one), stream_, threads_, done_));
    for (const AtlasTensor& tensor : tensors) input_.weights->drop_cache(tensor);
    return {};
  }

  Status load_small(const std::vector<Part>& parts) {
    std::atomic<size_t> next{0};
    std::mutex mutex;  // one thread at a time has the stream
    Status failed;
    const auto load_some = [&] {
      ModuleBuffer module;
      std::vector<std::byte> packed;
      for (size_t i = next++; i < parts.size(); i = next++) {
        Status status = pack_small(parts[i], module, packed);
        const std::scoped_lock lock(mutex);
        if (status.ok()) {
          status = stream_.copy_to_device(base(parts[i]) + parts[i].part->offset, packed.data(),
                                          packed.size());
        }
        if (status.ok()) status = done_(packed.size());
        if (status.ok()) continue;
        next = parts.size();
        if (failed.ok()) failed = status;
      }
    };
    std::vector<std::jthread> workers;
    for (size_t i = 1; i < std::min<size_t>(threads_, parts.size()); ++i) {
      workers.emplace_back(load_some);
    }
    load_some();
    workers.clear();  // joins
    return failed;
  }

  Status pack_small(const Part& one, ModuleBuffer& module, std::vector<std::byte>& packed) const {
    std::vector<AtlasTensor> tensors = input_.weights->module_tensors(one.part->module);
    ATLAS_RETURN_IF_ERROR(module.read(*input_.weights, tensors, 1));
    ATLAS_RETURN_IF_ERROR(PartLoader(input_, *one.weight, *one.part, tensors).pack_whole(packed));
    for (const AtlasTensor& tensor : tensors) input_.weights->drop_cache(tensor);
    return {};
  }

  const plan::PlanInput& input_;
  const BufferTable& buffers_;
  Stream& stream_;
  uint32_t threads_;
  std::function<Status(uint64_t bytes)> done_;
  ModuleBuffer module_;
};

}  // namespace

Status load_weights(const plan::PlanInput& input, const plan::Plan& plan,
                    const BufferTable& buffers, Stream& stream, uint32_t threads,
                    const LoadProgress& progress, const std::function<bool()>& stop) {
  uint64_t total = 0, done = 0;
  for (const plan::Weight& weight : plan.weights) total += buffers.at(weight.buffer).bytes();
  for (const plan::Vector& vector : plan.vectors) {
    ATLAS_RETURN_IF_ERROR(load_vector(input, vector, buffers, stream));
  }
  for (const plan::Constant& constant : plan.constants) {
    ATLAS_RETURN_IF_ERROR(stream.copy_to_device(buffers.at(constant.buffer).address(),
                                                constant.bytes.data(), constant.bytes.size()));
  }
  const auto count = [&](uint64_t bytes) {
    done += bytes;
    progress(done, total);
    return stop() ? cancelled("loading was stopped after {} of {} bytes", done, total) : Status();
  };
  ATLAS_RETURN_IF_ERROR(Loader(input, buffers, stream, std::max(1u, threads), count).run(plan));
  return stream.synchronize();
}

}  // namespace atlas::exec
