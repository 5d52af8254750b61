#include "tools/atlas-quantize/unfinished.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "daemon/base/mapped_file.h"
#include "daemon/model/checkpoint/safetensors.h"
#include "tools/atlas-quantize/safetensors_writer.h"
#include "tools/common/files.h"

namespace atlas::quantize {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFolder = "unfinished";

/// The finished lines; a last line that was cut off in the middle is of no use and left out.
Status read_entries(const std::string& path, std::map<std::string, Entry>& entries) {
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  ATLAS_ASSIGN_OR_RETURN(const std::string text, tools::read_text(path));
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    if (end == begin) continue;
    const auto entry = parse_entry(text.substr(begin, end - begin));
    if (!entry) continue;  // the line after a cut one
    entries[entry->module] = *entry;
  }
  return {};
}

Status append_line(const std::string& path, const std::string& line) {
  const std::unique_ptr<std::FILE, decltype(&std::fclose)> file(std::fopen(path.c_str(), "ab"),
                                                                &std::fclose);
  // The newline in front ends a line that an interrupted run has cut.
  const std::string text = "\n" + line + "\n";
  if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0) {
    return invalid_argument("cannot write '{}': {}", path, std::strerror(errno));
  }
  return {};
}

}  // namespace

Result<Unfinished> Unfinished::open(const std::string& out, const std::string& identity) {
  Unfinished work;
  work.folder_ = (fs::path(out) / kFolder).string();
  const std::string job = (fs::path(work.folder_) / "job.json").string();
  std::error_code error;
  fs::create_directories(out, error);
  if (error) return invalid_argument("cannot make folder '{}': {}", out, error.message());
  if (fs::exists(job, error)) {
    ATLAS_ASSIGN_OR_RETURN(const std::string before, tools::read_text(job));
    if (before != identity) {
      return invalid_argument(
          "'{}' holds the unfinished work of another job, or of other settings: repeat the command "
          "that began it ('{}' says what it was), or name another folder",
          out, job);
    }
    ATLAS_RETURN_IF_ERROR(
        read_entries((fs::path(work.folder_) / "entries.jsonl").string(), work.entries_));
    work.found_ = work.entries_.size();
    return work;
  }
  for (const auto& file : fs::directory_iterator(out, error)) {
    if (file.path().filename() == kFolder) continue;  // it was begun, without a word of what
    return invalid_argument("'{}' is not empty: name a new folder", out);
  }
  if (error) return invalid_argument("cannot read folder '{}': {}", out, error.message());
  fs::create_directories(work.folder_, error);
  if (error) return invalid_argument("cannot make '{}': {}", work.folder_, error.message());
  ATLAS_RETURN_IF_ERROR(write_text_file(job, identity));
  return work;
}

const Entry* Unfinished::find(const std::string& module) const {
  const auto place = entries_.find(module);
  return place == entries_.end() ? nullptr : &place->second;
}

std::string Unfinished::part_path(const std::string& module) const {
  std::string name = module;  // names of modules come from a file
  for (char& c : name) c = c == '/' ? '_' : c;
  return (fs::path(folder_) / (name + ".safetensors")).string();
}

Status Unfinished::keep(const Entry& entry, std::vector<EncodedTensor> tensors) {
  ATLAS_RETURN_IF_ERROR(
      write_safetensors(part_path(entry.module), planned(std::move(tensors)), {}));
  ATLAS_RETURN_IF_ERROR(
      append_line((fs::path(folder_) / "entries.jsonl").string(),
                  entry_json(entry).dump(-1, ' ', false, tools::Json::error_handler_t::replace)));
  entries_[entry.module] = entry;
  return {};
}

Result<std::vector<PlannedTensor>> Unfinished::tensors(const std::string& module) const {
  const std::string path = part_path(module);
  ATLAS_ASSIGN_OR_RETURN(MappedFile opened, MappedFile::open(path));
  const auto file = std::make_shared<const MappedFile>(std::move(opened));
  model::TensorTable table;
  const auto summary = model::read_safetensors(file->bytes(), path, 0, &table);
  if (!summary) return summary.error();
  ATLAS_RETURN_IF_ERROR(table.seal(std::span(&path, 1)));
  std::vector<PlannedTensor> out;
  for (const model::TensorInfo& tensor : table.tensors()) {
    if (!tensor.name.starts_with(module + ".")) {
      return data_loss("{} holds the tensor '{}', which is none of '{}': remove the folder {}",
                       path, model::printable(tensor.name), module, folder_);
    }
    out.push_back(
        {std::string(tensor.name), tensor.dtype,
         std::vector<uint64_t>(tensor.shape().begin(), tensor.shape().end()),
         [file, offset = tensor.offset, size = tensor.bytes]() -> Result<std::vector<std::byte>> {
           std::vector<std::byte> bytes(size);
           ATLAS_RETURN_IF_ERROR(file->read_at(offset, bytes));
           return bytes;
         }});
  }
  return out;
}

void Unfinished::drop(const std::string& module) const {
  std::error_code error;
  fs::remove(part_path(module), error);
}

Status Unfinished::finish() {
  std::error_code error;
  fs::remove_all(folder_, error);
  if (error) return invalid_argument("cannot remove '{}': {}", folder_, error.message());
  return {};
}

}  // namespace atlas::quantize
