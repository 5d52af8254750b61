// Errors name the template, the line and the reason; limits end what is hostile.
#include <doctest/doctest.h>

#include <thread>

#include "tests/unit/chat_template/golden.h"

using namespace atlas;
using namespace atlas::model;
using namespace atlas::model::test;

TEST_SUITE_BEGIN("chat_template");

namespace {

Status parse_error(const std::string& source) {
  const auto parsed = ChatTemplate::parse(source, "x");
  return parsed ? Status() : parsed.error();
}

Status render_error(const std::string& source, const Json& variables = Json::object()) {
  const auto result = rendered(source, variables);
  return result ? Status() : result.error();
}

std::string repeated(const std::string& text, size_t times) {
  std::string result;
  for (size_t i = 0; i < times; ++i) result += text;
  return result;
}

void check_limited(const std::string& source, const Json& variables = Json::object()) {
  CAPTURE(source.substr(0, 200));
  const Status status = render_error(source, variables);
  CHECK_MESSAGE(status.code() == Code::kResourceExhausted, status.to_string());
}

}  // namespace

TEST_CASE("errors: what does not parse is named with its line") {
  CHECK(parse_error("a\nb\n{{ x | foo }}")
            .message()
            .starts_with("chat template 'x', line 3: unknown filter 'foo': there are abs, "));
  CHECK(parse_error("{% if x is nice %}{% endif %}")
            .message()
            .starts_with("chat template 'x', line 1: unknown test 'nice': there are boolean, "));
  CHECK(parse_error("\n{{ f(1) }}").message() == "chat template 'x', line 2: unknown function 'f'");
  CHECK(parse_error("\n\n{% nope %}").message() == "chat template 'x', line 3: unknown tag 'nope'");
  CHECK(parse_error("{% for x in y %}\n\nz").message() ==
        "chat template 'x', line 3: the template ends, but 'for' of line 1 still waits for "
        "'endfor' or 'else'");
  CHECK(parse_error("{{ (1 }}").message() ==
        "chat template 'x', line 1: unexpected '}', expected ')'");
  CHECK(parse_error("\xff").message() == "chat template 'x' is not valid UTF-8");
}

TEST_CASE("errors: what Jinja has and chat templates do not use is unimplemented") {
  for (const std::string source :
       {"{% include 'a' %}", "{% block a %}{% endblock %}", "{% extends 'a' %}",
        "{% for x in y recursive %}{% endfor %}", "{% call f() %}{% endcall %}",
        "{% macro m() %}{{ caller() }}{% endmacro %}", "{{ x[1, 2] }}"}) {
    CAPTURE(source);
    CHECK(parse_error(source).code() == Code::kUnimplemented);
    CHECK(parse_error(source).message().starts_with("chat template 'x', line 1: "));
  }
  CHECK(render_error("{{ 'a'.encode() }}").code() == Code::kUnimplemented);
}

TEST_CASE("errors: what fails while rendering is named with its line") {
  CHECK(render_error("{% set a = 1 %}\n{{ a +\n 'x' }}").message() ==
        "chat template 'test', line 2: unsupported operand type(s) for +: 'int' and 'str'");
  CHECK(render_error("\n{{ messages.foo.bar }}", {{"messages", Json::object()}}).message() ==
        "chat template 'test', line 2: 'dict object' has no attribute 'foo'");
  CHECK(render_error("{% macro m(x) %}\n{{ x.a.b }}{% endmacro %}\n\n{{ m(1) }}").message() ==
        "chat template 'test', line 2: 'int object' has no attribute 'a'");
  CHECK(render_error("{{ [].append(1) }}").message() ==
        "chat template 'test', line 1: access to attribute 'append' of 'list' object is unsafe.");
}

TEST_CASE("errors: raise_exception gives its message and nothing else") {
  const Status status = render_error("\n{{ raise_exception('Roles must ' ~ 'alternate.') }}");
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message() == "Roles must alternate.");
}

TEST_CASE("errors: a request has to be an object of valid text, not nested too deep") {
  CHECK(render_error("x", Json::array()).message() ==
        "chat template 'test': the variables must be an object, not array");
  CHECK(render_error("{{ a }}", {{"a", "\xc3"}}).message() ==
        "chat template 'test': a text of the request is not valid UTF-8");
  Json deep = "leaf";
  for (int i = 0; i < 5000; ++i) deep = Json::array({std::move(deep)});
  check_limited("{{ a }}", {{"a", std::move(deep)}});
}

