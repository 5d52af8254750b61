#include "tools/atlas-quantize/job.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>

#include "daemon/model/checkpoint/dtype.h"
#include "tools/atlas-eval/divergence.h"
#include "tools/atlas-quantize/calibration.h"
#include "tools/atlas-quantize/exl3.h"
#include "tools/atlas-quantize/export_files.h"
#include "tools/atlas-quantize/fp8.h"
#include "tools/atlas-quantize/number_codes.h"
#include "tools/atlas-quantize/progress.h"
#include "tools/atlas-quantize/safetensors_writer.h"
#include "tools/atlas-quantize/unfinished.h"
#include "tools/common/files.h"

namespace atlas::quantize {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using tools::Json;

namespace {

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// What a carried tensor is written as: bf16, or as it is. A vector of float32 stays one unless
/// bf16 holds its values exactly.
struct Carried {
  PlannedTensor tensor;
  double error = 0;
};

bool is_exact_bf16(const Matrix& values) {
  return std::all_of(values.values.begin(), values.values.end(), [](float v) {
    return std::bit_cast<float>(uint32_t{bf16_from_float(v)} << 16) == v;
  });
}

std::vector<std::byte> bf16_bytes(const Matrix& values) {
  std::vector<uint16_t> bits(values.values.size());
  std::transform(values.values.begin(), values.values.end(), bits.begin(), &bf16_from_float);
  return bytes_of<uint16_t>(bits);
}

Result<Carried> carry(const Source& source, const Item& item) {
  const model::TensorInfo& tensor = *item.tensor;
  Carried out;
  out.tensor.name = tensor.name;
  out.tensor.dims.assign(tensor.shape().begin(), tensor.shape().end());
  const bool plain = tensor.dtype == ATLAS_BF16 || tensor.dtype == ATLAS_I64 ||
                     tensor.dtype == ATLAS_I32 || tensor.dtype == ATLAS_U8;
  if (plain && !source.is_gguf()) {
    out.tensor.dtype = tensor.dtype;
    out.tensor.bytes = [&source, &tensor] { return source.bytes(tensor); };
    return out;
  }
  ATLAS_ASSIGN_OR_RETURN(const Matrix values, source.read(tensor));
  if (tensor.rank < 2 && !is_exact_bf16(values)) {
    out.tensor.dtype = ATLAS_F32;
    out.tensor.bytes = [&source, &tensor]() -> Result<std::vector<std::byte>> {
      ATLAS_ASSIGN_OR_RETURN(const Matrix again, source.read(tensor));
      return bytes_of<float>(again.values);
    };
    return out;
  }
  Matrix rounded(values.rows, values.columns);
  for (size_t i = 0; i < values.values.size(); ++i) {
    rounded.values[i] = std::bit_cast<float>(uint32_t{bf16_from_float(values.values[i])} << 16);
  }
  out.error = relative_error(values, rounded);
  out.tensor.dtype = ATLAS_BF16;
  // Read again when it is written: a shard's carried tensors need not fit into memory.
  out.tensor.bytes = [&source, &tensor]() -> Result<std::vector<std::byte>> {
    ATLAS_ASSIGN_OR_RETURN(const Matrix again, source.read(tensor));
    return bf16_bytes(again);
  };
  return out;
}

uint64_t stored_bytes(const PlannedTensor& tensor) {
  return model::tensor_bytes(*model::dtype_info(tensor.dtype), tensor.dims).value_or(0);
}

/// A run while it goes on.
class Job {
 public:
  Job(const JobOptions& options, const Source& source, std::vector<Item> items, Unfinished& work)
      : o_(options),
        source_(source),
        items_(std::move(items)),
        work_(work),
        progress_(options.quiet, total_cost()) {}

