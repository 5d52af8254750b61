#include "tools/atlas-quantize/report.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace atlas::quantize {

using tools::Json;

Json entry_json(const Entry& entry) {
  Json json = {{"module", entry.module},
               {"outputs", entry.n},
               {"inputs", entry.k},
               {"quantized", entry.quantized},
               {"bits_per_weight", entry.bits_per_weight},
               {"relative_error", entry.relative_error}};
  if (entry.trellis_bits != 0) json["trellis_bits"] = entry.trellis_bits;
  if (entry.proxy_error >= 0) json["proxy_error"] = entry.proxy_error;
  if (!entry.hessian.empty()) {
    json["hessian"] = entry.hessian;
    json["calibration_tokens"] = entry.tokens;
  }
  if (entry.quantized) json["seconds"] = entry.seconds;
  if (!entry.note.empty()) json["note"] = entry.note;
  return json;
}

Result<Entry> parse_entry(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    Entry entry;
    entry.module = json.at("module").get<std::string>();
    entry.n = json.at("outputs").get<uint64_t>();
    entry.k = json.at("inputs").get<uint64_t>();
    entry.quantized = json.at("quantized").get<bool>();
    entry.bits_per_weight = json.at("bits_per_weight").get<double>();
    entry.relative_error = json.at("relative_error").get<double>();
    entry.trellis_bits = json.value("trellis_bits", 0.0);
    entry.proxy_error = json.value("proxy_error", -1.0);
    entry.hessian = json.value("hessian", "");
    entry.tokens = json.value("calibration_tokens", uint64_t{0});
    entry.seconds = json.value("seconds", 0.0);
    entry.note = json.value("note", "");
    return entry;
  } catch (const Json::exception& error) {
    return data_loss("a line of the unfinished work is damaged: {}", error.what());
  }
}

double relative_error(const Matrix& weight, const Matrix& decoded) {
  double errors = 0, squares = 0;
  for (size_t i = 0; i < weight.values.size(); ++i) {
    const double w = weight.values[i], apart = w - double{decoded.values[i]};
    errors += apart * apart;
    squares += w * w;
  }
  return squares == 0 ? 0 : std::sqrt(errors / squares);
}

double Report::bits_per_quantized_weight() const {
  double bits = 0, weights = 0;
  for (const Entry& entry : entries) {
    if (!entry.quantized) continue;
    const double count = static_cast<double>(entry.n) * static_cast<double>(entry.k);
    bits += entry.bits_per_weight * count;
    weights += count;
  }
  return weights == 0 ? 0 : bits / weights;
}

double Report::bits_per_weight() const {
  double weights = 0;
  for (const Entry& entry : entries) {
    weights += static_cast<double>(entry.n) * static_cast<double>(entry.k);
  }
  return weights == 0 ? 0 : 8.0 * static_cast<double>(file_bytes) / weights;
}

namespace {

/// The name without what numbers it: "layers.*.mlp.experts.*.up_proj".
std::string family_of(const std::string& module) {
  std::string family;
  for (size_t i = 0; i < module.size(); ++i) {
    if (module[i] >= '0' && module[i] <= '9' && i > 0 && module[i - 1] == '.') {
      while (i + 1 < module.size() && module[i + 1] >= '0' && module[i + 1] <= '9') ++i;
      family += '*';
    } else {
      family += module[i];
    }
  }
  return family;
}

}  // namespace

std::string Report::json() const {
  Json json = {{"model", model},
               {"format", format},
               {"settings", settings},
               {"bits_per_quantized_weight", bits_per_quantized_weight()},
               {"bits_per_weight", bits_per_weight()},
               {"bytes", file_bytes},
               {"seconds", seconds},
               {"notes", notes},
               {"evaluation", nullptr},
               {"matrices", Json::array()}};
  if (evaluated) {
    json["evaluation"] = {{"text", evaluation.text_file},
                          {"tokens", evaluation.tokens},
                          {"perplexity", evaluation.perplexity},
                          {"source_perplexity", evaluation.source_perplexity},
                          {"kl_mean", evaluation.kl_mean},
                          {"kl_99", evaluation.kl_99},
                          {"top1_agreement", evaluation.top1_agreement}};
  }
  for (const Entry& entry : entries) json["matrices"].push_back(entry_json(entry));
  return tools::json_text(json);
}

std::string Report::text() const {
  struct Sum {
    uint64_t count = 0, proxies = 0;  // those that have a proxy error
    double error = 0, largest = 0, proxy = 0, bits = 0;
  };
  std::map<std::string, Sum> families;
  for (const Entry& entry : entries) {
    if (!entry.quantized) continue;
    Sum& sum = families[family_of(entry.module)];
    ++sum.count;
    sum.error += entry.relative_error;
    sum.largest = std::max(sum.largest, entry.relative_error);
    if (entry.proxy_error >= 0) {
      ++sum.proxies;
      sum.proxy += entry.proxy_error;
    }
    sum.bits += entry.bits_per_weight;
  }
  std::string text = fmt::format("{:<56}{:>8}{:>9}{:>10}{:>10}{:>11}\n", "linears", "count", "bits",
                                 "error", "largest", "proxy");
  for (const auto& [name, sum] : families) {
    const auto count = static_cast<double>(sum.count);
    const std::string proxy =
        sum.proxies == 0 ? "-"
                         : fmt::format("{:.3e}", sum.proxy / static_cast<double>(sum.proxies));
    text += fmt::format("{:<56}{:>8}{:>9.3f}{:>10.5f}{:>10.5f}{:>11}\n", name, sum.count,
                        sum.bits / count, sum.error / count, sum.largest, proxy);
  }
  text += fmt::format(
      "\nbits a quantized weight  {:.3f}\nbits a weight            {:.3f}\n"
      "bytes                    {}\nseconds                  {:.1f}\n",
      bits_per_quantized_weight(), bits_per_weight(), file_bytes, seconds);
  if (evaluated) {
    text += fmt::format(
        "perplexity               {:.4f}, of the source {:.4f}\n"
        "KL mean                  {:.3e} nats\nsame top-1               {:.2f} %\n",
        evaluation.perplexity, evaluation.source_perplexity, evaluation.kl_mean,
        100 * evaluation.top1_agreement);
  }
  for (const std::string& note : notes) text += "note: " + note + "\n";
  return text;
}

}  // namespace atlas::quantize
