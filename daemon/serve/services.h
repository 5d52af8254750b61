// Services: what handlers work with besides their request.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "daemon/serve/control.h"
#include "daemon/serve/loop.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/options.h"
#include "daemon/serve/worker.h"

namespace atlas::serve {

/// Owned by the server; handlers run on the loop thread while it exists.
struct Services {
  Control& control;
  const ServerOptions& options;
  Metrics& metrics;
  std::shared_ptr<Loop> loop;  // from other threads to the loop thread
  Worker& worker;              // from the loop thread to the worker
};

}  // namespace atlas::serve