  Result<Report> run() {
    const auto start = Clock::now();
    report_.resumed = work_.found();
    if (work_.found() != 0) {
      progress_.say(fmt::format("going on: {} linears are finished", work_.found()));
    }
    for (const Item& item : items_) {
      if (item.quantized && work_.find(item.module) != nullptr) progress_.skip(item.weights());
    }
    ATLAS_RETURN_IF_ERROR(begin_calibration());
    const std::vector<size_t> ends = shard_ends();
    size_t begin = 0;
    for (size_t shard = 0; shard < ends.size(); ++shard) {
      ATLAS_RETURN_IF_ERROR(write_shard(begin, ends[shard], shard, ends.size()));
      begin = ends[shard];
    }
    ATLAS_RETURN_IF_ERROR(write_rest(ends.size()));
    report_.seconds = seconds_since(start);
    return report_;
  }

 private:
  uint64_t total_cost() const {
    uint64_t cost = 0;
    for (const Item& item : items_) cost += item.quantized ? item.weights() : 0;
    return cost;
  }

  /// Where files end: after a layer, once there is enough for one.
  std::vector<size_t> shard_ends() const {
    std::vector<size_t> ends;
    uint64_t bytes = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      bytes += 2 * items_[i].weights();
      const bool layer_ends = i + 1 == items_.size() || items_[i + 1].layer != items_[i].layer;
      if (layer_ends && bytes >= o_.shard_bytes) {
        ends.push_back(i + 1);
        bytes = 0;
      }
    }
    if (ends.empty() || ends.back() != items_.size()) ends.push_back(items_.size());
    return ends;
  }

  std::string shard_name(size_t shard, size_t shards) const {
    if (shards == 1) return "model.safetensors";
    return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
  }

  Status write_shard(size_t begin, size_t end, size_t shard, size_t shards) {
    const std::string name = shard_name(shard, shards);
    const std::string path = (fs::path(o_.out) / name).string();
    std::error_code error;
    const bool whole = fs::exists(path, error);
    std::vector<PlannedTensor> tensors;
    for (size_t i = begin; i < end; ++i) {
      const Item& item = items_[i];
      if (item.quantized) {
        ATLAS_RETURN_IF_ERROR(finish_linear(item, whole));
        report_.entries.push_back(*work_.find(item.module));
        if (whole) continue;
        ATLAS_ASSIGN_OR_RETURN(std::vector<PlannedTensor> parts, work_.tensors(item.module));
        std::move(parts.begin(), parts.end(), std::back_inserter(tensors));
        continue;
      }
      ATLAS_ASSIGN_OR_RETURN(Carried carried, carry(source_, item));
      add_carried(item, carried);
      tensors.push_back(std::move(carried.tensor));
    }
    if (!whole) {
      progress_.say("writing " + name);
      ATLAS_RETURN_IF_ERROR(write_safetensors(path, std::move(tensors), {{"format", "pt"}}));
    }
    for (size_t i = begin; i < end; ++i) {
      if (items_[i].quantized) work_.drop(items_[i].module);
    }
    files_.push_back(name);
    return {};
  }

  Status finish_linear(const Item& item, bool in_finished_file) {
    if (work_.find(item.module) != nullptr) return {};
    if (in_finished_file) {
      return data_loss(
          "a finished file holds '{}', but the unfinished work does not know it: "
          "remove the folder and begin again",
          item.module);
    }
    if (o_.stop_after != 0 && finished_ == o_.stop_after) {
      return cancelled("stopped after {} linears, as asked", finished_);
    }
    ++finished_;
    told_ = 0;
    progress_.advance(0, item.module);
    const auto start = Clock::now();
    ATLAS_ASSIGN_OR_RETURN(const Matrix weight, source_.read(*item.tensor));
    Entry entry;
    ATLAS_ASSIGN_OR_RETURN(EncodedLinear linear, encode(item, weight, entry));
    entry.module = item.module;
    entry.n = item.n;
    entry.k = item.k;
    entry.quantized = true;
    entry.trellis_bits = item.bits;
    entry.bits_per_weight = linear.bits;
    entry.relative_error = relative_error(weight, linear.decoded);
    entry.proxy_error = linear.proxy_error;
    entry.note = linear.note;
    entry.seconds = seconds_since(start);
    ATLAS_RETURN_IF_ERROR(work_.keep(entry, std::move(linear.tensors)));
    progress_.advance(item.weights() - told_, item.module);
    return {};
  }

