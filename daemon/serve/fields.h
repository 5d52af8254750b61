// FieldReader: reads the fields of one JSON object so that nothing is accepted and ignored.
// What a parser asks for by name is honoured; every other key is refused, unless it was named as
// neutral (only values that ask for what happens anyway) or inert (sent by agents, without effect).
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/serve/json.h"

namespace atlas::serve {

/// A field that a route knows, and what happens to it; the documentation's test reads these.
struct KnownField {
  std::string name;
  enum Treatment { kHonoured, kNeutral, kInert } treatment;
};

/// The first refusal wins; everything after it does nothing, so parsers read top to bottom and ask
/// once at the end. A null counts as absent, as OpenAI's clients mean it.
class FieldReader {
 public:
  /// `object` must live longer. `where` goes in front of names in messages: "stream_options.".
  explicit FieldReader(const Json& object, std::string where = {});

  /// The value of a field, or null where it is absent or null.
  const Json* take(std::string_view name);
  void boolean(std::string_view name, bool& out);
  void text(std::string_view name, std::string& out);
  void number(std::string_view name, double low, double high, float& out);
  /// Takes numbers without a fraction; returns whether the field was there.
  bool integer(std::string_view name, int64_t low, int64_t high, int64_t& out);

  /// A field whose only good values satisfy `fine`; `good` names them in the refusal.
  void neutral(std::string_view name, const std::function<bool(const Json&)>& fine,
               std::string_view good);
  void inert(std::initializer_list<std::string_view> names);

  /// Refuses the field `name` with "`name` must be ..., not ...".
  void refuse_type(std::string_view name, std::string_view wanted, const Json& found);
  void refuse(std::string_view name, std::string message);
  void refuse(ApiError error);
  bool ok() const { return !refusal_; }
  /// Refuses keys that nobody named, with the nearest known name. The result of the whole reading.
  Refusal finish();
  std::string full_name(std::string_view name) const { return where_ + std::string(name); }

  /// Every name asked for up to now.
  const std::vector<KnownField>& known() const { return known_; }

 private:
  const Json* find(std::string_view name) const;

  const Json& object_;
  std::string where_;
  std::vector<KnownField> known_;
  Refusal refusal_;
};

}  // namespace atlas::serve
