#include "tools/atlas-quantize/unfinished.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "daemon/base/input_file.h"
#include "daemon/model/checkpoint/safetensors.h"
#include "tools/atlas-quantize/safetensors_writer.h"
#include "tools/common/files.h"

namespace atlas::quantize {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFolder = "unfinished";
constexpr const char* kJob = "job.json";
constexpr const char* kEntries = "entries.jsonl";

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

/// Keeps other runs out of the folder until the last copy of the result goes, or the process ends.
Result<std::shared_ptr<const int>> lock_folder(const std::string& out) {
  const int fd = ::open(out.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return invalid_argument("cannot read folder '{}': {}", out, std::strerror(errno));
  const std::shared_ptr<const int> lock(new int(fd), [](const int* held) {
    ::close(*held);
    delete held;
  });
  // Some network file systems cannot lock a folder: there a run is as safe as its user is careful.
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return failed_precondition(
        "another run works in '{}': wait until it has ended, or name another folder", out);
  }
  return lock;
}

/// Whether nothing but the word of what it was is left of a job: it failed before its first linear.
bool has_begun(const fs::path& out, const fs::path& folder) {
  std::error_code error;
  for (const auto& file : fs::directory_iterator(out, error)) {
    if (file.path().filename() != kFolder) return true;
  }
  return error || fs::exists(folder / kEntries, error);
}

}  // namespace

Result<Unfinished> Unfinished::open(const std::string& out, const std::string& identity) {
  Unfinished work;
  work.folder_ = (fs::path(out) / kFolder).string();
  const std::string job = (fs::path(work.folder_) / kJob).string();
  std::error_code error;
  fs::create_directories(out, error);
  if (error) return invalid_argument("cannot make folder '{}': {}", out, error.message());
  ATLAS_ASSIGN_OR_RETURN(work.lock_, lock_folder(out));
  if (fs::exists(job, error)) {
    ATLAS_ASSIGN_OR_RETURN(const std::string before, tools::read_text(job));
    if (before != identity && !has_begun(out, work.folder_)) {
      ATLAS_RETURN_IF_ERROR(write_text_file(job, identity));
      return work;
    }
    if (before != identity) {
      return invalid_argument(
          "'{}' holds the unfinished work of another job, of other settings, or of files that have "
          "been written since: repeat the command that began it ('{}' says what it was), or name "
          "another folder",
          out, job);
    }
    ATLAS_RETURN_IF_ERROR(
        read_entries((fs::path(work.folder_) / kEntries).string(), work.entries_));
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
      append_line((fs::path(folder_) / kEntries).string(),
                  entry_json(entry).dump(-1, ' ', false, tools::Json::error_handler_t::replace)));
  entries_[entry.module] = entry;
  return {};
}

Result<std::vector<PlannedTensor>> Unfinished::tensors(const std::string& module) const {
  const std::string path = part_path(module);
  ATLAS_ASSIGN_OR_RETURN(InputFile opened, InputFile::open(path));
  const auto file = std::make_shared<const InputFile>(std::move(opened));
  model::TensorTable table;
  const auto summary = model::read_safetensors(*file, 0, &table);
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
  // First what says that there is work to go on with: the rest is of no use without it.
  fs::remove(fs::path(folder_) / kJob, error);
  fs::remove_all(folder_, error);
  if (error) return invalid_argument("cannot remove '{}': {}", folder_, error.message());
  return {};
}

}  // namespace atlas::quantize
