// First bytes of what people hand in by mistake.
#include "daemon/model/checkpoint/file_kind.h"

namespace atlas::model {
namespace {

struct Kind {
  std::string_view prefix;
  std::string_view text;
};
constexpr Kind kKinds[] = {
    {"version https://git-lfs", "a git-lfs pointer: fetch the real file with 'git lfs pull'"},
    {"PK\x03\x04", "a zip archive, as PyTorch .pt and .bin files are: convert it to safetensors"},
    {"\x80\x02", "a Python pickle: convert it to safetensors"},
    {"\x80\x03", "a Python pickle: convert it to safetensors"},
    {"\x80\x04", "a Python pickle: convert it to safetensors"},
    {"\x80\x05", "a Python pickle: convert it to safetensors"},
    {"GGUF", "a GGUF file: name it .gguf"},
    {"tjgg", "a GGML file of the time before GGUF: convert it to GGUF"},
    {"lmgg", "a GGML file of the time before GGUF: convert it to GGUF"},
    {"\x89HDF", "an HDF5 file: convert it to safetensors"},
    {"<!DOCTYPE", "a web page, so the download went wrong"},
    {"<!doctype", "a web page, so the download went wrong"},
    {"<html", "a web page, so the download went wrong"},
    {"\x1f\x8b", "a gzip archive: unpack it first"},
    {"{", "JSON text"},
};

}  // namespace

std::string_view guess_file_kind(std::span<const std::byte> bytes) {
  if (bytes.empty()) return "empty";
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  // A safetensors header has its brace after eight bytes of length, which may look like anything.
  if (text.size() > 8 && text[8] == '{') return "a safetensors file: name it .safetensors";
  for (const Kind& kind : kKinds) {
    if (text.starts_with(kind.prefix)) return kind.text;
  }
  return {};
}

}  // namespace atlas::model
