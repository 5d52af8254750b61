// Reading and writing JSON: what is refused, what is escaped.
#include "daemon/serve/json.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "daemon/serve/json_text.h"

using namespace atlas::serve;

TEST_SUITE_BEGIN("serve");

namespace {
std::string refusal_of(std::string_view text) {
  Json json;
  const Refusal refusal = parse_json(text, json);
  return refusal ? refusal->message : "";
}
std::string written(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}
}  // namespace

TEST_CASE("json: what JSON is not, is refused with a reason") {
  CHECK(refusal_of(R"({"a":NaN})") != "");
  CHECK(refusal_of(R"({"a":Infinity})") != "");
  CHECK(refusal_of(R"({"a":-Infinity})") != "");
  CHECK(refusal_of(R"({"a":1e999})") != "");
  CHECK(refusal_of(R"({"a":1,})") != "");
  CHECK(refusal_of(R"({"a":1} x)") != "");
  CHECK(refusal_of("") != "");
  CHECK(refusal_of("{\"a\":\"\xff\"}") != "");
  CHECK(refusal_of(R"({"a":"\ud800"})") != "");
  CHECK(refusal_of(std::string("{\"a\":\"\0\"}", 9)) != "");
  CHECK(refusal_of(R"({"a":[1,{"b":2}],"c":null})") == "");
}

TEST_CASE("json: the same key twice is refused, among few keys and among many") {
  CHECK(refusal_of(R"({"a":1,"b":2,"a":3})").find("\"a\"") != std::string::npos);
  CHECK(refusal_of(R"([{"a":1},{"a":1}])") == "");
  std::string many = "{";
  for (int i = 0; i < 100; ++i) many += "\"k" + std::to_string(i) + "\":0,";
  CHECK(refusal_of(many + "\"x\":0}") == "");
  CHECK(refusal_of(many + "\"k3\":0}") != "");
  CHECK(refusal_of(many + "\"k77\":0}") != "");
}

TEST_CASE("json: depth and the number of values are bounded") {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  CHECK(refusal_of(nested(64)) == "");
  CHECK(refusal_of(nested(65)).find("deeper") != std::string::npos);
  CHECK(refusal_of(std::string(1'000'000, '[')) != "");
  std::string list = "[0";
  for (int i = 0; i < 1'000'001; ++i) list += ",0";
  CHECK(refusal_of(list + "]").find("values") != std::string::npos);
}

TEST_CASE("json: keys keep their order and values their types") {
  Json json;
  REQUIRE_FALSE(parse_json(R"({"z":1,"a":-2,"m":0.5,"s":"x","t":true,"n":null})", json));
  CHECK(json.dump() == R"({"z":1,"a":-2,"m":0.5,"s":"x","t":true,"n":null})");
}

TEST_CASE("json text: quotes, controls and broken UTF-8 are written so that they parse") {
  CHECK(written("a\"b\\c\n\r\t\x01\x7f") == "\"a\\\"b\\\\c\\n\\r\\t\\u0001\x7f\"");
  CHECK(written("grün 🙂") == "\"grün 🙂\"");
  CHECK(written("a\xf0\x9f\x99z") == "\"a\xef\xbf\xbdz\"");
  CHECK(written("\xc0\xaf\xed\xa0\x80") ==
        "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
  CHECK(written(std::string("\0", 1)) == "\"\\u0000\"");
  std::string number;
  append_json_number(number, -std::numeric_limits<float>::infinity());
  CHECK(number == "-9999");
}

TEST_CASE("json text: whatever bytes come in, the result is valid JSON") {
  uint32_t state = 12345;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 12; ++i) {
      state = state * 1664525 + 1013904223;
      bytes += static_cast<char>(state >> 24);
    }
    const std::string json = written(bytes);
    Json parsed;
    REQUIRE_MESSAGE(!parse_json(json, parsed), json);
    CHECK(parsed.get<std::string>() == to_utf8(bytes));
  }
}

TEST_SUITE_END();
