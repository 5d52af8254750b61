// Listener: accepts connections on one socket, whatever accept() answers.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>

#include "daemon/serve/core.h"
#include "daemon/serve/listen_socket.h"

namespace atlas::serve {

/// Loop thread only.
class Listener : public std::enable_shared_from_this<Listener> {
 public:
  Listener(Core& core, ListenSocket socket);
  void start() { wait(); }
  /// Accepts no more and gives up the socket.
  void stop();

 private:
  void wait();
  void accept_some();
  bool accept_one();
  void take(int fd, Peer peer);
  void back_off(int error);

  Core& core_;
  ListenSocket socket_;
  boost::asio::posix::stream_descriptor descriptor_;
  boost::asio::steady_timer timer_;
  bool stopped_ = false;
  bool backing_off_ = false;  // the last accept failed for want of resources
};

}  // namespace atlas::serve
