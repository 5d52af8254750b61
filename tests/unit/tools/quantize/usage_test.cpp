// The command line of atlas-quantize: what cannot be done whatever the model is ends with 2.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/unit/tools/tools_fixture.h"

using namespace atlas::testing;

TEST_SUITE_BEGIN("quantize");

TEST_CASE("the program: wrong usage of atlas-quantize ends with 2 and says what would be right") {
  const TempDir folder;
  const std::string out = folder.file("made");
  const auto refused = [&](const std::string& arguments, const char* said) {
    CAPTURE(arguments);
    const ProgramRun run = run_program(
        "atlas-quantize", "--quiet --model " + tiny_gguf() + " --out " + out + " " + arguments);
    CHECK(run.code == 2);
    CHECK_MESSAGE(run.out.find(said) != std::string::npos, run.out);
    CHECK(!std::filesystem::exists(out));
  };
  refused("--format nvfp3", "format 'nvfp3' is not known: exl3, nvfp4, fp8 and bf16 are");
  refused("--format exl3 --no-feedback --bits 9", "9 bits were asked; 1 to 8 are possible");
  refused("--format exl3 --no-feedback --head-bits 12", "12 bits of the head were asked");
  refused("--format exl3 --no-feedback --codebook mul2", "mul2");
  refused("--format nvfp4 --scales least", "least");
  refused("--format exl3", "exl3 needs --calibration FILE");
  refused("--format nvfp4 --bits 3", "nvfp4 has no use for --bits: exl3 has");
  refused("--format fp8 --seed 3", "fp8 has no use for --seed: exl3 has");
  refused("--format exl3 --no-feedback --scales max", "exl3 has no use for --scales: nvfp4 has");
  refused("--format bf16 --calibration text",
          "bf16 has no use for --calibration: exl3 and nvfp4 have");
  const ProgramRun absent =
      run_program("atlas-quantize", "--format bf16 --model /absent --out " + out);
  CHECK(absent.code == 1);
}

TEST_SUITE_END();
