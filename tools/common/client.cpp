#include "tools/common/client.h"

#include <curl/curl.h>

#include <memory>

namespace atlas::tools {

namespace {

/// Where a transfer goes: whole into the response, or cut into events.
struct Sink {
  Response response;
  const EventHandler* handler = nullptr;
  CURL* curl = nullptr;
  std::string line;
  bool stopped = false;

  bool is_stream() const {
    const char* type = nullptr;
    curl_easy_getinfo(curl, CURLINFO_CONTENT_TYPE, &type);
    return handler != nullptr && type != nullptr &&
           std::string_view(type).starts_with("text/event-stream");
  }
  void take_line() {
    constexpr std::string_view kData = "data:";
    std::string_view text = line;
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.starts_with(kData)) {
      text.remove_prefix(kData.size());
      if (text.starts_with(' ')) text.remove_prefix(1);
      stopped = !(*handler)(text);
    }
    line.clear();
  }
};

size_t on_bytes(char* bytes, size_t, size_t count, void* context) {
  auto& sink = *static_cast<Sink*>(context);
  if (!sink.is_stream()) {
    sink.response.body.append(bytes, count);
    return count;
  }
  for (size_t i = 0; i < count && !sink.stopped; ++i) {
    if (bytes[i] == '\n') {
      sink.take_line();
    } else {
      sink.line += bytes[i];
    }
  }
  return sink.stopped ? 0 : count;  // 0 tells libcurl to end the transfer
}

}  // namespace

Client::Client(std::string socket_path)
    : socket_path_(std::move(socket_path)), curl_(curl_easy_init(), &curl_easy_cleanup) {}

Result<Response> Client::perform(const std::string& path, const std::string* json,
                                 const EventHandler* handler) const {
  CURL* const curl = curl_.get();
  if (curl == nullptr) return internal_error("libcurl could not be started");
  curl_easy_reset(curl);  // options only: the connection stays
  Sink sink;
  sink.handler = handler;
  sink.curl = curl;
  curl_slist* headers = curl_slist_append(nullptr, "Content-Type: application/json");
  const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> owned(headers,
                                                                          &curl_slist_free_all);
  const std::string url = "http://atlas" + path;
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, socket_path_.c_str());
  curl_easy_setopt(curl, CURLOPT_PROXY, "");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &on_bytes);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &sink);
  if (json != nullptr) {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, static_cast<long>(json->size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, json->c_str());
  }
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &sink.response.status);
  if (code == CURLE_OK || (code == CURLE_WRITE_ERROR && sink.stopped)) return sink.response;
  if (code == CURLE_COULDNT_CONNECT) {
    return unavailable(
        "no daemon answers on '{}': is atlasd running (systemctl status atlasd), and is "
        "this its socket (--socket)?",
        socket_path_);
  }
  return unavailable("the daemon on '{}' broke off: {}", socket_path_, curl_easy_strerror(code));
}

Result<Response> Client::get(const std::string& path) const {
  return perform(path, nullptr, nullptr);
}

Result<Response> Client::post(const std::string& path, const std::string& json) const {
  return perform(path, &json, nullptr);
}

Result<Response> Client::stream(const std::string& path, const std::string& json,
                                const EventHandler& handler) const {
  return perform(path, &json, &handler);
}

}  // namespace atlas::tools
