// Whole templates and small snippets, each with the outcome that jinja2 has for it.
#include "tests/unit/chat_template/golden.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace atlas;
using namespace atlas::model;
using namespace atlas::model::test;

TEST_SUITE_BEGIN("chat_template");

namespace {

/// Snippets that jinja2 renders and that are errors here, each with a message that says so.
bool fails_by_design(const std::string& source) {
  static const std::string kSources[] = {
      "{{ '\\N{BULLET}' }}",
      "{{ self }}",
      "{% for x in l recursive %}{{ x }}{% endfor %}",
      "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall %}",
      "{% macro m() %}x{% endmacro %}{{ m }}",
      "{% block a %}{% endblock %}",
      "line\n{{ nosuchfunc2() if false }}",
  };
  return std::find(std::begin(kSources), std::end(kSources), source) != std::end(kSources);
}

void check_outcome(const Json& expected, const Result<RenderedPrompt>& result) {
  if (expected.contains("output")) {
    CHECK_MESSAGE(result.has_value(), result.error().to_string());
    if (result) CHECK(result->text == expected["output"].get<std::string>());
    return;
  }
  CHECK_MESSAGE(!result.has_value(), "fails with jinja2, rendered ", result->text);
  if (result) return;
  const std::string kind = expected["error"];
  const std::string message = expected.value("message", "");
  if (kind == "TemplateError") {
    CHECK(result.error().message() == message);
    CHECK(result.error().code() == Code::kInvalidArgument);
  }
  const bool named = result.error().message().find("unknown function '") != std::string::npos;
  if (kind == "UndefinedError" && !named) {
    CHECK_MESSAGE(result.error().message().find(message) != std::string::npos,
                  result.error().message(), " should contain ", message);
  }
}

}  // namespace

TEST_CASE("golden: every snippet renders or fails as with jinja2") {
  const Json golden = Json::parse(golden_file("snippets.json"));
  REQUIRE(golden["snippets"].size() > 500);
  for (const Json& snippet : golden["snippets"]) {
    const std::string source = snippet["source"];
    CAPTURE(source);
    const auto result = rendered(source, golden["variables"]);
    if (fails_by_design(source)) {
      CHECK(snippet.contains("output"));
      CHECK_FALSE(result.has_value());
    } else {
      check_outcome(snippet, result);
    }
  }
}

TEST_CASE("golden: every template renders every conversation as with jinja2") {
  const Json golden = Json::parse(golden_file("conversations.json"));
  const std::vector<std::string> trusted = {"bos_token", "eos_token"};
  REQUIRE(golden["results"].size() >= 8);
  for (const auto& [file, results] : golden["results"].items()) {
    const auto parsed = ChatTemplate::parse(golden_file("templates/" + file), file);
    REQUIRE_MESSAGE(parsed.has_value(), parsed.error().to_string());
    REQUIRE(results.size() == golden["cases"].size());
    for (size_t i = 0; i < results.size(); ++i) {
      const std::string name = golden["cases"][i]["name"];
      CAPTURE(file);
      CAPTURE(name);
      const auto result = parsed->render(golden["cases"][i]["variables"], trusted);
      check_outcome(results[i], result);
      if (!results[i].contains("plain") || !result) continue;
      Json bounds = Json::array();
      for (const auto& [begin, end] : result->plain_ranges) {
        bounds.push_back(begin);
        bounds.push_back(end);
      }
      CHECK(bounds.dump() == results[i]["plain"].dump());
    }
  }
}

TEST_SUITE_END();
