// How functions of this plugin report an error to the one place that fills the ABI's struct.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "plugins/abi/atlas_plugin.h"

namespace atlas::platform_cpu {

/// Thrown inside the plugin, caught at its table of functions. `what` says what was asked, what was
/// found and what to change.
class Failure : public std::exception {
 public:
  Failure(AtlasCode code, std::string message) : code_(code), message_(std::move(message)) {}
  AtlasCode code() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  AtlasCode code_;
  std::string message_;
};

}  // namespace atlas::platform_cpu