  Result<EncodedLinear> encode(const Item& item, const Matrix& weight, Entry& entry) {
    switch (o_.format) {
      case Format::kFp8:
        return encode_fp8(item.module, weight, o_.threads);
      case Format::kNvfp4:
        return encode_blocks(item, weight, entry);
      case Format::kExl3:
        return encode_trellis(item, weight, entry);
      case Format::kBf16:
        break;
    }
    return internal_error("{} quantizes nothing", format_name(o_.format));
  }

  /// What the calibration text says of the linear's inputs, if there is one.
  Result<Moments> moments_of(const Item& item, Entry& entry) {
    Moments moments;
    if (calibration_ != nullptr) {
      ATLAS_ASSIGN_OR_RETURN(moments, calibration_->moments(item.module));
    }
    entry.hessian = moments.kind;
    entry.tokens = moments.rows;
    return moments;
  }

  Result<EncodedLinear> encode_blocks(const Item& item, const Matrix& weight, Entry& entry) {
    Moments moments;
    if (calibration_ != nullptr) {
      ATLAS_ASSIGN_OR_RETURN(moments, moments_of(item, entry));
    }
    return encode_nvfp4(item.module, weight, moments, o_.nvfp4_scales, o_.threads);
  }

  Result<EncodedLinear> encode_trellis(const Item& item, const Matrix& weight, Entry& entry) {
    ATLAS_ASSIGN_OR_RETURN(const Moments moments, moments_of(item, entry));
    return encode_exl3(item.module, weight, moments,
                       {.bits = static_cast<uint32_t>(item.bits),
                        .codebook = o_.codebook,
                        .seed = o_.seed,
                        .error_feedback = o_.error_feedback,
                        .threads = o_.threads,
                        .on_part = [&](double share) { tell_part(item, share); }});
  }

  /// A head alone may take minutes.
  void tell_part(const Item& item, double share) {
    const auto done = static_cast<uint64_t>(share * static_cast<double>(item.weights()));
    progress_.advance(done - told_, item.module);
    told_ = done;
  }

  /// Opens the model for calibration if a linear is left that needs it.
  Status begin_calibration() {
    const bool used = o_.format == Format::kExl3 || o_.format == Format::kNvfp4;
    if (!used || o_.calibration.text_file.empty()) return {};
    std::vector<std::string> left;
    for (const Item& item : items_) {
      if (item.quantized && work_.find(item.module) == nullptr) left.push_back(item.module);
    }
    if (left.empty()) return {};
    CalibrationOptions options = o_.calibration;
    options.model = o_.model;
    options.threads = o_.threads;
    ATLAS_ASSIGN_OR_RETURN(calibration_, Calibration::open(options, source_));
    calibration_->expect(std::move(left));
    calibration_->on_walk = [this](uint64_t linears) {
      progress_.say(fmt::format("calibrating {} linears", linears));
    };
    calibration_->on_part = [this](double share) {
      progress_.advance(0, fmt::format("calibrating, {:.0f} %", 100 * share));
    };
    return {};
  }

  void add_carried(const Item& item, const Carried& carried) {
    if (item.weights() == 0) return;
    Entry entry;
    entry.module = item.module;
    entry.n = item.n;
    entry.k = item.k;
    entry.bits_per_weight = 8.0 * static_cast<double>(stored_bytes(carried.tensor)) /
                            static_cast<double>(item.weights());
    entry.relative_error = carried.error;
    entry.note = item.kept_because;
    report_.entries.push_back(entry);
  }

  Status write_rest(size_t shards);
  Json quantization_config() const;
  double mean_bits() const;

