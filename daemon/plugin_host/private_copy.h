// Private copies of plugins and packs: files in a folder of this process's own, named by content.
// Whatever happens to the original afterwards (replaced, cut short, deleted), the copy stays, and
// debuggers, profilers and sanitizers find its symbols under a path, which a memfd would not give
// them.
#pragma once

#include <string>

#include "daemon/base/status.h"
#include "daemon/plugin_host/file_image.h"

namespace atlas::plugin_host {

/// Writes `image` to `<folder>/<stem>-<digest>.so` (0500) and returns that path; a copy of the same
/// content that this process made before is reused.
/// The folder `atlas-plugins-XXXXXX` (0700) is made in `base` or, if that is empty, in the first of
/// $XDG_RUNTIME_DIR and /tmp that can hold executable mappings. It is removed when the process
/// exits; what a killed process left behind is removed by the next one that uses the same base.
/// Errors: kFailedPrecondition if no base can be used, each with its reason; kResourceExhausted if
/// the copy cannot be written. Thread safe.
Result<std::string> private_copy(const FileImage& image, const std::string& base);

}  // namespace atlas::plugin_host
