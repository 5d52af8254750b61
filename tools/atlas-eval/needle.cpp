#include "tools/atlas-eval/needle.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string_view>

#include "daemon/model/tokenizer/tokenizer.h"
#include "tools/common/json.h"

namespace atlas::eval {

using tools::Json;
using Clock = std::chrono::steady_clock;

// ---- The file
// ----------------------------------------------------------------------------------

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

Result<Needle> needle_of(const Json& json, size_t line) {
  if (!json.is_object()) return invalid_argument("it is no JSON object");
  Needle needle;
  needle.id = std::to_string(line);
  for (auto [key, text] : {std::pair("prompt", &needle.prompt), {"answer", &needle.answer}}) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_string() || found->get_ref<const std::string&>().empty())
      return invalid_argument("'{}' must be a text that is not empty", key);
    *text = found->get<std::string>();
  }
  if (const auto id = json.find("id"); id != json.end()) {
    needle.id = id->is_string() ? id->get<std::string>() : id->dump();
  }
  if (const auto tokens = json.find("tokens"); tokens != json.end()) {
    if (!tokens->is_number_unsigned() || tokens->get<uint64_t>() > ~0u) {
      return invalid_argument("'tokens' must be a number of tokens");
    }
    needle.tokens = tokens->get<uint32_t>();
  }
  if (const auto depth = json.find("depth"); depth != json.end()) {
    if (!depth->is_number() || !(depth->get<double>() >= 0 && depth->get<double>() <= 1)) {
      return invalid_argument("'depth' must be a number from 0 to 1");
    }
    needle.depth = depth->get<double>();
  }
  if (const auto reference = json.find("reference_correct"); reference != json.end()) {
    if (!reference->is_boolean()) {
      return invalid_argument("'reference_correct' must be true or false");
    }
    needle.reference_correct = reference->get<bool>();
  }
  return needle;
}

}  // namespace

Result<std::vector<Needle>> parse_needles(const std::string& text, const std::string& name) {
  std::vector<Needle> needles;
  size_t line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view part(text.data() + begin, end - begin);
    begin = end + 1;
    ++line;
    if (part.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Json json = Json::parse(part, nullptr, false);
    auto needle = json.is_discarded() ? Result<Needle>(invalid_argument("it is no JSON object"))
                                      : needle_of(json, line);
    if (!needle) return needle.error().with_context(fmt::format("{}, line {}", name, line));
    needles.push_back(std::move(*needle));
  }
  if (needles.empty()) return invalid_argument("{} has no line with a needle", name);
  return needles;
}

bool holds_answer(const std::string& reply, const std::string& answer) {
  for (size_t at = reply.find(answer); at != std::string::npos; at = reply.find(answer, at + 1)) {
    const size_t end = at + answer.size();
    const bool goes_on_before = at > 0 && is_digit(reply[at - 1]) && is_digit(answer.front());
    const bool goes_on_after =
        end < reply.size() && is_digit(reply[end]) && is_digit(answer.back());
    if (!goes_on_before && !goes_on_after) return true;
  }
  return false;
}

// ---- The answers
// -------------------------------------------------------------------------------

std::vector<EncodedNeedle> encode_needles(const std::vector<Needle>& needles,
                                          const model::Tokenizer& tokenizer) {
  std::vector<EncodedNeedle> encoded;
  for (const Needle& needle : needles) {
    encoded.push_back({needle, tokenizer.encode(needle.prompt, {.parse_special = true,
                                                                .add_bos_as_model_says = true})});
  }
  return encoded;
}

namespace {

/// Requests on their way. Their sinks keep it alive, and the engine ends them before it is gone.
struct Flight {
  struct Reply {
    std::string text;
    Status error;
  };
  std::mutex mutex;
  std::condition_variable changed;
  uint32_t running = 0;
  bool failed = false;
  std::vector<Reply> replies;
};

}  // namespace

Result<NeedleScore> answer_needles(const tools::LocalModel& model,
                                   const std::vector<EncodedNeedle>& needles, uint32_t max_tokens,
                                   uint32_t at_once) {
  for (const EncodedNeedle& one : needles) {
    ATLAS_RETURN_IF_ERROR(model.check_length(fmt::format("needle {}", one.needle.id),
                                             one.ids.size() + uint64_t{max_tokens}));
  }
  const auto flight = std::make_shared<Flight>();
  flight->replies.resize(needles.size());
  ATLAS_ASSIGN_OR_RETURN(const auto engine, model.engine());
  const auto start = Clock::now();
  for (size_t i = 0; i < needles.size(); ++i) {
    {
      std::unique_lock lock(flight->mutex);
      flight->changed.wait(lock, [&] { return flight->running < std::max(1u, at_once); });
      if (flight->failed) break;
      ++flight->running;
    }
    engine::RequestSpec spec;
    spec.prompt = needles[i].ids;
    spec.sampling.temperature = 0;
    spec.max_tokens = max_tokens;
    const auto id =
        engine->submit(std::move(spec), [flight, i](engine::RequestId, engine::Update update) {
          const std::lock_guard lock(flight->mutex);
          flight->replies[i].text += update.text;
          if (!update.finish) return;
          flight->replies[i].error = std::move(update.finish->error);
          flight->failed |= !flight->replies[i].error.ok();
          --flight->running;
          flight->changed.notify_all();
        });
    if (!id) return id.error().with_context(fmt::format("needle {}", needles[i].needle.id));
  }
  std::unique_lock lock(flight->mutex);
  flight->changed.wait(lock, [&] { return flight->running == 0; });
  NeedleScore score;
  score.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (size_t i = 0; i < needles.size(); ++i) {
    const Flight::Reply& reply = flight->replies[i];
    const Needle& needle = needles[i].needle;
    if (!reply.error.ok()) return reply.error.with_context(fmt::format("needle {}", needle.id));
    score.answers.push_back({needle, static_cast<uint32_t>(needles[i].ids.size()), reply.text,
                             holds_answer(reply.text, needle.answer)});
  }
  return score;
}

