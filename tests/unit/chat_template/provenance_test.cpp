// Which bytes of a prompt came from the request.
#include <doctest/doctest.h>

#include "tests/unit/chat_template/golden.h"

using namespace atlas;
using namespace atlas::model;
using namespace atlas::model::test;

TEST_SUITE_BEGIN("chat_template");

namespace {

/// The prompt with its plain ranges in [brackets].
std::string marked(const std::string& source, const Json& variables,
                   const std::vector<std::string>& trusted = {"bos"}) {
  const auto result = rendered(source, variables, trusted);
  if (!result) return result.error().to_string();
  std::string text;
  for (const RenderedSegment& segment : result->segments()) {
    text += segment.plain ? "[" + segment.text + "]" : segment.text;
  }
  return text;
}

}  // namespace

TEST_CASE("provenance: literals and trusted variables are not plain, all else is") {
  const Json v = {{"bos", "<s>"}, {"m", {{"role", "user"}, {"content", "hi <s>"}}}, {"n", 5}};
  CHECK(marked("<|x|>{{ bos }}{{ m.role }}: {{ m['content'] }}{{ n }}", v) ==
        "<|x|><s>[user]: [hi <s>5]");
  CHECK(marked("{{ '<|' ~ m.role ~ '|>' }}", v) == "<|[user]|>");
  CHECK(marked("{% for k, x in m.items() %}{{ k }}={{ x }};{% endfor %}", v) ==
        "[role]=[user];[content]=[hi <s>];");
  CHECK(marked("{{ n + 1 }}{{ n > 1 }}{{ m | length }}", v) == "[6]True[2]");
}

TEST_CASE("provenance: it follows text through cuts, joins and rewriting") {
  const Json v = {{"s", " Ab,cÉ "}, {"l", {"x", "y"}}};
  CHECK(marked("{{ '<' + s + '>' }}", v) == "<[ Ab,cÉ ]>");
  CHECK(marked("{{ ('<' ~ s ~ '>') | trim('<> ') }}", v) == "[Ab,cÉ]");
  CHECK(marked("{{ ('a' ~ s)[:3] ~ (s ~ 'z')[-2:] }}", v) == "a[ A ]z");
  CHECK(marked("{{ ('ab' ~ s)[::-1] }}", v) == "[ Éc,bA ]ba");
  CHECK(marked("{{ ('é' ~ s) | upper }}{{ ('É' ~ s).lower() }}", v) == "É[ AB,CÉ ]é[ ab,cé ]");
  CHECK(marked("{{ s | replace(',', '<,>') }}", v) == "[ Ab]<,>[cÉ ]");
  CHECK(marked("{{ 'a-b' | replace('-', s) }}", v) == "a[ Ab,cÉ ]b");
  CHECK(marked("{{ s.split(',') | join('|') }}", v) == "[ Ab]|[cÉ ]");
  CHECK(marked("{{ l | join(', ') }}{{ ', '.join(l) }}", v) == "[x], [yx], [y]");
  CHECK(marked("{{ l | map('upper') | join }}{{ l | sort(reverse=true) | first }}", v) == "[XYy]");
  CHECK(marked("{{ '%s=%5s' | format('k', l[0]) }}{{ '{}:{:>3}'.format(l[1], 'k') }}", v) ==
        "k=    [xy]:  k");
  CHECK(marked("{{ ('a\n' ~ l[0]) | indent(1) }}", v) == "a\n [x]");
  CHECK(marked("{{ '<b>' | e }}{{ '<' ~ l[0] | e }}", v) == "&lt;b&gt;<[x]");
  CHECK(marked("{{ l[0] * 3 }}{{ 'x'.center(3) }}{{ l[0].center(3) }}", v) == "[xxx] x  [x] ");
  CHECK(marked("{% for c in l[0] ~ '.' %}{{ c }};{% endfor %}", v) == "[x];.;");
}

TEST_CASE("provenance: macros, blocks and namespaces keep it") {
  const Json v = {{"s", "user"}};
  CHECK(marked("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(s) }}{{ m('t') }}", v) ==
        "<[user]><t>");
  CHECK(marked("{% set b %}<{{ s }}>{% endset %}{{ b ~ b }}", v) == "<[user]><[user]>");
  CHECK(marked("{% filter upper %}<a>{{ s }}{% endfilter %}", v) == "<A>[USER]");
  CHECK(marked("{% set n = namespace(t='<') %}{% set n.t = n.t + s %}{{ n.t }}", v) == "<[user]");
  CHECK(marked("{{ s if s else 't' }}{{ none or s }}{{ s | default('t') }}", v) ==
        "[useruseruser]");
}

TEST_CASE("provenance: what is written of a container with request data is plain as a whole") {
  const Json v = {{"d", {{"k", "v"}, {"n", 1}}}, {"empty", Json::object()}};
  CHECK(marked("{{ d | tojson }}{{ empty | tojson }}", v) == "[{\"k\": \"v\", \"n\": 1}{}]");
  CHECK(marked("{{ {'a': d.k} | tojson }}{{ {'a': 'b'} | tojson }}", v) ==
        "[{\"a\": \"v\"}]{\"a\": \"b\"}");
  CHECK(marked("{{ [1, d.k] }}{{ [1, 2] }}", v) == "[[1, 'v']][1, 2]");
}

TEST_CASE("provenance: the sentinels of a conversation are plain wherever they show") {
  // Text of the request is made of one letter that no template has.
  const std::string letter = "\u16A0";
  const auto sentinel = [&](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) text += letter;
    return text;
  };
  const Json variables = {
      {"bos_token", "<s>"},
      {"eos_token", "</s>"},
      {"add_generation_prompt", true},
      {"messages",
       {{{"role", "system"}, {"content", sentinel(3)}},
        {{"role", "user"}, {"content", sentinel(5)}},
        {{"role", "assistant"}, {"content", sentinel(7)}, {"reasoning_content", sentinel(2)}},
        {{"role", "user"}, {"content", sentinel(4)}}}}};
  const Json golden = Json::parse(golden_file("conversations.json"));
  for (const auto& [file, results] : golden["results"].items()) {
    CAPTURE(file);
    const std::vector<std::string> trusted = {"bos_token", "eos_token"};
    const auto result = rendered(golden_file("templates/" + file), variables, trusted);
    REQUIRE_MESSAGE(result.has_value(), result.error().to_string());
    size_t found = 0;
    for (const RenderedSegment& segment : result->segments()) {
      size_t at = segment.text.find(letter);
      if (!segment.plain) {
        CHECK(at == std::string::npos);
        continue;
      }
      for (; at != std::string::npos; at = segment.text.find(letter, at + letter.size())) ++found;
      // What else is plain is a role, or the count of something.
      std::string rest = segment.text;
      for (size_t i = rest.find(letter); i != std::string::npos; i = rest.find(letter)) {
        rest.erase(i, letter.size());
      }
      CHECK_MESSAGE((rest.empty() || rest == "user" || rest == "system" || rest == "assistant" ||
                     rest == "4" || rest == "1" || rest == "SYSTEM" || rest == "ASSISTANT"),
                    rest);
    }
    CHECK(found >= 3 + 5 + 7 + 4);
  }
}

TEST_SUITE_END();
