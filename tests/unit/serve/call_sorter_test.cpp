// Tool calls in answers: every sample is fed whole, in all ways to cut it in two, and in random
// pieces, and must give the same each time.
#include "daemon/serve/call_sorter.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "daemon/serve/output_parser.h"

using namespace atlas;
using namespace atlas::serve;

TEST_SUITE_BEGIN("serve");

namespace {

struct Call {
  std::string name, arguments;
  bool operator==(const Call&) const = default;
};

struct Sample {
  const char* about;
  std::string text;
  std::string content;
  std::vector<Call> calls;
};

struct Sorted {
  std::string content;
  std::vector<Call> calls;
};

std::shared_ptr<const ToolSchema> schema() {
  static const auto tools = std::make_shared<const ToolSchema>(Json::parse(R"([
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {
      "s": {"type": "string"}, "i": {"type": "integer"}, "b": {"type": "boolean"},
      "o": {"type": "object"}, "l": {"type": "array"}, "n": {"type": ["integer", "null"]},
      "m": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "e": {"enum": ["a", "b"]},
      "x": {}, "bad": 7}}}},
    {"type": "function", "function": {"name": "bare"}}])"));
  return tools;
}

Sorted sort(ToolFormat format, const std::vector<std::string_view>& pieces) {
  auto parser = make_plain_parser(make_call_sorter(format, schema()));
  std::vector<OutputPiece> out;
  for (const std::string_view piece : pieces) parser->feed(piece, {}, out);
  parser->finish(out);
  Sorted sorted;
  for (const OutputPiece& piece : out) {
    if (piece.kind == OutputPiece::kCall) {
      sorted.calls.push_back({piece.name, piece.text});
    } else {
      sorted.content += piece.text;
    }
  }
  return sorted;
}

bool as_wanted(const Sorted& sorted, const Sample& sample) {
  return sorted.content == sample.content && sorted.calls == sample.calls;
}

void check(ToolFormat format, const Sample& sample) {
  CAPTURE(sample.about);
  const std::string_view text = sample.text;
  const Sorted whole = sort(format, {text});
  CHECK(whole.content == sample.content);
  REQUIRE(whole.calls.size() == sample.calls.size());
  for (size_t i = 0; i < whole.calls.size(); ++i) {
    CHECK(whole.calls[i].name == sample.calls[i].name);
    CHECK(whole.calls[i].arguments == sample.calls[i].arguments);
    CHECK(nlohmann::json::parse(whole.calls[i].arguments).is_object());
  }
  for (size_t at = 1; at < text.size(); ++at) {
    REQUIRE_MESSAGE(as_wanted(sort(format, {text.substr(0, at), text.substr(at)}), sample), at);
  }
  std::mt19937 random(7);
  for (size_t longest : {1, 2, 3, 5, 9, 17}) {
    for (int round = 0; round < 10; ++round) {
      std::vector<std::string_view> pieces;
      for (size_t at = 0; at < text.size(); at += pieces.back().size()) {
        pieces.push_back(text.substr(at, 1 + random() % longest));
      }
      REQUIRE_MESSAGE(as_wanted(sort(format, pieces), sample), longest);
    }
  }
}

// Text that is no call is content, byte for byte.
Sample kept(const char* about, const std::string& text) { return {about, text, text, {}}; }

std::string json_call(const std::string& object) {
  return "<tool_call>\n" + object + "\n</tool_call>";
}

std::string xml_call(const std::string& inner) {
  return "<tool_call>\n<function=f>\n" + inner + "</function>\n</tool_call>";
}

std::string argument(const std::string& name, const std::string& value) {
  return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
}

}  // namespace