// ---- The report
// --------------------------------------------------------------------------------

size_t NeedleScore::right() const {
  return static_cast<size_t>(
      std::count_if(answers.begin(), answers.end(), [](const auto& one) { return one.right; }));
}

namespace {

/// Columns of the table: fifths of the depth.
constexpr uint32_t kFifths = 5;

struct Cell {
  uint32_t right = 0, of = 0;
  void add(bool is_right) {
    right += is_right ? 1 : 0;
    ++of;
  }
  std::string text() const { return of == 0 ? "-" : fmt::format("{}/{}", right, of); }
};

/// Prompts from `from` tokens on, up to twice as many.
std::string table(const std::vector<NeedleAnswer>& answers) {
  std::map<uint32_t, std::array<Cell, kFifths + 1>> rows;  // the last column: all depths
  for (const NeedleAnswer& one : answers) {
    uint32_t from = 1;
    while (from <= one.prompt_tokens / 2) from *= 2;
    auto& cells = rows[from];
    cells[kFifths].add(one.right);
    if (!one.needle.depth) continue;
    const auto fifth = static_cast<uint32_t>(*one.needle.depth * kFifths);
    cells[std::min(fifth, kFifths - 1)].add(one.right);
  }
  std::string text = fmt::format("{:<14}", "tokens");
  for (uint32_t i = 0; i < kFifths; ++i) {
    text += fmt::format("{:>10}", fmt::format("{:.1f}-{:.1f}", i / 5.0, (i + 1) / 5.0));
  }
  text += fmt::format("{:>10}\n", "all");
  for (const auto& [from, cells] : rows) {
    text += fmt::format("{:<14}", fmt::format("{}-{}", from, 2 * uint64_t{from} - 1));
    for (const Cell& cell : cells) text += fmt::format("{:>10}", cell.text());
    text += "\n";
  }
  return text;
}

/// The reply on one line.
std::string shown(const std::string& reply) {
  return Json(reply).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string NeedleScore::text() const {
  std::string text = table(answers);
  text += fmt::format("right          {} of {}\n", right(), answers.size());
  size_t known = 0, reference = 0, lengths = 0;
  std::string differences;
  for (const NeedleAnswer& one : answers) {
    known += one.needle.reference_correct ? 1 : 0;
    reference += one.needle.reference_correct.value_or(false) ? 1 : 0;
    lengths += one.needle.tokens && *one.needle.tokens != one.prompt_tokens ? 1 : 0;
    if (!one.differs()) continue;
    differences += fmt::format("  needle {} ({} tokens): {}, the reference is {}: {}\n",
                               one.needle.id, one.prompt_tokens, one.right ? "right" : "wrong",
                               one.right ? "wrong" : "right", shown(one.reply));
  }
  if (known > 0) {
    text += fmt::format("reference      {} of {}, {}\n", reference, known,
                        differences.empty() ? "the same ones" : "and these differ:");
  }
  text += differences;
  if (lengths > 0) {
    text += fmt::format("{} prompts have another number of tokens than the file says\n", lengths);
  }
  return text + fmt::format("seconds        {:.1f}\n", seconds);
}

std::string NeedleScore::json(const tools::LocalModel& model) const {
  Json json = {{"model", model.info().id}, {"right", right()},
               {"of", answers.size()},     {"differ_from_reference", Json::array()},
               {"seconds", seconds},       {"needles", Json::array()}};
  for (const NeedleAnswer& one : answers) {
    if (one.differs()) json["differ_from_reference"].push_back(one.needle.id);
    Json needle = {{"id", one.needle.id},
                   {"prompt_tokens", one.prompt_tokens},
                   {"answer", one.needle.answer},
                   {"reply", one.reply},
                   {"right", one.right}};
    if (one.needle.depth) needle["depth"] = *one.needle.depth;
    if (one.needle.reference_correct) needle["reference_correct"] = *one.needle.reference_correct;
    json["needles"].push_back(std::move(needle));
  }
  return tools::json_text(json);
}

}  // namespace atlas::eval
