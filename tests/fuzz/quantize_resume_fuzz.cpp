// Any bytes as what an interrupted atlas-quantize has left: the lines of finished linears, up to a
// NUL, and behind it the tensors of one of them. The next run reads both.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "daemon/model/checkpoint/dtype.h"
#include "tools/atlas-quantize/unfinished.h"

using namespace atlas;
using namespace atlas::quantize;

namespace {

namespace fs = std::filesystem;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "property violated: %s\n", what);
  std::abort();
}

/// A folder of this process, in memory where there is one.
struct Folder {
  Folder() {
    const fs::path base = fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
    path = (base / "atlas-resume-XXXXXX").string();
    require(::mkdtemp(path.data()) != nullptr, "a folder can be made");
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  std::string path;
};

const std::string& folder() {
  static const Folder made;
  return made.path;
}

void write(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  require(file.good(), "a file can be written");
}

/// A run finds what is there and goes on from it; whether it has found "m". Its folder is its own
/// until it ends.
bool go_on(const std::string& out) {
  auto work = Unfinished::open(out, "this job");
  require(work.has_value(), "damaged lines are left out, not refused");
  if (const Entry* entry = work->find("m")) {
    require(
        parse_entry(entry_json(*entry).dump(-1, ' ', false, tools::Json::error_handler_t::replace))
            .has_value(),
        "an entry that was read is written as one that can be read");
  }
  const auto tensors = work->tensors("m");
  if (tensors) {
    for (const PlannedTensor& tensor : *tensors) {
      require(tensor.name.starts_with("m."), "a linear has its own tensors alone");
      const auto bytes = tensor.bytes();
      require(bytes.has_value(), "tensors that were found can be read");
      require(model::tensor_bytes(*model::dtype_info(tensor.dtype), tensor.dims) == bytes->size(),
              "tensors have the bytes of their shapes");
    }
  }
  require(!Unfinished::open(out, "this job").has_value(), "no second run works beside it");
  Entry more;
  more.module = "more";
  require(work->keep(more, {{"more.w", ATLAS_U8, {2}, {std::byte{1}, std::byte{2}}}}).ok(),
          "work goes on");
  return work->find("m") != nullptr;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t nul = std::min(input.find('\0'), input.size());
  const std::string out = folder(), work_folder = out + "/unfinished";
  fs::create_directories(work_folder);
  write(work_folder + "/job.json", "this job");
  write(work_folder + "/entries.jsonl", input.substr(0, nul));
  write(work_folder + "/m.safetensors", nul < size ? input.substr(nul + 1) : std::string_view());
  require(!Unfinished::open(out, "another job").has_value(), "another job's work is not taken");
  const bool found = go_on(out);
  const auto again = Unfinished::open(out, "this job");
  require(again && again->find("more") != nullptr && again->tensors("more").has_value(),
          "what was kept is found");
  // A last line that lacks its end alone is whole once another stands behind it.
  require(!found || again->find("m") != nullptr, "what was found is found again");
  return 0;
}