TEST_CASE("calls: JSON in tags, however the text is cut") {
  const std::string call = json_call(R"({"name": "f", "arguments": {"a": 1}})");
  const Call f{"f", R"({"a": 1})"};
  const std::vector<Sample> samples = {
      {"one call", call, "", {f}},
      {"nothing around the object",
       R"(<tool_call>{"name":"f","arguments":{"a": 1}}</tool_call>)",
       "",
       {f}},
      {"text before", "Let me see.\n\n" + call, "Let me see.", {f}},
      {"text after", call + "\n\nDone.\n", "Done.\n", {f}},
      {"text on both sides keeps the newlines", "A\n" + call + "\nB", "A\n\nB", {f}},
      {"two calls", call + "\n" + call + "\n", "", {f, f}},
      {"two calls without a gap", call + call, "", {f, f}},
      {"text between two calls", call + "\nand\n" + call, "and", {f, f}},
      {"a closing tag in a string",
       json_call(R"({"name": "f", "arguments": {"a": "</tool_call>", "b": "}"}})"),
       "",
       {{"f", R"({"a": "</tool_call>", "b": "}"})"}}},
      {"a whole call in a string",
       json_call(
           R"({"name": "f", "arguments": {"a": "<tool_call>{\"name\": \"g\"}</tool_call>"}})"),
       "",
       {{"f", R"({"a": "<tool_call>{\"name\": \"g\"}</tool_call>"})"}}},
      {"escapes at the end of strings",
       json_call(R"({"name": "f", "arguments": {"a": "\\", "b": "\"}", "c": "\u007d"}})"),
       "",
       {{"f", R"({"a": "\\", "b": "\"}", "c": "\u007d"})"}}},
      {"characters of several bytes",
       "é🙂\n" + json_call(R"({"name": "f", "arguments": {"🙂": "中🙂"}})"),
       "é🙂",
       {{"f", R"({"🙂": "中🙂"})"}}},
      {"numbers keep their digits",
       json_call(R"({"name": "f", "arguments": {"a": 12345678901234567890123, "b": 1.10}})"),
       "",
       {{"f", R"({"a": 12345678901234567890123, "b": 1.10})"}}},
      {"the other order, and more keys",
       json_call(R"({"id": [{"arguments": 1}], "arguments" : {"a": 1} , "name": "f"})"),
       "",
       {f}},
      {"no arguments", json_call(R"({"name": "f"})"), "", {{"f", "{}"}}},
      {"null for arguments", json_call(R"({"name": "f", "arguments": null})"), "", {{"f", "{}"}}},
      {"arguments under their other name",
       json_call(R"({"name": "f", "parameters": {"a": 1}})"),
       "",
       {f}},
      {"arguments as a string", json_call(R"({"name": "f", "arguments": "{\"a\": 1}"})"), "", {f}},
      {"a beginning of a tag in front of the tag",
       "<tool_<tool_call" + call,
       "<tool_<tool_call",
       {f}},
      {"an opening tag in front of the call", "<tool_call>\n" + call, "<tool_call>\n", {f}},
      {"half a tag in front of the tag", "<tool_" + call, "<tool_", {f}},
      {"no closing tag in front of a whole call",
       R"(<tool_call>{"name": "g"} )" + call,
       R"(<tool_call>{"name": "g"} )",
       {f}},
      {"a broken call in front of a whole one",
       "<tool_call>{\"name\": f}</tool_call>" + call,
       "<tool_call>{\"name\": f}</tool_call>",
       {f}},
      {"a broken string in front of a whole call",
       "<tool_call>{\"name\n" + call,
       "<tool_call>{\"name\n",
       {f}},
  };
  for (const Sample& sample : samples) check(ToolFormat::kJson, sample);
}

TEST_CASE("calls: what is no whole JSON call stays content") {
  const std::string call = json_call(R"({"name": "f", "arguments": {"a": "long"}})");
  const std::vector<Sample> samples = {
      kept("empty", ""),
      kept("plain", "Hello <b>world</b> < tool_call> <tool_call >\n\n"),
      kept("newlines", "\n\nHi\n"),
      kept("a bare tag", "<tool_call>"),
      kept("words in tags", "<tool_call>f(1)</tool_call>"),
      kept("a list", json_call(R"([{"name": "f"}])")),
      kept("no name", json_call(R"({"arguments": {}})")),
      kept("an empty name", json_call(R"({"name": ""})")),
      kept("a name that is no text", json_call(R"({"name": 1})")),
      kept("arguments that are no object", json_call(R"({"name": "f", "arguments": [1]})")),
      kept("arguments in a string that is no object",
           json_call(R"({"name": "f", "arguments": "1"})")),
      kept("one brace too few", R"(<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>)"),
      kept("one brace too many", json_call(R"({"name": "f", "arguments": {}}})")),
      kept("the wrong bracket", json_call(R"({"name": "f", "arguments": {]})")),
      kept("Python's quotes", json_call(R"({'name': 'f'})")),
      kept("NaN", json_call(R"({"name": "f", "arguments": {"a": NaN}})")),
      kept("the same key twice", json_call(R"({"name": "f", "name": "g"})")),
      kept("a newline in a string",
           json_call("{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\"}}")),
      kept("something behind the object", R"(<tool_call>{"name": "f"} x</tool_call>)"),
      kept("no closing tag", R"(<tool_call>{"name": "f"})"
                             "\n"),
      kept("deeper than we read", json_call(R"({"name": "f", "arguments": )" +
                                            std::string(200, '[') + std::string(200, ']') + "}")),
      kept("the other form", xml_call(argument("s", "1"))),
  };
  for (const Sample& sample : samples) check(ToolFormat::kJson, sample);
  for (size_t bytes = 1; bytes < call.size(); ++bytes) {
    const std::string cut = "text\n" + call.substr(0, bytes);
    REQUIRE_MESSAGE(as_wanted(sort(ToolFormat::kJson, {cut}), kept("cut", cut)), cut);
  }
}

