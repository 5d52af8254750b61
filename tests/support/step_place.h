// Where a layer's buffers lie and its planned records run in tests: this machine's memory with the
// CPU pack, or a GPU platform.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/row_steps.h"

namespace atlas::test {

class StepPlace {
 public:
  virtual ~StepPlace() = default;
  virtual const char* platform() const = 0;
  /// Memory for `count` floats; what they hold is not a number, or tells that nothing was written.
  virtual float* floats(const std::string& name, size_t count) = 0;
  /// Memory with contents.
  virtual void* bytes(const std::string& name, const void* from, size_t count) = 0;
  virtual void write(void* to, const void* from, size_t count) = 0;
  virtual void read(const void* from, void* to, size_t count) = 0;
  virtual void run(const PlannedRecords& records, Split split) = 0;
};

class CpuPlace final : public StepPlace {
 public:
  explicit CpuPlace(const CpuPack& pack) : pack_(pack) {}
  const char* platform() const override { return "cpu"; }
  float* floats(const std::string&, size_t count) override {
    std::vector<float> all(count, NAN);
    return static_cast<float*>(add(all.data(), count * sizeof(float)));
  }
  void* bytes(const std::string&, const void* from, size_t count) override {
    return add(from, count);
  }
  void write(void* to, const void* from, size_t count) override { std::memcpy(to, from, count); }
  void read(const void* from, void* to, size_t count) override { std::memcpy(to, from, count); }
  void run(const PlannedRecords& records, Split split) override { records.run(pack_, split); }

 private:
  void* add(const void* from, size_t count) {
    memory_.push_back(std::make_unique<std::vector<uint64_t>>((count + 7) / 8));
    std::memcpy(memory_.back()->data(), from, count);
    return memory_.back()->data();
  }
  const CpuPack& pack_;
  std::vector<std::unique_ptr<std::vector<uint64_t>>> memory_;
};

}  // namespace atlas::test
