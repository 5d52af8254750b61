// Reading JSON event by event: for files whose tree would cost more than what it says.
// Private to this room: it brings in nlohmann's header.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "daemon/base/status.h"

namespace atlas::model {

/// A handler of JSON events that refuses every kind of value until a method is overridden. A method
/// that returns false stops the reading; `fail` says why.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  const Status& status() const { return status_; }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return unexpected("a number"); }
  bool number_float(number_float_t, const std::string&) override {
    return unexpected("a number that is not whole or does not fit in 64 bits");
  }
  bool string(std::string&) override { return unexpected("a string"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool start_array(std::size_t) override { return unexpected("a list"); }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override;

 protected:
  virtual bool unexpected(std::string_view what) = 0;
  template <typename... Args>
  bool fail(MessageFormat<std::type_identity_t<Args>...> format, Args&&... args) {
    return fail_with(Status(Code::kInvalidArgument,
                            fmt::format(format.text, std::forward<Args>(args)...), format.where));
  }
  bool fail_with(Status status) {
    status_ = std::move(status);
    return false;
  }

 private:
  Status status_;
};

/// Runs `text` through `events`; the handler's error, or kInvalidArgument with the byte where the
/// JSON is broken. Text after the value is an error, white space is not.
Status parse_json_events(std::string_view text, JsonEvents* events);

/// The whole of a small JSON file as a tree; the error names the byte where it is broken.
Result<nlohmann::json> parse_json_tree(std::string_view text);

}  // namespace atlas::model
