#include "tests/support/run_program.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace atlas::testing {

namespace {

std::string content(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

RunningProgram::RunningProgram(const std::vector<std::string>& arguments,
                               const std::string& directory) {
  const std::string out = folder_.file("out"), err = folder_.file("err");
  const std::string program = std::string(ATLAS_BINARY_DIR) + "/bin/" + arguments.front();
  std::vector<char*> argv;
  for (const std::string& one : arguments) argv.push_back(const_cast<char*>(one.c_str()));
  argv.push_back(nullptr);
  pid_ = ::fork();
  REQUIRE(pid_ >= 0);
  if (pid_ == 0) {
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    if (::chdir(directory.c_str()) == 0) ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
}

RunningProgram::~RunningProgram() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool RunningProgram::running() const {
  siginfo_t info{};
  return pid_ >= 0 &&
         ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

Ran RunningProgram::finish() {
  int status = 0;
  REQUIRE(::waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          content(folder_.file("out")), content(folder_.file("err"))};
}

Ran run_program(const std::vector<std::string>& arguments, const std::string& directory) {
  return RunningProgram(arguments, directory).finish();
}

}  // namespace atlas::testing
