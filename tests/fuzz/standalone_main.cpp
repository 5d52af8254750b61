// Runs a libFuzzer-style entry without libFuzzer, so that any compiler with sanitizers can: first
// the inputs that it is given, then mutations of them that depend on seed and run number alone.
//
//   NAME [-runs=N] [-seconds=T] [-seed=S] [-only=I] [FILE or FOLDER...]
//
// With -seconds it ends after that time, if not before.
// A crash prints the run and the seed; -only=I with the same inputs and seed repeats that one run.
// With clang, linking the entry with -fsanitize=fuzzer instead of this file gives the real thing.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Input = std::vector<uint8_t>;

struct Options {
  uint64_t runs = 20000;
  uint64_t seconds = 0;  // 0: no limit
  uint64_t seed = 1;
  uint64_t only = 0;  // 0: all
  std::vector<std::string> paths;
};

/// splitmix64: https://prng.di.unimi.it/splitmix64.c
class Random {
 public:
  explicit Random(uint64_t state) : state_(state) {}
  uint64_t next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
  }
  uint64_t below(uint64_t bound) { return bound == 0 ? 0 : next() % bound; }

 private:
  uint64_t state_;
};

char g_where[128] = "before the first input";

void say_where() {
  const char newline = '\n';
  (void)!write(STDERR_FILENO, g_where, std::strlen(g_where));
  (void)!write(STDERR_FILENO, &newline, 1);
}

void on_signal(int signal) {
  say_where();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// Numbers at which sizes, counts and offsets go wrong.
constexpr uint64_t kNumbers[] = {0,
                                 1,
                                 2,
                                 7,
                                 8,
                                 31,
                                 32,
                                 127,
                                 128,
                                 255,
                                 256,
                                 32767,
                                 32768,
                                 65535,
                                 65536,
                                 0x7fffffff,
                                 0x80000000,
                                 0xffffffff,
                                 0x100000000,
                                 0x7fffffffffffffff,
                                 0x8000000000000000,
                                 0xffffffffffffffff};
constexpr const char* kPieces[] = {"{",       "}",    "[",       "]",
                                   "\"",      ",",    ":",       "\\u0000",
                                   "\\ud800", "-1",   "1e999",   "18446744073709551616",
                                   "null",    "{{",   "}}",      "{%",
                                   "%}",      "\xff", "\xc0\x80"};

void mutate_once(const std::vector<Input>& inputs, Random* random, Input* input) {
  const size_t at = random->below(input->size() + 1);
  const auto place = input->begin() + static_cast<std::ptrdiff_t>(at);
  const size_t length =
      std::min<size_t>(1 + random->below(random->below(64) + 1), input->size() - at);
  const auto end = place + static_cast<std::ptrdiff_t>(length);
  switch (random->below(9)) {
    case 0:
      if (length != 0) *place ^= static_cast<uint8_t>(1u << random->below(8));
      break;
    case 1:
      if (length != 0) *place = static_cast<uint8_t>(random->next());
      break;
    case 2: {
      const uint64_t value = kNumbers[random->below(std::size(kNumbers))];
      const size_t width = size_t{1} << random->below(4);
      if (input->size() - at >= width) std::memcpy(input->data() + at, &value, width);
      break;
    }
    case 3:
      input->erase(place, end);
      break;
    case 4: {
      const Input copy(place, end);
      input->insert(place, copy.begin(), copy.end());
      break;
    }
    case 5: {
      const char* piece = kPieces[random->below(std::size(kPieces))];
      input->insert(place, piece, piece + std::strlen(piece));
      break;
    }
    case 6:
      input->erase(place, input->end());
      break;
    case 7: {
      const Input& other = inputs[random->below(inputs.size())];
      const size_t from = random->below(other.size() + 1);
      const size_t count = std::min<size_t>(random->below(256), other.size() - from);
      const auto begin = other.begin() + static_cast<std::ptrdiff_t>(from);
      input->insert(place, begin, begin + static_cast<std::ptrdiff_t>(count));
      break;
    }
    default:
      // A change of a number's lowest digit keeps more of the rest valid than any other.
      if (length != 0) *place = static_cast<uint8_t>(*place + (random->below(2) == 0 ? 1 : 255));
      break;
  }
}

void add_path(const std::filesystem::path& path, std::vector<Input>* inputs) {
  if (std::filesystem::is_directory(path)) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(path))
      files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) add_path(file, inputs);
    return;
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::exit(2);
  }
  inputs->emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

bool take_number(const char* argument, const char* name, uint64_t* into) {
  const size_t length = std::strlen(name);
  if (std::strncmp(argument, name, length) != 0) return false;
  char* end = nullptr;
  *into = std::strtoull(argument + length, &end, 10);
  if (end == argument + length || *end != '\0') {
    std::fprintf(stderr, "%s: expected a number\n", argument);
    std::exit(2);
  }
  return true;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (take_number(argv[i], "-runs=", &options.runs) ||
        take_number(argv[i], "-seconds=", &options.seconds) ||
        take_number(argv[i], "-seed=", &options.seed) ||
        take_number(argv[i], "-only=", &options.only)) {
      continue;
    }
    if (argv[i][0] == '-') {
      std::fprintf(stderr,
                   "usage: %s [-runs=N] [-seconds=T] [-seed=S] [-only=I] [FILE or FOLDER...]\n",
                   argv[0]);
      std::exit(2);
    }
    options.paths.emplace_back(argv[i]);
  }
  return options;
}

/// The heap copy has exactly the input's size, so that a sanitizer sees reads past its end.
void run_one(const Input& input) {
  const Input copy(input.begin(), input.end());
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::vector<Input> inputs;
  for (const std::string& path : options.paths) add_path(path, &inputs);
  if (inputs.empty()) inputs.emplace_back();
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL})
    std::signal(signal, on_signal);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(say_where);

  for (size_t i = 0; options.only == 0 && i < inputs.size(); ++i) {
    std::snprintf(g_where, sizeof(g_where), "crashed in given input %zu", i);
    run_one(inputs[i]);
  }
  const uint64_t first = options.only != 0 ? options.only : 1;
  const uint64_t last = options.only != 0 ? options.only : options.runs;
  const auto start = std::chrono::steady_clock::now();
  uint64_t run = first;
  for (; run <= last; ++run) {
    const auto spent = std::chrono::steady_clock::now() - start;
    if (options.seconds != 0 && spent >= std::chrono::seconds(options.seconds)) break;
    std::snprintf(g_where, sizeof(g_where), "crashed in run %llu of seed %llu",
                  static_cast<unsigned long long>(run),
                  static_cast<unsigned long long>(options.seed));
    Random random(options.seed * 0x2545f4914f6cdd1dull + run);
    Input input = inputs[random.below(inputs.size())];
    for (uint64_t i = random.below(5) + 1; i > 0; --i) mutate_once(inputs, &random, &input);
    run_one(input);
  }
  std::printf("%zu inputs and %llu mutations, no crash\n", inputs.size(),
              static_cast<unsigned long long>(run - first));
}
