// Typed reading of one JSON object out of a configuration file. Private to this room: it brings in
// nlohmann's header.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/status.h"

namespace atlas::model {

/// Reads typed values out of one object. The first problem is kept, later reads return defaults.
/// `path` names the file (and the object in it) in messages; `object` must outlive the reader.
class ObjectReader {
 public:
  ObjectReader(const nlohmann::json& object, std::string path)
      : object_(object), path_(std::move(path)) {}

  const Status& status() const { return status_; }
  const std::string& path() const { return path_; }

  /// The value of `key`, or null if it is absent or JSON's null.
  const nlohmann::json* find(std::string_view key) const;
  /// Notes that `key` is not what was `expected`.
  void wrong(std::string_view key, std::string_view expected);
  /// A whole number of `min` to `max`; without a fallback an absent key is an error.
  uint64_t integer(std::string_view key, std::optional<uint64_t> fallback, uint64_t min,
                   uint64_t max);
  uint32_t integer(std::string_view key, std::optional<uint32_t> fallback, uint32_t max) {
    return static_cast<uint32_t>(
        integer(key, fallback ? std::optional<uint64_t>(*fallback) : std::nullopt, 0, max));
  }
  double number(std::string_view key, std::optional<double> fallback);
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  /// An id or a list of ids, in the file's order; empty if the key is absent.
  std::vector<uint32_t> ids(std::string_view key);
  /// A list of texts; nothing if the key is absent.
  std::optional<std::vector<std::string>> texts(std::string_view key);

 private:
  const nlohmann::json& object_;
  std::string path_;
  Status status_;
};

/// A JSON file that must hold one object. `path` is for messages.
Result<nlohmann::json> parse_json_object(std::string_view text, const std::string& path);

}  // namespace atlas::model
