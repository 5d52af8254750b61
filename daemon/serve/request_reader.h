// RequestReader: bytes to HTTP requests, with limits. Beast's parser is behind it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "daemon/serve/api_error.h"
#include "daemon/serve/exchange.h"

namespace atlas::serve {

class RequestReader {
 public:
  enum class State { kHead, kBody, kDone, kFailed };

  RequestReader(size_t header_limit, size_t body_limit);
  ~RequestReader();
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  /// Takes bytes and says how many; call again with the rest and more. Stops behind the head, so
  /// that the caller may look at it, and behind the body. Only valid in kHead and kBody.
  size_t feed(std::string_view bytes);
  State state() const;
  /// Whether any byte of the request has come.
  bool begun() const;
  /// Valid in kBody and kDone.
  const RequestHead& head() const;
  /// Of the body, up to now.
  size_t body_bytes() const;
  std::string take_body();
  /// Valid in kFailed: what to answer before the connection ends.
  const ApiError& failure() const;
  /// Ready for the next request.
  void reset();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atlas::serve
