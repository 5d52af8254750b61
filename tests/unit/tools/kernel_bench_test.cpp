// Kernels by themselves: what is timed is what a plan has, each format gives figures, and floors
// follow from the device's measured ceilings.
#include "tools/atlas-bench/kernel_bench.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/unit/tools/tools_fixture.h"

using namespace atlas;
using namespace atlas::bench;
using namespace atlas::testing;
using Json = nlohmann::json;

TEST_SUITE_BEGIN("tools bench");

namespace {

std::unique_ptr<KernelDevice> open_cpu() {
  tools::ModelOptions options;
  options.threads = 2;
  const auto settings = tools::tool_settings(options, {});
  REQUIRE_MESSAGE(settings, settings.error().message());
  auto device = KernelDevice::open(*settings);
  REQUIRE_MESSAGE(device, device.error().message());
  return std::move(*device);
}

KernelBenchOptions small_options(std::vector<KernelShape> shapes, std::vector<uint32_t> rows) {
  KernelBenchOptions options;
  options.shapes = std::move(shapes);
  options.rows = std::move(rows);
  options.resident_bytes = 300'000;
  options.ms = 0.1;
  return options;
}

KernelTable run(const KernelDevice& device, const KernelBenchOptions& options) {
  size_t told = 0;
  KernelTable table = bench_kernels(device, options, [&](const KernelFigure&) { ++told; });
  CHECK_MESSAGE(table.failure.ok(), table.failure.message());
  CHECK(told == table.figures.size());
  return table;
}

}  // namespace

TEST_CASE("ceilings: reads between points by proportion, beyond the last by its speed") {
  const Ceilings* h200 = ceilings_of("h200");
  REQUIRE(h200 != nullptr);
  CHECK(ceilings_of("cpu") == nullptr);
  CHECK(read_floor_us(*h200, 9.8e6) == doctest::Approx(3.68));
  CHECK(read_floor_us(*h200, 11.4e6) == doctest::Approx((3.68 + 4.51) / 2));
  CHECK(read_floor_us(*h200, 1000) == doctest::Approx(h200->reads.front().us));
  const ReadPoint last = h200->reads.back();
  CHECK(read_floor_us(*h200, 3e6 * last.megabytes) == doctest::Approx(3 * last.us));
  for (size_t i = 1; i < h200->reads.size(); ++i) {
    CHECK(h200->reads[i - 1].megabytes < h200->reads[i].megabytes);
    CHECK(h200->reads[i - 1].us < h200->reads[i].us);
  }
}

TEST_CASE("floors: the largest of bytes, operations and decoding limits") {
  const Ceilings* h200 = ceilings_of("h200");
  REQUIRE(h200 != nullptr);
  const double weights = 2560.0 * 10240;
  const Floor three = floor_of(*h200, "exl3:3", weights * 3 / 8, 2 * weights, weights);
  CHECK(std::string(three.limit()) == "decode");
  CHECK(three.us() == doctest::Approx(weights * 5.0 / 33.4e6));
  const Floor four = floor_of(*h200, "exl3:4", weights / 2, 2 * weights, weights);
  CHECK(std::string(four.limit()) == "bytes");
  const Floor many = floor_of(*h200, "bf16", weights * 2, 8192 * weights, weights);
  CHECK(std::string(many.limit()) == "operations");
  CHECK(many.us() == doctest::Approx(8192 * weights / 796e6));
}

TEST_CASE("bench kernels: every format has figures for sizes odd and even, at every row count") {
  const auto device = open_cpu();
  KernelBenchOptions options =
      small_options({{"", 256, 130, 0, 0}, {"", 320, 64, 0, 0}}, {5, 1, 5});
  const KernelTable table = run(*device, options);
  CHECK(table.skipped.empty());
  REQUIRE(table.figures.size() == options.formats.size() * 2 * 2);
  CHECK(table.figures[0].rows == 1);
  CHECK(table.figures[1].rows == 5);
  for (const KernelFigure& figure : table.figures) {
    CAPTURE(figure.shape.format);
    CAPTURE(figure.shape.name());
    const auto weights = static_cast<double>(figure.shape.k * figure.shape.n);
    CHECK(figure.us > 0);
    CHECK(figure.best_us <= figure.us);
    CHECK(figure.operations == 2 * figure.rows * weights);
    const double bits = figure.shape.format == "bf16"    ? 16
                        : figure.shape.format == "fp8"   ? 8
                        : figure.shape.format == "nvfp4" ? 4.5
                                                         : figure.shape.format.back() - '0';
    CHECK(figure.bytes >= weights * bits / 8);
    CHECK(figure.bytes < 3 * weights * bits / 8);
    CHECK_FALSE(figure.kernels.empty());
    CHECK_FALSE(figure.floor);  // nobody measured this platform
  }
  // An encoding belongs to the product that needs it.
  for (const KernelFigure& figure : table.figures) {
    if (figure.shape.format == "nvfp4") CHECK(figure.kernels.size() == 2);
  }
}