TEST_CASE("limits: trees and tags of a template are bounded") {
  const size_t many = 10'000;
  for (const std::string& source :
       {"{{ " + repeated("(", many) + "1" + repeated(")", many) + " }}",
        "{{ " + repeated("[", many) + repeated("]", many) + " }}",
        "{{ " + repeated("-", many) + "1 }}", "{{ " + repeated("not ", many) + "1 }}",
        "{{ x" + repeated(".a", many) + " }}", "{{ x" + repeated("[0]", many) + " }}",
        "{{ x" + repeated("|trim", many) + " }}", "{{ 1" + repeated(" + 1", many) + " }}",
        "{{ 1" + repeated(" ** 1", many) + " }}", "{{ 1" + repeated(" if 1 else 1", many) + " }}",
        "{{ 1" + repeated(" and 1", many) + " }}", "{{ x" + repeated("()", many) + " }}",
        "{% set " + repeated("(", many) + "a" + repeated(")", many) + " = 1 %}",
        repeated("{% if 1 %}", many) + repeated("{% endif %}", many),
        repeated("{% for x in y %}", many), repeated("{% set x %}", many)}) {
    CAPTURE(source.substr(0, 40));
    CHECK_FALSE(parse_error(source).ok());
  }
  // Wide is not deep.
  CHECK(outcome("{{ '' " + repeated(" ~ 'a'", 1000) + " }}") == repeated("a", 1000));
  CHECK(outcome("{% if 0 %}" + repeated("{% elif 0 %}", 1000) + "{% else %}x{% endif %}") == "x");
}

