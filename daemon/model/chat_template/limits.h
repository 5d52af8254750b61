// What a template may use up while it renders, and the account of it.
// Everything here bounds hostile templates; templates in use stay far below.
#pragma once

#include <cstddef>
#include <cstdint>

namespace atlas::model::jinja {

inline constexpr size_t kMaxSourceBytes = size_t{4} << 20;
/// Of any one text, the output among them.
inline constexpr size_t kMaxTextBytes = size_t{64} << 20;
/// Of all values alive at one time.
inline constexpr size_t kMaxHeldBytes = size_t{256} << 20;
/// Expressions and statements evaluated: about two seconds.
inline constexpr uint64_t kMaxSteps = 20'000'000;
/// Bytes copied or searched: a few seconds.
inline constexpr uint64_t kMaxWorkBytes = uint64_t{16} << 30;
inline constexpr uint64_t kMaxIterations = 2'000'000;
inline constexpr int64_t kMaxRange = 100'000;
/// Nesting of tags and of brackets, and height of an expression tree.
inline constexpr uint32_t kMaxNesting = 100;
inline constexpr uint32_t kMaxTreeHeight = 200;
/// Containers inside containers, in requests and made by templates.
inline constexpr uint32_t kMaxValueDepth = 200;
/// Expressions and statements open at one time, macro calls included.
inline constexpr uint32_t kMaxEvaluationDepth = 1000;
/// Widths and precisions of format strings.
inline constexpr int64_t kMaxFormatWidth = 4096;

class Budget;

/// A claim on the memory budget, given back at destruction.
class Held {
 public:
  Held() = default;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held();

 private:
  friend class Budget;
  Budget* budget_ = nullptr;
  size_t bytes_ = 0;
};

/// Counts what one rendering uses. Every function throws a Failure where a limit is passed.
class Budget {
 public:
  void step() {
    if (++steps_ > kMaxSteps) too_many_steps();
  }
  void iteration() {
    if (++iterations_ > kMaxIterations) too_many_iterations();
  }
  /// Notes that `bytes` were copied, searched or compared.
  void work(size_t bytes) {
    work_ += bytes;
    if (work_ > kMaxWorkBytes) too_much_work();
  }
  /// Claims memory for as long as `held` lives.
  void hold(Held& held, size_t bytes);

 private:
  friend class Held;
  [[noreturn]] static void too_many_steps();
  [[noreturn]] static void too_many_iterations();
  [[noreturn]] static void too_much_work();

  uint64_t steps_ = 0;
  uint64_t iterations_ = 0;
  uint64_t work_ = 0;
  size_t held_bytes_ = 0;
};

}  // namespace atlas::model::jinja
