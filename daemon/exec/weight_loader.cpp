#include "daemon/exec/weight_loader.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <thread>

#include "daemon/device/abi_call.h"

namespace atlas::exec {

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

std::vector<float> to_floats(const AtlasTensor& tensor, uint64_t n) {
  std::vector<float> values(n);
  const auto* bytes = static_cast<const std::byte*>(tensor.data);
  if (tensor.dtype == ATLAS_F32) {
    std::memcpy(values.data(), bytes, n * sizeof(float));
    return values;
  }
  for (uint64_t i = 0; i < n; ++i) {
    uint16_t raw = 0;
    std::memcpy(&raw, bytes + 2 * i, sizeof(raw));
    values[i] =
        tensor.dtype == ATLAS_F16 ? half_to_float(raw) : std::bit_cast<float>(uint32_t{raw} << 16);
  }
  return values;
}

Status load_vector(const plan::PlanInput& input, const plan::Vector& vector,
                   const BufferTable& buffers, Stream& stream) {
  std::vector<float> values = vector.values;
  if (values.empty()) {
    ATLAS_ASSIGN_OR_RETURN(const AtlasTensor tensor, input.weights->tensor(vector.tensor, true));
    values = to_floats(tensor, vector.n);
    input.weights->drop_cache(tensor);
  }
  return stream.copy_to_device(buffers.at(vector.buffer).address(), values.data(),
                               values.size() * sizeof(float));
}

/// One part of one weight, cut into slices of whole row groups that threads pack side by side.
class PartLoader {
 public:
  PartLoader(const plan::PlanInput& input, const plan::Weight& weight, const plan::WeightPart& part)
      : tensors_(input.weights->module_tensors(part.module, true)), part_(part), weight_(weight) {
    const auto found =
        std::find_if(input.quant.begin(), input.quant.end(),
                     [&](const plan::QuantBackend& one) { return one.name == weight.plugin; });
    api_ = found->api;
    query_.struct_size = sizeof(query_);
    query_.tensor_count = static_cast<uint32_t>(tensors_.size());
    query_.platform = input.platform.c_str();
    query_.module = part.module.c_str();
    query_.n = part.claim.n;
    query_.k = part.claim.k;
    query_.tensors = tensors_.data();
    groups_ = part.bytes / part.claim.group_bytes;
    slice_groups_ = std::max<uint64_t>(1, kSliceBytes / part.claim.group_bytes);
  }

  Status run(AtlasAddress base, Stream& stream, uint32_t threads,
             const std::function<Status(uint64_t bytes)>& done) {
    std::vector<std::vector<std::byte>> slices(threads);
    for (uint64_t begin = 0; begin < groups_; begin += slice_groups_ * threads) {
      ATLAS_RETURN_IF_ERROR(pack_side_by_side(begin, slices));
      for (uint32_t i = 0; i < threads; ++i) {
        const uint64_t first = begin + i * slice_groups_;
        if (first >= groups_) break;
        ATLAS_RETURN_IF_ERROR(
            stream.copy_to_device(base + part_.offset + first * part_.claim.group_bytes,
                                  slices[i].data(), slices[i].size()));
        ATLAS_RETURN_IF_ERROR(done(slices[i].size()));
      }
    }
    return {};
  }

  const std::vector<AtlasTensor>& tensors() const { return tensors_; }

 private:
  Status pack_side_by_side(uint64_t begin, std::vector<std::vector<std::byte>>& slices) {
    std::mutex mutex;
    Status failed;
    const auto pack_one = [&](uint32_t i) {
      const uint64_t first = begin + i * slice_groups_;
      const uint64_t last = std::min(groups_, first + slice_groups_);
      if (first >= last) return;
      slices[i].resize((last - first) * part_.claim.group_bytes);
      Status status = abi::call(
          fmt::format("plugin '{}', packing '{}'", weight_.plugin, part_.module), api_->pack,
          &query_, &part_.claim, first, last, static_cast<void*>(slices[i].data()));
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

  std::vector<AtlasTensor> tensors_;
  const plan::WeightPart& part_;
  const plan::Weight& weight_;
  const AtlasQuantApi* api_ = nullptr;
  AtlasWeightQuery query_{};
  uint64_t groups_ = 0, slice_groups_ = 0;
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
  const auto count = [&](uint64_t bytes) {
    done += bytes;
    progress(done, total);
    return stop() ? cancelled("loading was stopped after {} of {} bytes", done, total) : Status();
  };
  for (const plan::Weight& weight : plan.weights) {
    for (const plan::WeightPart& part : weight.parts) {
      PartLoader loader(input, weight, part);
      ATLAS_RETURN_IF_ERROR(
          loader.run(buffers.at(weight.buffer).address(), stream, std::max(1u, threads), count));
      for (const AtlasTensor& tensor : loader.tensors()) input.weights->drop_cache(tensor);
    }
  }
  return stream.synchronize();
}

}  // namespace atlas::exec
