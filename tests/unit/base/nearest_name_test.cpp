#include "daemon/base/nearest_name.h"

#include <doctest/doctest.h>

#include <string>

using namespace atlas;

TEST_SUITE_BEGIN("base");

TEST_CASE("nearest name: the one that was meant, and none if all are far") {
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("", "abc") == 3);
  const std::vector<std::string_view> names = {"needle", "dump", "generate"};
  CHECK(nearest_name("needles", names) == "needle");
  CHECK(nearest_name("dmp", names) == "dump");
  CHECK(nearest_name("perplexity", names).empty());
  CHECK(nearest_name("", names).empty());
  CHECK(nearest_name(std::string(65, 'a'), {std::string_view("a")}).empty());
}

TEST_SUITE_END();