TEST_CASE("calls: XML-like tags, however the text is cut") {
  const std::string call = xml_call(argument("i", "1"));
  const Call f{"f", R"({"i": 1})"};
  const std::string inner = "</parameter>";
  const std::vector<Sample> samples = {
      {"one call", call, "", {f}},
      {"nothing between the tags",
       "<tool_call><function=f><parameter=i>1</parameter></function></tool_call>",
       "",
       {f}},
      {"no arguments", xml_call(""), "", {{"f", "{}"}}},
      {"text around", "A\n\n" + call + "\nB", "A\n\n\nB", {f}},
      {"two calls", call + "\n" + call, "", {f, f}},
      {"two arguments",
       xml_call(argument("s", "a\n b ") + argument("i", " 2 ")),
       "",
       {{"f", R"({"s": "a\n b ", "i": 2})"}}},
      {"newlines of the value stay",
       xml_call(argument("s", "\na\n")),
       "",
       {{"f", R"({"s": "\na\n"})"}}},
      {"empty values",
       xml_call(argument("s", "") + "<parameter=m></parameter>"),
       "",
       {{"f", R"({"s": "", "m": ""})"}}},
      {"a closing tag in the value",
       xml_call(argument("s", "<p>" + inner + "</p>")),
       "",
       {{"f", R"({"s": "<p></parameter></p>"})"}}},
      {"a closing tag at the end of the value",
       xml_call(argument("s", inner)),
       "",
       {{"f", R"({"s": "</parameter>"})"}}},
      {"closing tags in a row",
       xml_call(argument("s", inner + "\n" + inner + inner)),
       "",
       {{"f", R"({"s": "</parameter>\n</parameter></parameter>"})"}}},
      {"what is almost the next tag",
       xml_call(argument("s", inner + "\n<parameter=>" + inner + "</fun")),
       "",
       {{"f", R"({"s": "</parameter>\n<parameter=></parameter></fun"})"}}},
      {"a tag in what is almost a name",
       xml_call(argument("s", inner + "<parameter=" + inner)),
       "",
       {{"f", R"({"s": "</parameter><parameter=</parameter>"})"}}},
      {"an opening tag in the value",
       xml_call(argument("s", "<tool_call></tool_call><function=g>")),
       "",
       {{"f", R"({"s": "<tool_call></tool_call><function=g>"})"}}},
      {"JSON in a string",
       xml_call(argument("s", R"({"a": "b"})")),
       "",
       {{"f", R"({"s": "{\"a\": \"b\"}"})"}}},
      {"values by their types",
       xml_call(argument("b", "true") + argument("o", "{\"a\": [1,\n2]}") + argument("l", "[]") +
                argument("n", "null") + argument("e", "a")),
       "",
       {{"f", "{\"b\": true, \"o\": {\"a\": [1,\n2]}, \"l\": [], \"n\": null, \"e\": \"a\"}"}}},
      {"words of Python",
       xml_call(argument("b", "False") + argument("n", "None") + argument("s", "True")),
       "",
       {{"f", R"({"b": false, "n": null, "s": "True"})"}}},
      {"a string or null", xml_call(argument("m", "null")), "", {{"f", R"({"m": null})"}}},
      {"a string, though null is possible",
       xml_call(argument("m", "nullable")),
       "",
       {{"f", R"({"m": "nullable"})"}}},
      {"values that are not of their types",
       xml_call(argument("i", "one") + argument("o", "7")),
       "",
       {{"f", R"({"i": "one", "o": 7})"}}},
      {"nothing is said of the type",
       xml_call(argument("x", "1") + argument("y", "[1]") + argument("bad", "true")),
       "",
       {{"f", R"({"x": "1", "y": [1], "bad": "true"})"}}},
      {"characters of several bytes",
       "🙂" + xml_call(argument("s", "é🙂中") + argument("ключ", "🙂")),
       "🙂",
       {{"f", R"({"s": "é🙂中", "ключ": "🙂"})"}}},
      {"an opening tag in front of the call", "<tool_call>" + call, "<tool_call>", {f}},
      {"a broken call in front of a whole one",
       "<tool_call><function=f>x" + call,
       "<tool_call><function=f>x",
       {f}},
      {"the end of a function in the middle",
       xml_call("").substr(0, 25) + "</function>x</tool_call>" + call,
       "<tool_call>\n<function=f>\n</function>x</tool_call>",
       {f}},
  };
  for (const Sample& sample : samples) check(ToolFormat::kXml, sample);
}

TEST_CASE("calls: what is no whole XML-like call stays content") {
  const std::string call = xml_call(argument("s", "long") + argument("i", "1"));
  const std::vector<Sample> samples = {
      kept("plain", "Hello <function=f>\n<parameter=s>\n1\n</parameter></function>\n"),
      kept("a bare tag", "<tool_call>\n"),
      kept("no function", "<tool_call><parameter=s>1</parameter></tool_call>"),
      kept("no name", "<tool_call><function=></function></tool_call>"),
      kept("a name in two lines", "<tool_call><function=a\nb></function></tool_call>"),
      kept("a name without an end",
           "<tool_call><function=" + std::string(300, 'a') + "></function></tool_call>"),
      kept("no name of the argument", xml_call("<parameter=>1</parameter>")),
      kept("the same argument twice", xml_call(argument("s", "1") + argument("s", "2"))),
      kept("no end of the function", "<tool_call><function=f></tool_call>"),
      kept("no closing tag", "<tool_call><function=f></function>\n"),
      kept("the other form", json_call(R"({"name": "f"})")),
  };
  for (const Sample& sample : samples) check(ToolFormat::kXml, sample);
  for (size_t bytes = 1; bytes < call.size(); ++bytes) {
    const std::string cut = "text\n" + call.substr(0, bytes);
    REQUIRE_MESSAGE(as_wanted(sort(ToolFormat::kXml, {cut}), kept("cut", cut)), cut);
  }
}

TEST_CASE("calls: text that cannot begin a call goes out at once") {
  auto parser = make_plain_parser(make_call_sorter(ToolFormat::kJson, nullptr));
  const auto given = [&](std::string_view text) {
    std::vector<OutputPiece> out;
    parser->feed(text, {}, out);
    std::string content;
    for (const OutputPiece& piece : out) content += piece.text;
    return content;
  };
  CHECK(given("Hi <") == "Hi ");
  CHECK(given("b> </tool") == "<b> </tool");
  CHECK(given("_call> <tool_") == "_call> ");
  CHECK(given("bar\n") == "<tool_bar");
  CHECK(given("x <tool_call>") == "\nx ");
  CHECK(given(" \n") == "");
  CHECK(given("no") == "<tool_call> \nno");
  CHECK(given("<tool_call>{\"name\": \"f\"") == "");
  CHECK(given("; more") == "<tool_call>{\"name\": \"f\"; more");
}

TEST_CASE("calls: without tools, markup is text") {
  const std::string text = "a\n" + json_call(R"({"name": "f"})") + xml_call("");
  for (const size_t at : {size_t{0}, size_t{5}, text.size()}) {
    const Sorted sorted = sort(ToolFormat::kNone, {std::string_view(text).substr(0, at),
                                                   std::string_view(text).substr(at)});
    CHECK(sorted.content == text);
    CHECK(sorted.calls.empty());
  }
}

TEST_SUITE_END();