TEST_CASE("bench kernels: a layer of experts reads those that its rows chose") {
  const auto device = open_cpu();
  KernelBenchOptions options = small_options({{"", 128, 128, 8, 2}}, {1, 6});
  options.formats = {"bf16", "exl3:4"};
  const KernelTable table = run(*device, options);
  CHECK(table.skipped.empty());
  REQUIRE(table.figures.size() == 4);
  const double expert = 3 * 128 * 128 * 2;  // bytes in bf16
  CHECK(table.figures[0].bytes == 2 * expert);
  CHECK(table.figures[1].bytes > 2 * expert);
  CHECK(table.figures[1].bytes <= 8 * expert);
  for (const KernelFigure& figure : table.figures) {
    CHECK(figure.operations == 2.0 * figure.rows * 2 * 3 * 128 * 128);
    CHECK(figure.kernels.back() == "combine_experts");
    for (const std::string& kernel : figure.kernels) {
      CHECK(kernel != "route");
      CHECK(kernel != "group_experts");
    }
  }
}

TEST_CASE("bench kernels: what a format cannot have is left out, with the reason") {
  const auto device = open_cpu();
  KernelBenchOptions options = small_options({{"", 40, 32, 0, 0}}, {1});
  options.formats = {"nvfp4", "bf16"};
  const KernelTable table = run(*device, options);
  REQUIRE(table.figures.size() == 1);
  REQUIRE(table.skipped.size() == 1);
  CHECK(table.skipped[0].shape.format == "nvfp4");
  CHECK(table.skipped[0].reason.find("16 inputs") != std::string::npos);
  options.formats = {"nvfp4", "q4_1"};
  const KernelTable nothing = bench_kernels(*device, options, [](const KernelFigure&) {});
  CHECK(nothing.figures.empty());
  CHECK(nothing.skipped.size() == 2);
  CHECK(nothing.failure.code() == Code::kFailedPrecondition);
}

TEST_CASE("kernel shapes: a name is read as what it names, and nothing else is") {
  for (const KernelShape& shape : flash_next_products()) {
    const auto read = parse_kernel_shape(shape.name());
    REQUIRE(read);
    CHECK(read->k == shape.k);
    CHECK(read->n == shape.n);
    CHECK(read->experts == 0);
  }
  const auto layer = parse_kernel_shape(flash_next_experts().name());
  REQUIRE(layer);
  CHECK(layer->top == 10);
  CHECK(layer->experts == 512);
  CHECK(layer->k == 2560);
  CHECK(layer->n == 640);
  for (const char* wrong :
       {"", "256", "256x", "x96", "0x96", "256x96x2", "256x-96", " 256x96", "256 x96", "256x+96",
        "99999999999x1", "2of:8x8", "of8:8x8", "2of8:", "0of0:8x8"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_kernel_shape(wrong));
  }
}

TEST_CASE("the program: kernels takes shapes, formats and rows, and writes them as JSON") {
  const ProgramRun run = run_program("atlas-bench",
                                     "kernels --json --threads 1 --formats exl3:3,fp8 --shapes "
                                     "256x96 --rows 1,2 --weights-mb 1 --ms 0.1");
  REQUIRE_MESSAGE(run.code == 0, run.out);
  const Json json = Json::parse(run.out);
  CHECK(json["platform"] == "cpu");
  REQUIRE(json["results"].size() == 4);
  CHECK(json["results"][3]["format"] == "fp8");
  CHECK(json["results"][3]["shape"] == "256x96");
  CHECK(json["results"][3]["rows"] == 2);
  CHECK(json["results"][3]["us"] > 0.0);
  CHECK(json["results"][3]["launches"] == json["results"][3]["kernels"].size());
  const ProgramRun text = run_program(
      "atlas-bench",
      "kernels --threads 1 --formats bf16 --shapes 64x48 --rows 3 --weights-mb 1 --ms 0.1");
  CHECK_MESSAGE(text.code == 0, text.out);
  CHECK(text.out.find("64x48") != std::string::npos);
  const auto refused = [](const std::string& arguments, const char* said) {
    const ProgramRun refusal = run_program("atlas-bench", arguments);
    CAPTURE(arguments);
    CHECK(refusal.code == 2);
    CHECK_MESSAGE(refusal.out.find(said) != std::string::npos, refusal.out);
  };
  refused("kernels --shapes 256x", "256x");
  refused("kernels --formats nvfp5", "there are no synthetic weights of 'nvfp5'");
  refused("kernels --ms nan", "'nan' is no number from 0.01 to 10000");
  refused("steps --synthetic gpt-2", "there is no synthetic model 'gpt-2'");
  refused("steps --synthetic qwen3.8-flash-next --quant exl3:9",
          "no synthetic weights of 'exl3:9'");
  refused("steps --synthetic qwen3.8-flash-next --model /m", "--model");
  CHECK(run_program("atlas-bench", "kernels --rows 0").code == 2);
  CHECK(run_program("atlas-bench", "kernels --model x").code == 2);
}

TEST_SUITE_END();
