// What a run leaves behind until it is whole, so that the next one can go on: a folder with the
// linears that are finished, their report entries, and what the job was.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "daemon/base/status.h"
#include "tools/atlas-quantize/report.h"
#include "tools/atlas-quantize/safetensors_writer.h"

namespace atlas::quantize {

class Unfinished {
 public:
  /// `identity` names the job: model, format and all that changes a byte.
  /// A job that failed before its first linear leaves nothing that would keep another one out.
  /// Errors: kInvalidArgument if `out` holds something else, or another job's unfinished work;
  /// kFailedPrecondition if another run works in it.
  static Result<Unfinished> open(const std::string& out, const std::string& identity);

  /// The entry of a linear whose tensors are kept or already lie in a finished file.
  const Entry* find(const std::string& module) const;
  uint64_t found() const { return found_; }
  /// Keeps a linear that is finished.
  Status keep(const Entry& entry, std::vector<EncodedTensor> tensors);
  /// Tensors of a kept linear, as write_safetensors takes them.
  Result<std::vector<PlannedTensor>> tensors(const std::string& module) const;
  /// Forgets the tensors of a linear that lies in a finished file now.
  void drop(const std::string& module) const;
  /// Removes the folder: the work is whole.
  Status finish();

 private:
  Unfinished() = default;
  std::string part_path(const std::string& module) const;
  std::shared_ptr<const int> lock_;  // a descriptor of the folder
  std::string folder_;
  std::map<std::string, Entry> entries_;
  uint64_t found_ = 0;
};

}  // namespace atlas::quantize