  const JobOptions& o_;
  const Source& source_;
  const std::vector<Item> items_;
  Unfinished& work_;
  Progress progress_;
  Report report_;
  uint64_t finished_ = 0;  // by this run
  uint64_t told_ = 0;      // to the progress, of the linear in hand
  std::unique_ptr<Calibration> calibration_;
  std::vector<std::string> files_;
};

/// What other engines read of the format; Atlas looks at the tensors and checks this against them.
Json Job::quantization_config() const {
  Json kept = Json::array();
  for (const Item& item : items_) {
    if (item.quantized || item.kept_because.empty()) continue;
    constexpr std::string_view kWeight = ".weight";
    kept.push_back(item.module.substr(0, item.module.size() - kWeight.size()));
  }
  switch (o_.format) {
    case Format::kFp8:
      return {{"quant_method", "fp8"},
              {"fmt", "e4m3"},
              {"activation_scheme", "dynamic"},
              {"weight_block_size", {128, 128}},
              {"modules_to_not_convert", kept}};
    case Format::kNvfp4:
      return {
          {"quant_method", "modelopt"},
          {"quant_algo", "W4A16_NVFP4"},
          {"kv_cache_scheme", nullptr},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights",
               {{"num_bits", 4}, {"type", "float"}, {"group_size", 16}, {"dynamic", false}}}}}}},
          {"ignore", kept},
          {"producer", {{"name", "atlas-quantize"}, {"version", ATLAS_VERSION}}}};
    case Format::kExl3:
      return {
          {"quant_method", "exl3"},
          {"version", std::string("atlas-quantize ") + ATLAS_VERSION},
          {"bits", std::round(100 * mean_bits()) / 100},
          {"head_bits", o_.bits.head_bits},
          {"calibration",
           {{"rows", (o_.calibration.tokens + o_.calibration.window - 1) / o_.calibration.window},
            {"cols", o_.calibration.window}}},
          {"out_scales", "always"},
          {"codebook", o_.codebook_name}};
    case Format::kBf16:
      break;
  }
  return {};
}

/// Mean K of the layers' linears.
double Job::mean_bits() const {
  double bits = 0, weights = 0;
  for (const Item& item : items_) {
    if (!item.quantized || item.module == "lm_head") continue;
    bits += item.bits * static_cast<double>(item.weights());
    weights += static_cast<double>(item.weights());
  }
  return weights == 0 ? 0 : bits / weights;
}

Status Job::write_rest(size_t shards) {
  const fs::path out(o_.out);
  std::map<std::string, std::string> places;
  std::error_code error;
  for (const std::string& file : files_) {
    report_.file_bytes += fs::file_size(out / file, error);
    if (shards == 1) continue;
    ATLAS_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           tensor_names((out / file).string()));
    for (const std::string& name : names) places[name] = file;
  }
  if (shards > 1) {
    ATLAS_RETURN_IF_ERROR(write_text_file((out / "model.safetensors.index.json").string(),
                                          safetensors_index(places, report_.file_bytes)));
  }
  bool tied = source_.checkpoint().config().tie_embeddings;
  // A head of its own differs from the embedding, whatever the source has.
  for (const Item& item : items_) tied = tied && item.module != "lm_head";
  ATLAS_RETURN_IF_ERROR(export_files(source_, o_.model, o_.out, quantization_config(), tied));
  for (const std::string& note : source_.checkpoint().notes()) report_.notes.push_back(note);
  return {};
}

Json settings_of(const JobOptions& options, const Source& source) {
  Json json = {{"version", ATLAS_VERSION},
               {"model", options.model},
               {"model_files", source.fingerprint()},
               {"format", format_name(options.format)},
               {"shard_bytes", options.shard_bytes}};
  if (options.format == Format::kNvfp4) json["scales"] = options.nvfp4_scales_name;
  if (options.format == Format::kExl3) {
    json["bits"] = options.bits.bits;
    json["head_bits"] = options.bits.head_bits;
    json["codebook"] = options.codebook_name;
    json["seed"] = options.seed;
    json["error_feedback"] = options.error_feedback;
  }
  const bool calibrated = !options.calibration.text_file.empty();
  if (options.format == Format::kExl3 || (options.format == Format::kNvfp4 && calibrated)) {
    json["calibration"] = options.calibration.text_file;
    json["calibration_tokens"] = options.calibration.tokens;
    json["calibration_window"] = options.calibration.window;
  }
  return json;
}

