// Any bytes as the weights that atlas-quantize is given, a GGUF file by its first letters and
// safetensors otherwise: what becomes of each tensor, its values, and small linears in NVFP4 and
// FP8.
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tools/atlas-quantize/fp8.h"
#include "tools/atlas-quantize/nvfp4.h"
#include "tools/atlas-quantize/source.h"
#include "tools/atlas-quantize/work_list.h"

using namespace atlas;
using namespace atlas::quantize;

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostWeights = 1 << 16;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "property violated: %s\n", what);
  std::abort();
}

/// A folder of this process, in memory where there is one.
struct Folder {
  Folder() {
    const fs::path base = fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
    path = (base / "atlas-source-XXXXXX").string();
    require(::mkdtemp(path.data()) != nullptr, "a folder can be made");
    std::ofstream(path + "/config.json") << R"({"architectures": ["LlamaForCausalLM"],
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 32})";
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

bool all_finite(const Matrix& matrix) {
  for (const float value : matrix.values) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

void encode(const Item& item, const Matrix& weight, Format format) {
  const EncodedLinear linear = format == Format::kFp8 ? encode_fp8(item.module, weight, 1)
                                                      : encode_nvfp4(item.module, weight, Moments(),
                                                                     Nvfp4Scales::kFourOverSix, 1);
  require(linear.decoded.rows == weight.rows && linear.decoded.columns == weight.columns,
          "what is decoded has the weight's shape");
  require(all_finite(linear.decoded), "finite weights decode to finite numbers");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const bool gguf = input.starts_with("GGUF");
  const std::string path = folder() + (gguf ? "/model.gguf" : "/model.safetensors");
  {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(input.data(), static_cast<std::streamsize>(size));
    require(file.good(), "a file can be written");
  }
  const auto source = Source::open(gguf ? path : folder());
  if (!source) return 0;
  for (const Format format : {Format::kBf16, Format::kFp8, Format::kNvfp4, Format::kExl3}) {
    const auto items = make_work_list(*source, format, {.bits = 3.5});
    require(items.has_value(), "every model has a list of work");
    for (const Item& item : *items) {
      require(item.tensor != nullptr, "an item has a tensor");
      if (item.tensor->bytes > 4 * kMostWeights) continue;
      const auto weight = source->read(*item.tensor);
      if (!weight) continue;
      require(weight->values.size() == weight->rows * weight->columns, "a matrix is whole");
      require(all_finite(*weight), "values that are not finite are refused");
      if (!item.quantized || weight->values.size() > kMostWeights) continue;
      require(weight->rows == item.n && weight->columns == item.k, "sizes are the tensor's");
      if (format == Format::kFp8 || format == Format::kNvfp4) encode(item, *weight, format);
    }
  }
  return 0;
}
