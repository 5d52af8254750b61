// atlas-kernel-check: are all kernels there that plugins and core will launch? Needs no device.
// Exit status: 0 good, 1 something is missing or refused, 2 wrong usage.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "tools/atlas-kernel-check/check.h"

int main(int argc, char** argv) {
  atlas::kernel_check::CheckOptions options;
  bool json = false, coverage = false;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto library = program.parent_path().parent_path() / "lib" / "atlas";
  options.kernel_folder = (library / "kernels").string();

  CLI::App app{
      "Checks that the kernel packs hold every kernel that the plugins and the core name, with "
      "the same parameters. Reads files only; needs no device."};
  app.name("atlas-kernel-check");
  app.add_option("--platform", options.platform, "Check this platform only; it must have packs")
      ->type_name("NAME");
  auto* folder = app.add_option("--plugins", options.plugin_folder,
                                "Folder of plugins (default: lib/atlas/plugins beside bin)")
                     ->type_name("DIR");
  app.add_option(
         "--kernels", options.kernel_folder,
         "Folder with one folder of packs a platform (default: lib/atlas/kernels beside bin)")
      ->type_name("DIR");
  app.add_option("--plugin", options.plugin_files,
                 "Check this plugin, instead of the folder's unless --plugins is given too")
      ->type_name("FILE");
  app.add_flag("--only-plugins", options.only_plugins,
               "Leave out the core's kernels; plugins may bring all the packs that they need");
  auto* as_json = app.add_flag("--json", json, "Write JSON");
  app.add_flag("--coverage", coverage,
               "Write a Markdown table: which kernel is there on which platform")
      ->excludes(as_json);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& wrong) {
    return app.exit(wrong) == 0 ? 0 : 2;
  }
  if (folder->count() == 0 && options.plugin_files.empty()) {
    options.plugin_folder = (library / "plugins").string();
  }
  const auto report = atlas::kernel_check::check(options);
  const std::string text = coverage ? report.coverage.markdown()
                           : json   ? report.json()
                                    : report.text();
  std::fputs(text.c_str(), stdout);
  return report.ok() ? 0 : 1;
}