/// The settings, and when what they name was written last: work on one state of a file must not be
/// gone on with on another.
std::string identity_of(const JobOptions& options, const Source& source, Json settings) {
  std::vector<std::string> files = source.checkpoint().files();
  if (!options.calibration.text_file.empty()) files.push_back(options.calibration.text_file);
  for (const std::string& file : files) {
    std::error_code error;
    settings["written"][file] = fs::last_write_time(file, error).time_since_epoch().count();
  }
  return tools::json_text(settings);
}

Result<std::unique_ptr<tools::LocalModel>> open_model(const JobOptions& options,
                                                      const std::string& path) {
  constexpr uint32_t kRows = 128;
  tools::ModelOptions model;
  model.model = path;
  model.threads = options.threads;
  ATLAS_ASSIGN_OR_RETURN(
      const settings::Settings settings,
      tools::tool_settings(model, {.sequences = 1,
                                   .sequence_tokens = options.evaluation_window,
                                   .scored_rows = std::min(kRows, options.evaluation_window)}));
  return tools::LocalModel::open(settings, std::min(kRows, options.evaluation_window));
}

Status evaluate(const JobOptions& options, Report& report) {
  ATLAS_ASSIGN_OR_RETURN(const std::string text, tools::read_text(options.evaluation_text));
  ATLAS_ASSIGN_OR_RETURN(const auto source, open_model(options, options.model));
  ATLAS_ASSIGN_OR_RETURN(const auto made, open_model(options, options.out));
  ATLAS_ASSIGN_OR_RETURN(
      const eval::Divergence apart,
      eval::divergence(*source, *made, text, options.evaluation_window, options.evaluation_tokens));
  const auto predicted = static_cast<double>(apart.predicted);
  report.evaluated = true;
  report.evaluation = {.text_file = options.evaluation_text,
                       .tokens = apart.predicted,
                       .perplexity = std::exp(apart.against_nats / predicted),
                       .source_perplexity = std::exp(apart.nats / predicted),
                       .kl_mean = apart.mean(),
                       .kl_99 = apart.percentile(99),
                       .top1_agreement = static_cast<double>(apart.same_top()) /
                                         static_cast<double>(apart.rows.size())};
  return {};
}

}  // namespace

Result<Report> run_job(const JobOptions& options) {
  ATLAS_ASSIGN_OR_RETURN(const Source source, Source::open(options.model));
  ATLAS_ASSIGN_OR_RETURN(std::vector<Item> items,
                         make_work_list(source, options.format, options.bits));
  const Json settings = settings_of(options, source);
  ATLAS_ASSIGN_OR_RETURN(Unfinished work,
                         Unfinished::open(options.out, identity_of(options, source, settings)));
  Job job(options, source, std::move(items), work);
  ATLAS_ASSIGN_OR_RETURN(Report report, job.run());
  report.model = options.model;
  report.format = format_name(options.format);
  report.settings = settings;
  if (!options.evaluation_text.empty()) {
    // The checkpoint is whole by now: it is kept even if it cannot be evaluated.
    const Status evaluated = evaluate(options, report);
    if (!evaluated.ok()) report.notes.push_back("not evaluated: " + evaluated.message());
  }
  ATLAS_RETURN_IF_ERROR(
      write_text_file((fs::path(options.out) / "report.json").string(), report.json()));
  ATLAS_RETURN_IF_ERROR(work.finish());
  return report;
}

}  // namespace atlas::quantize
