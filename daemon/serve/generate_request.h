// GenerateRequest: a completion or chat request, checked, rendered and tokenized.
// Everything here is a pure function of the body and the served models: it runs on the worker.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/serve/api_error.h"
#include "daemon/serve/control.h"
#include "daemon/serve/json.h"
#include "daemon/serve/model_text.h"
#include "daemon/serve/options.h"
#include "daemon/serve/tool_schema.h"

namespace atlas::serve {

class FieldReader;
struct KnownField;

enum class Endpoint { kCompletions, kChat };

/// The engine that a request names, with the model that it served when the request was read.
struct Target {
  std::shared_ptr<engine::Engine> engine;
  std::shared_ptr<const engine::ModelInfo> model;
};

struct Prompt {
  std::vector<engine::TokenId> ids;
  std::string text;  // only for echo
};

struct GenerateRequest {
  Endpoint endpoint = Endpoint::kCompletions;
  Target target;
  std::vector<Prompt> prompts;
  uint32_t n = 1;            // sequences a prompt
  engine::RequestSpec spec;  // without its prompt; sequence i of a prompt adds i to the seed
  bool stream = false;
  bool include_usage = false;
  bool echo = false;
  bool return_token_ids = false;
  /// Chat: tags to sort the answer by, and whether the prompt ends inside of them.
  std::optional<ReasoningTags> reasoning;
  bool reasoning_open = false;
  /// Chat: how calls of the tools are written in the answer; kNone: they are text.
  ToolFormat tool_format = ToolFormat::kNone;
  std::shared_ptr<const ToolSchema> tools;
};

/// The engine that serves `name`; without a name the default one. Errors: 404 for a name that
/// nobody serves, 503 while the model is loading, draining or failed.
Refusal find_target(const Control& control, const Json* name, Target& out);

Refusal read_completion_request(std::string_view body, const Control& control,
                                const ServeLimits& limits, GenerateRequest& out);
Refusal read_chat_request(std::string_view body, const Control& control, const ServeLimits& limits,
                          GenerateRequest& out);

/// Token ids and their context, for /tokenize.
struct TokenizeAnswer {
  std::vector<engine::TokenId> ids;
  std::vector<std::string> texts;  // if asked for
  bool with_texts = false;
  uint32_t max_model_len = 0;
};
Refusal read_tokenize_request(std::string_view body, const Control& control, TokenizeAnswer& out);
/// The text of the ids in the body of /detokenize.
Refusal read_detokenize_request(std::string_view body, const Control& control, std::string& text);

// Shared by the readers.

/// Fields that both endpoints have: model, streaming, sampling, stop, n, ids, neutral and inert
/// ones.
void read_common_fields(FieldReader& reader, const Control& control, const ServeLimits& limits,
                        GenerateRequest& out);
/// Ids in a list; every one must be in the vocabulary.
void read_token_ids(FieldReader& reader, const Json& list, std::string_view name,
                    const engine::ModelInfo& model, std::vector<engine::TokenId>& out);
/// Refuses a prompt without tokens, or one that does not fit the limits and the context.
void check_prompt(FieldReader& reader, std::string_view name, size_t prompt_tokens, bool generates,
                  const engine::ModelInfo& model, const ServeLimits& limits);

/// A chat's fields up to its rendering: messages, tools, template variables.
struct ChatPrompt {
  RenderedChat rendered;
  bool reasoning_open = false;
  ToolFormat tool_format = ToolFormat::kNone;  // of a chat whose prompt has tools
  std::shared_ptr<const ToolSchema> tools;
};
void read_chat_prompt(FieldReader& reader, const engine::ModelInfo& model,
                      const std::optional<ReasoningTags>& tags, ChatPrompt& out);
/// The messages as templates expect them. `last_content`: text of the last one.
void read_messages(FieldReader& reader, const engine::ModelInfo& model, Json& messages,
                   std::string& last_role, std::string& last_content);

/// The fields that a route knows when `control`'s first model serves it.
std::vector<KnownField> completion_fields(const Control& control);
std::vector<KnownField> chat_fields(const Control& control);

}  // namespace atlas::serve
