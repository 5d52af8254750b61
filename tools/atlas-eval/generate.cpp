#include "tools/atlas-eval/generate.h"

#include <future>

#include "tools/common/json.h"

namespace atlas::eval {

using engine::FinishReason;

std::string Generated::json(const tools::LocalModel& model) const {
  const tools::Json json = {
      {"model", model.info().id},
      {"prompt_tokens", prompt.size()},
      {"ids", ids},
      {"text", text},
      {"finish_reason", finish.reason == FinishReason::kStop ? "stop" : "length"}};
  return tools::json_text(json);
}

Result<Generated> generate(const tools::LocalModel& model,
                           const std::vector<engine::TokenId>& prompt, uint32_t max_tokens,
                           bool ignore_end_of_generation) {
  engine::RequestSpec spec;
  spec.prompt = prompt;
  spec.sampling.temperature = 0;
  spec.max_tokens = max_tokens;
  spec.ignore_end_of_generation = ignore_end_of_generation;
  spec.skip_special = false;

  Generated result;
  result.prompt = prompt;
  std::promise<void> ended;
  ATLAS_ASSIGN_OR_RETURN(const auto engine, model.engine());
  const auto id =
      engine->submit(std::move(spec), [&result, &ended](engine::RequestId, engine::Update update) {
        result.text += update.text;
        result.ids.insert(result.ids.end(), update.tokens.begin(), update.tokens.end());
        if (!update.finish) return;
        result.finish = std::move(*update.finish);
        ended.set_value();
      });
  if (!id) return id.error();
  ended.get_future().wait();
  if (!result.finish.error.ok()) return result.finish.error;
  return result;
}

}  // namespace atlas::eval