TEST_CASE("limits: macros that never end run out of depth, not of stack") {
  check_limited("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
  check_limited(
      "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}"
      "{{ a() }}");
  std::string nested = "{{ m(x + 1) }}";
  for (int i = 0; i < 60; ++i)
    nested = "{% if 1 %}{% filter trim %}" + nested + "{% endfilter %}{% endif %}";
  CHECK_FALSE(render_error("{% macro m(x) %}" + nested + "{% endmacro %}{{ m(0) }}").ok());
  check_limited("{% macro m(x=m()) %}{% endmacro %}{{ m() }}");
  check_limited("{% macro m() %}{% for x in [1] if m() %}{% endfor %}{% endmacro %}{{ m() }}");
}

TEST_CASE("limits: loops, ranges, texts and containers are bounded") {
  check_limited("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}");
  check_limited("{{ range(100001) }}");
  check_limited("{{ range(2 ** 60, 2 ** 61) }}");
  check_limited("{{ range(-(2 ** 62), 2 ** 62, 2 ** 61) }}");
  check_limited("{{ 'a' * 10 ** 15 }}");
  check_limited("{{ [1] * 10 ** 15 }}");
  check_limited("{{ 2 ** 200 }}");
  check_limited(
      "{% set n = namespace(s='0123456789') %}{% for i in range(99) %}"
      "{% set n.s = n.s ~ n.s %}{% endfor %}");
  check_limited(
      "{% set n = namespace(l=[1]) %}{% for i in range(99) %}"
      "{% set n.l = n.l + n.l %}{% endfor %}");
  check_limited(
      "{% set s = 'x' * 60000000 %}{% set n = namespace(l=[]) %}"
      "{% for i in range(99) %}{% set n.l = n.l + [s ~ i] %}{% endfor %}");
  check_limited("{% set s = 'x' * 1000000 %}{% for i in range(99) %}{{ s }}{% endfor %}");
  check_limited(
      "{% set n = namespace(l=[]) %}{% for i in range(1000) %}"
      "{% set n.l = [n.l] %}{% endfor %}{{ n.l }}");
  check_limited(
      "{% set n = namespace(l=[1]) %}{% for i in range(150) %}"
      "{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l == [n.l] }}{{ n.l | tojson }}");
  check_limited(
      "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(150) %}"
      "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}");
  check_limited("{{ ('x' * 100000).replace('', 'y' * 100000) }}");
  check_limited("{{ ('y' * 10000000).join('x' * 100) }}");
  check_limited("{{ 'x'.center(10 ** 12) }}");
  check_limited("{{ 'x'.zfill(10 ** 12) }}");
  check_limited("{{ '%999999999d' % 1 }}");
  check_limited("{{ '%.*f' % (999999999, 1.0) }}");
  check_limited("{{ '{:>999999999}'.format(1) }}");
  check_limited("{{ 'x' | indent(999999999) }}");
  check_limited("{{ [1] | tojson(indent=999999999) }}");
  check_limited("{{ ('a b ' * 9000000).split() }}");
  check_limited("{{ ('\\n' * 60000000).splitlines() }}");
  check_limited("{{ ('x' * 60000000) | list }}");
  check_limited("{{ strftime_now('%A' * 500) | length }}{{ strftime_now('%c' * 5000) }}");
}

TEST_CASE("limits: values that hold themselves are let go of and cannot be printed") {
  CHECK(outcome("{% set n = namespace() %}{% set n.n = n %}{% set n.l = [n, [n]] %}{{ n.n is "
                "defined }}") == "True");
  check_limited("{% set n = namespace() %}{% set n.n = [n] %}{{ n }}");
  CHECK(outcome("{% set n = namespace() %}{% macro m() %}x{% endmacro %}{% set n.m = m %}"
                "{% for i in [1, 2] %}{% macro k() %}{{ i }}{% endmacro %}{% set n.k = k %}"
                "{% endfor %}{{ n.m() }}{{ n.k() }}") == "x2");
  CHECK(outcome("{% set n = namespace() %}{% for i in [1, 2, 3] if i > 1 %}{% set n.l = loop %}"
                "{% break %}{% endfor %}{{ n.l.index }}{{ n.l.nextitem is defined }}") == "1False");
  // Each round's scope holds the loop of the round before.
  CHECK(outcome("{% set n = namespace(l=0) %}{% for i in range(50000) %}{% set x = n.l %}"
                "{% for j in [x] if true %}{% set n.l = loop.index %}{% endfor %}{% endfor %}"
                "{{ n.l }}") == "1");
  check_limited(
      "{% set n = namespace(l=0) %}{% for i in range(50000) %}{% set x = n.l %}"
      "{% for j in [x] if true %}{% set n.l = loop %}{% endfor %}{% endfor %}");
  CHECK(outcome("{% set n = namespace(m=0) %}{% for i in range(50000) %}{% set x = n.m %}"
                "{% macro m() %}{{ x is defined }}{% endmacro %}{% set n.m = m %}{% endfor %}"
                "{{ n.m() }}") == "True");
}

TEST_CASE("api: mentions knows variables, attributes, keys and attribute names") {
  const auto parsed = ChatTemplate::parse(
      "{% set local = 1 %}{{ tools }}{{ m.reasoning_content }}{{ m['tool_calls'] }}"
      "{{ 'thinking' in m }}{{ m.get('name') }}{{ ms | selectattr('role', 'eq', 'user') | list }}"
      "{{ ms | map(attribute='function.arguments') | list }}{{ 'enable_thinking' }}"
      "{% if documents is defined %}{% endif %}",
      "x");
  REQUIRE(parsed.has_value());
  for (const std::string_view read : {"tools", "reasoning_content", "tool_calls", "thinking",
                                      "name", "role", "function", "arguments", "documents"}) {
    CAPTURE(read);
    CHECK(parsed->mentions(read));
  }
  for (const std::string_view other : {"local", "enable_thinking", "tool", "user", ""}) {
    CAPTURE(other);
    CHECK_FALSE(parsed->mentions(other));
  }
}

TEST_CASE("api: strftime_now writes the local time") {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  CHECK(outcome("{{ strftime_now('%Y') }}") == std::to_string(1900 + local.tm_year));
  CHECK(outcome("{{ strftime_now('') }}|{{ strftime_now('100%%') }}") == "|100%");
  CHECK(outcome("{{ strftime_now('%f') | length }}{{ strftime_now('%z%Z') }}") == "6");
}

TEST_CASE("api: threads may render one template at a time") {
  const auto parsed = ChatTemplate::parse(
      "{% macro m(x) %}{{ x | upper }}{% endmacro %}{% for i in l %}{{ m('a') ~ i }}{% endfor %}",
      "x");
  REQUIRE(parsed.has_value());
  std::vector<std::string> texts(4);
  {
    std::vector<std::jthread> threads;
    for (std::string& text : texts) {
      threads.emplace_back([&] {
        for (int i = 0; i < 200; ++i) {
          const auto result = parsed->render({{"l", {1, 2, 3}}}, {});
          text = result ? result->text : result.error().to_string();
        }
      });
    }
  }
  for (const std::string& text : texts) CHECK(text == "A1A2A3");
}

TEST_SUITE_END();
