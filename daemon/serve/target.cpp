// Which engine a request means, and what to say when there is none that could answer.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "daemon/serve/generate_request.h"
#include "daemon/serve/json_text.h"

namespace atlas::serve {
namespace {

constexpr int kRetryLoadingS = 5;

ApiError unavailable_model(const engine::EngineStats& stats) {
  ApiError error{.status = 503};
  switch (stats.state) {
    case engine::EngineState::kLoading:
      error.message =
          fmt::format("the model is loading: {}, {:.0f} %", stats.phase, stats.progress * 100);
      error.code = "loading";
      error.retry_after_s = kRetryLoadingS;
      break;
    case engine::EngineState::kDraining:
      error.message = "the model is draining and takes no new requests";
      error.code = "draining";
      error.retry_after_s = kRetryLoadingS;
      break;
    case engine::EngineState::kFailed:
      error.message = fmt::format("the model failed: {}", stats.failure);
      error.code = "engine_failed";
      break;
    case engine::EngineState::kServing:
    case engine::EngineState::kStopped:
      error.message = "the model is stopped";
      error.code = "stopped";
      break;
  }
  return error;
}

}  // namespace

Refusal find_target(const Control& control, const Json* name, Target& out) {
  if (name != nullptr && !name->is_string()) {
    return bad_field("model", fmt::format("`model` must be a string, not {}", type_word(*name)));
  }
  Refusal unavailable;
  std::string names;
  for (const auto& engine : control.engines()) {
    auto model = engine->model();
    if (model == nullptr) {
      if (!unavailable) unavailable = unavailable_model(engine->stats());
    } else if (name == nullptr || name->get_ref<const std::string&>() == model->id) {
      out = {engine, std::move(model)};
      return std::nullopt;
    } else {
      names += (names.empty() ? "" : ", ") + model->id;
    }
    // Without a name the first engine is meant, whether it is ready or not.
    if (name == nullptr) break;
  }
  if (unavailable) return unavailable;
  return ApiError{
      .status = 404,
      .message = fmt::format("no model is called \"{}\"; served are: {}",
                             to_utf8(name->get_ref<const std::string&>().substr(0, 128)), names),
      .param = "model",
      .code = "model_not_found"};
}

}  // namespace atlas::serve
