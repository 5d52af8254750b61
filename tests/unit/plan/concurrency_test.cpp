// Records that may run at the same time: which pairs those are, and which of them must not.
#include "daemon/plan/concurrency.h"

#include <doctest/doctest.h>

using namespace atlas;
using namespace atlas::plan;

TEST_SUITE_BEGIN("plan");

namespace {

enum Buffers : BufferId { kX, kY, kZ, kWeight };

constexpr AtlasAccess kReads = ATLAS_ACCESS_READS, kWrites = ATLAS_ACCESS_WRITES;

Plan four_buffers() {
  Plan plan;
  plan.buffers = {{"x"}, {"y"}, {"z"}, {"weight"}};
  plan.weights.emplace_back();
  plan.weights.back().buffer = kWeight;
  return plan;
}

AtlasRelocation place(BufferId buffer, AtlasAccess access, uint64_t offset = 0,
                      uint32_t row_bytes = 0) {
  return {0, access, {buffer, row_bytes, offset}};
}

Record record(const std::string& name, std::vector<AtlasRelocation> places,
              std::vector<uint32_t> after = {}) {
  Record made;
  made.operation = name;
  made.owner = "core";
  made.kernel = "kernel_" + name;
  made.relocations = std::move(places);
  made.after = std::move(after);
  return made;
}

/// A fork after `begin`, into `left` and `right`, and a join at `end`, with what these two touch.
Status check_fork(std::vector<AtlasRelocation> left, std::vector<AtlasRelocation> right) {
  StepPlan step;
  step.records = {
      record("begin", {place(kX, kWrites), place(kY, kWrites), place(kZ, kWrites)}),
      record("left", std::move(left)), record("right", std::move(right), {0}),
      record("end", {place(kX, kWrites), place(kY, kWrites), place(kZ, kWrites)}, {1, 2})};
  return check_concurrency(four_buffers(), step);
}

bool has(const Status& status, const std::string& part) {
  return status.message().find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("concurrency: records in a row may touch what they like") {
  StepPlan step;
  for (int i = 0; i < 200; ++i) step.records.push_back(record("one", {place(kX, kWrites)}));
  CHECK(check_concurrency(four_buffers(), step).ok());
}

TEST_CASE("concurrency: branches read the same and write each its own") {
  CHECK(check_fork({place(kX, kReads), place(kY, kWrites)}, {place(kX, kReads), place(kZ, kWrites)})
            .ok());
}

TEST_CASE("concurrency: what one branch writes and the other touches is named") {
  for (const AtlasAccess access : {kReads, kWrites}) {
    const Status status = check_fork({place(kY, kWrites)}, {place(kX, kReads), place(kY, access)});
    CAPTURE(status.message());
    CHECK(status.code() == Code::kInternal);
    CHECK(has(status, "'left' of core (kernel kernel_left) and 'right' of core"));
    CHECK(has(status, "buffer 'y', which one of them may write"));
    CHECK(!check_fork({place(kY, access)}, {place(kY, kWrites)}).ok());
  }
}

TEST_CASE("concurrency: what a launch does not say may be a write") {
  CHECK(!check_fork({place(kX, kReads)}, {place(kX, ATLAS_ACCESS_UNSAID)}).ok());
}

TEST_CASE("concurrency: columns of one buffer are apart if none is in both") {
  const auto columns = [](uint64_t offset, uint32_t bytes) {
    return std::vector{place(kY, kWrites, offset, bytes)};
  };
  CHECK(check_fork(columns(0, 64), columns(64, 8)).ok());
  CHECK(check_fork(columns(64, 8), columns(0, 64)).ok());
  CHECK(!check_fork(columns(0, 65), columns(64, 8)).ok());
  CHECK(!check_fork(columns(16, 4), columns(0, 64)).ok());
  CHECK(!check_fork(columns(64, 8), columns(0, 0)).ok());
}

TEST_CASE("concurrency: no two records read a packed weight at the same time") {
  const Status status = check_fork({place(kWeight, kReads)}, {place(kWeight, kReads)});
  CHECK(has(status, "buffer 'weight', which is a packed weight"));
}

TEST_CASE("concurrency: what follows by way of others follows") {
  StepPlan step;
  step.records = {record("a", {place(kX, kWrites)}), record("b", {place(kY, kReads)}),
                  record("c", {place(kX, kReads)}),  // after a by way of b
                  record("d", {place(kZ, kWrites)}, {0}), record("e", {place(kX, kWrites)}, {3})};
  // e follows a by way of d, but neither b nor c.
  const Status status = check_concurrency(four_buffers(), step);
  CHECK(has(status, "'c' of core"));
  CHECK(has(status, "'e' of core"));
  step.records[4].after = {3, 2};
  CHECK(check_concurrency(four_buffers(), step).ok());
}

TEST_CASE("concurrency: a record follows none that stands behind it") {
  StepPlan step;
  step.records = {record("a", {}), record("b", {}, {1})};
  CHECK(has(check_concurrency(four_buffers(), step), "is to follow record 1"));
}

TEST_SUITE_END();
