#include "tools/common/files.h"

#include <doctest/doctest.h>

#include "tests/unit/tools/tools_fixture.h"

using namespace atlas;
using namespace atlas::testing;

TEST_SUITE_BEGIN("tools files");

TEST_CASE("ids: a list of whole numbers below the vocabulary is read, whatever its spaces") {
  const auto ids = tools::parse_ids(" [ 0, 5,\n279 ]\n", "ids", 280);
  REQUIRE(ids);
  CHECK(*ids == std::vector<engine::TokenId>{0, 5, 279});
  CHECK(tools::ids_json(*ids) == "[0,5,279]");
}

TEST_CASE("ids: what is no list of ids is refused with its place") {
  const auto message = [](const char* json) {
    const auto ids = tools::parse_ids(json, "FILE", 280);
    REQUIRE_FALSE(ids);
    CHECK(ids.error().code() == Code::kInvalidArgument);
    CHECK(ids.error().message().find("'FILE'") != std::string::npos);
    return ids.error().message();
  };
  CHECK(message("").find("not a JSON list") != std::string::npos);
  CHECK(message("{\"ids\": [1]}").find("not a JSON list") != std::string::npos);
  CHECK(message("[1, 2").find("not a JSON list") != std::string::npos);
  CHECK(message("[1, NaN]").find("not a JSON list") != std::string::npos);
  CHECK(message("[]").find("empty") != std::string::npos);
  CHECK(message("[1, -2]").find("element 1 is -2") != std::string::npos);
  CHECK(message("[1.0]").find("element 0 is 1.0") != std::string::npos);
  CHECK(message("[[1]]").find("element 0 is [1]") != std::string::npos);
  CHECK(message("[\"\xff\"]").find("not a JSON list") != std::string::npos);
  CHECK(message("[3, 280]").find("element 1 is 280") != std::string::npos);
  CHECK(message("[99999999999999999999999]").find("element 0") != std::string::npos);
  CHECK(message("[18446744073709551615]").find("vocabulary") != std::string::npos);
}

TEST_CASE("text: a file is read byte for byte; a folder and an absent file are errors") {
  const TempDir folder;
  const std::string text("a\0b\r\n\xff", 6);
  const auto read = tools::read_text(write_file(folder, "text", text));
  REQUIRE(read);
  CHECK(*read == text);
  CHECK(tools::read_text(folder.path()).error().code() == Code::kInvalidArgument);
  CHECK(tools::read_text(folder.file("absent")).error().code() == Code::kNotFound);
}

TEST_SUITE_END();
