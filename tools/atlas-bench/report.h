// What every JSON report of atlas-bench begins with.
#pragma once

#include "tools/atlas-bench/figures.h"
#include "tools/common/json.h"
#include "tools/common/local_model.h"

namespace atlas::bench {

tools::Json machine_json(const Machine& machine);
tools::Json model_json(const tools::LocalModel& model);
tools::Json percentiles_json(const Percentiles& percentiles);

}  // namespace atlas::bench
