#include "daemon/base/status.h"

#include <doctest/doctest.h>

using namespace atlas;

TEST_SUITE_BEGIN("base");

namespace {
Result<int> half(int value) {
  if (value % 2 != 0) return invalid_argument("{} is odd: give an even number", value);
  return value / 2;
}
Result<int> quarter(int value) {
  ATLAS_ASSIGN_OR_RETURN(int halved, half(value));
  return half(halved);
}
}  // namespace

TEST_CASE("result: a value passes through, an error keeps its code, message and place") {
  CHECK(*quarter(8) == 2);
  const auto failed = quarter(6);
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code() == Code::kInvalidArgument);
  CHECK(failed.error().message() == "3 is odd: give an even number");
  CHECK(std::string(failed.error().where().file_name()).ends_with("status_test.cpp"));
}

TEST_CASE("status: context is put in front of the message and never on a success") {
  CHECK(not_found("no such key").with_context("a.yaml:3").to_string() ==
        "not_found: a.yaml:3: no such key");
  CHECK(Status().with_context("a.yaml").ok());
}

TEST_SUITE_END();
