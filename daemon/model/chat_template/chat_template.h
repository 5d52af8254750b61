// Chat templates: the Jinja that models bring along to turn messages into a prompt.
// A rendered prompt knows which of its bytes came from the request, so that the tokenizer can take
// special tokens of the template as such and special tokens inside of messages as ordinary text.
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/base/status.h"

namespace atlas::model {

namespace jinja {
struct Program;
}

/// A part of a prompt. `plain`: it came from the request, so special tokens in it are plain text.
struct RenderedSegment {
  std::string text;
  bool plain;
};

/// A prompt and where the request shows in it: byte ranges [first, second), sorted, disjoint,
/// adjacent ones merged. Some templates build a special token around a word of the request
/// ('<|' + role + '|>'): then the middle of the token is plain and its ends are not.
struct RenderedPrompt {
  std::string text;
  std::vector<std::pair<size_t, size_t>> plain_ranges;

  /// The prompt cut at the borders of its plain ranges; no segment is empty.
  std::vector<RenderedSegment> segments() const;
};

/// A parsed chat template. Never changes, so that any number of threads may render it.
/// Renders as transformers does with jinja2's ImmutableSandboxedEnvironment: trim_blocks,
/// lstrip_blocks, loop controls, generation blocks, tojson, raise_exception, strftime_now.
class ChatTemplate {
 public:
  /// Errors: kInvalidArgument for bad syntax and for filters, tests, tags and functions that do
  /// not exist; kUnimplemented for what Jinja has and chat templates do not use. The message
  /// begins with: chat template 'name', line N.
  static Result<ChatTemplate> parse(std::string source, std::string name);

  /// Renders with `variables`, an object: messages, tools (null if there are none, as transformers
  /// passes it), add_generation_prompt, bos_token and so on. `trusted` names the variables whose
  /// strings are not request data (bos_token, eos_token). Every other string is, and so is
  /// whatever is derived from one.
  /// Errors: kInvalidArgument with the message of raise_exception alone, or with template, line
  /// and reason for what fails; kResourceExhausted where a limit of limits.h is passed.
  Result<RenderedPrompt> render(const nlohmann::ordered_json& variables,
                                std::span<const std::string> trusted) const;

  /// Whether the template reads a variable, attribute or key of that name: tools,
  /// enable_thinking, reasoning_content.
  bool mentions(std::string_view identifier) const;
  /// Whether the template's source has this text anywhere: markup that it teaches, for instance.
  bool contains(std::string_view text) const { return source_.find(text) != source_.npos; }

 private:
  ChatTemplate(std::string name, std::string source, std::shared_ptr<const jinja::Program> program)
      : name_(std::move(name)), source_(std::move(source)), program_(std::move(program)) {}

  std::string name_;
  std::string source_;
  std::shared_ptr<const jinja::Program> program_;
};

}  // namespace atlas::model
