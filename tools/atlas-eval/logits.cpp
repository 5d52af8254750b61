#include "tools/atlas-eval/logits.h"

#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>

namespace atlas::eval {

static_assert(std::endian::native == std::endian::little, "logits are written as they lie");

namespace {

using File = std::unique_ptr<std::FILE, decltype(&std::fclose)>;

Status write_rows(std::FILE* file, const std::string& path, uint32_t first, uint32_t vocab,
                  std::span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) continue;
    return data_loss("position {}: the logit of token {} is {}", first + i / vocab, i % vocab,
                     logits[i]);
  }
  if (std::fwrite(logits.data(), sizeof(float), logits.size(), file) == logits.size()) return {};
  return data_loss("writing '{}' failed: {}", path, std::strerror(errno));
}

Status run(const tools::LocalModel& model, const std::vector<engine::TokenId>& ids,
           const std::string& path, uint32_t chunk, File& file) {
  ATLAS_ASSIGN_OR_RETURN(const auto stepper, model.stepper());
  ATLAS_RETURN_IF_ERROR(
      stepper->run_sequence(ids, chunk, [&](uint32_t first, std::span<const float> logits) {
        return write_rows(file.get(), path, first, stepper->vocab(), logits);
      }));
  if (std::fclose(file.release()) == 0) return {};
  return data_loss("writing '{}' failed: {}", path, std::strerror(errno));
}

}  // namespace

Status write_logits(const tools::LocalModel& model, const std::vector<engine::TokenId>& ids,
                    const std::string& path, uint32_t chunk) {
  ATLAS_RETURN_IF_ERROR(model.check_length("the list of ids", ids.size()));
  for (const engine::TokenId id : ids) {
    if (id >= model.info().vocab) {
      return invalid_argument("the ids have {}, and the vocabulary has {} tokens", id,
                              model.info().vocab);
    }
  }
  File file(std::fopen(path.c_str(), "wb"), &std::fclose);
  if (file == nullptr) {
    return invalid_argument("cannot write '{}': {}", path, std::strerror(errno));
  }
  struct stat about {};
  const bool regular = ::fstat(::fileno(file.get()), &about) == 0 && S_ISREG(about.st_mode);
  Status status = run(model, ids, path, chunk, file);
  if (!status.ok() && regular) std::remove(path.c_str());
  return status;
}

}  // namespace atlas::eval
