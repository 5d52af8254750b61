// The fake GPU that runs the CPU test pack.
#include "tests/support/fake_gpu/machine.h"

namespace atlas::fake_gpu {

std::unique_ptr<Machine> make_machine(const Script& script) {
  return std::make_unique<Machine>(script);
}

}  // namespace atlas::fake_gpu
