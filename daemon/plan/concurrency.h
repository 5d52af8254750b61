// Which records of a step may run at the same time, and whether they may: the planner's audit of
// its own branches.
#pragma once

#include "daemon/plan/plan.h"

namespace atlas::plan {

/// Whether both launches can run at the same time without one seeing or overwriting what the other
/// writes: no place that one of them writes is the other's too. Two records never read one packed
/// weight at the same time, as products count in it which of their blocks are done.
/// Errors: kInternal names both records and the buffer.
Status check_beside(const Plan& plan, const Record& a, const Record& b);

/// Whether every record follows only records before it, and check_beside() holds for all pairs of
/// which neither follows the other. Errors: kInternal names the records, and the buffer.
Status check_concurrency(const Plan& plan, const StepPlan& step);

}  // namespace atlas::plan
