// Control: what the routes under /atlas/v1/ ask of the daemon. The app implements it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/engine/engine.h"

namespace atlas::serve {

/// A JSON text or an error, given exactly once, from any thread.
using ControlReply = std::function<void(Result<std::string> json)>;

/// Thread safe. Calls return at once; work that takes time answers later through `reply`.
class Control {
 public:
  virtual ~Control() = default;
  /// The table of engines, one a model. Never empty; the first is the default model.
  virtual std::vector<std::shared_ptr<engine::Engine>> engines() const = 0;
  /// `atlasctl status`: version, platform, device, uptime, state and progress of every engine.
  virtual std::string status_json() const = 0;
  /// `atlasctl plugins`: loaded, skipped and refused plugins with reasons, and their kernels.
  virtual std::string plugins_json() const = 0;
  /// `atlasctl plan`: records, bytes and ledger of a model on a platform; nothing is loaded.
  /// `request_json`: {"model": path?, "set": {"key": value, ...}?, "records": bool?,
  /// "directory": where relative paths begin?}.
  virtual void plan(std::string request_json, ControlReply reply) = 0;
  /// `atlasctl swap`: {"set": {"key": value, ...}, "dry_run": bool?, "directory": path?};
  /// says the swap's class first.
  virtual void swap(std::string request_json, ControlReply reply) = 0;
  /// Reads the settings file again, applies the reloadable keys, names the others that changed.
  virtual void reload(ControlReply reply) = 0;
  /// Stops accepting requests and finishes those at hand, then stops the daemon.
  virtual void drain(std::string request_json, ControlReply reply) = 0;
  /// False once draining has begun: new requests get 503.
  virtual bool accepting() const = 0;
};

}  // namespace atlas::serve
