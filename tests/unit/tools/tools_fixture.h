// What the tests of the tools share: tiny models on disk, loaded ones, and running a program.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/tiny_llama.h"
#include "tools/common/local_model.h"

namespace atlas::testing {

inline std::string write_file(const TempDir& folder, const std::string& name,
                              const std::string& text) {
  const std::string path = folder.file(name);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  REQUIRE(file != nullptr);
  REQUIRE(std::fwrite(text.data(), 1, text.size(), file) == text.size());
  std::fclose(file);
  return path;
}

/// A tiny model, once for the whole program.
inline const std::string& tiny_gguf() {
  static const TempDir* folder = [] {
    auto* made = new TempDir;
    TinyLlama model;
    model.dtype = ATLAS_Q4_1;
    model.embedding_dtype = ATLAS_Q8_0;
    write_tiny_llama_gguf(model, made->file("tiny.gguf"));
    return made;
  }();
  static const std::string path = folder->file("tiny.gguf");
  return path;
}

inline tools::ModelOptions tiny_options(const std::string& path = tiny_gguf()) {
  tools::ModelOptions options;
  options.model = path;
  options.threads = 2;
  options.set = {"engine.reserve_bytes=0"};
  return options;
}

inline std::unique_ptr<tools::LocalModel> open_model(const tools::ModelOptions& options,
                                                     const tools::EngineNeeds& needs) {
  const auto settings = tools::tool_settings(options, needs);
  REQUIRE_MESSAGE(settings, settings.error().message());
  auto model = tools::LocalModel::open(*settings, needs.scored_rows);
  REQUIRE_MESSAGE(model, model.error().message());
  return std::move(*model);
}

/// Ids of characters: id, id + 1, ...
inline std::vector<engine::TokenId> some_ids(uint32_t count, uint32_t step = 7) {
  std::vector<engine::TokenId> ids;
  for (uint32_t i = 0; i < count; ++i) ids.push_back(kTinyFirstByte + (i * step + 60) % 256);
  return ids;
}

struct ProgramRun {
  int code = -1;
  std::string out;  // standard output and error
};

/// Runs a built program with arguments as a shell would read them.
inline ProgramRun run_program(const std::string& name, const std::string& arguments) {
  const std::string command =
      std::string(ATLAS_BINARY_DIR) + "/bin/" + name + " " + arguments + " 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  ProgramRun run;
  char part[4096];
  for (size_t got = 0; (got = std::fread(part, 1, sizeof(part), pipe)) > 0;)
    run.out.append(part, got);
  const int status = ::pclose(pipe);
  run.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

}  // namespace atlas::testing
