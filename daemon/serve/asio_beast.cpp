// The one translation unit that compiles Asio and Beast; all others only declare them.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
