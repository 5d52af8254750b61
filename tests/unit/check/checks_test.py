"""Breaks the checks of tools/check on purpose: each must notice, and name file, line and rule.

Usage: checks_test.py SOURCE_DIR BUILD_DIR
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = map(pathlib.Path, sys.argv[1:3])
NVCC = shutil.which("nvcc", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")


def run(check, *arguments):
    command = [sys.executable, str(SOURCE / "tools/check" / check), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


class Rooms(unittest.TestCase):
    def check_tree(self, files):
        """Exit status and output for a tree of these files."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                target = pathlib.Path(root, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
            return run("rooms", root)

    def expect(self, path, include, *parts):
        files = {"daemon/engine/engine.h": "", "daemon/base/status.h": "",
                 "plugins/quant_bf16/format.h": "", path: f"// one\n{include}\n"}
        status, output = self.check_tree(files)
        self.assertEqual(status, 1, output)
        self.assertIn(f"{path}:2: ", output)
        self.assertIn("1 wrong", output)
        for part in parts:
            self.assertIn(part, output)

    def test_a_clean_tree_passes(self):
        status, output = self.check_tree({
            "daemon/base/status.h": "#include <string>\n",
            "daemon/device/device.cpp": '#include "daemon/base/status.h"\n'
                                        '#include "daemon/device/device.h"\n',
            "daemon/device/device.h": ""})
        self.assertEqual(status, 0, output)

    def test_a_room_below_does_not_see_a_room_above(self):
        self.expect("daemon/device/device.cpp", '#include "daemon/engine/engine.h"',
                    "room daemon/device may not include", "rooms.table:")

    def test_a_plugin_sees_neither_daemon_nor_another_plugin(self):
        self.expect("plugins/quant_gguf/plugin.cpp", '#include "daemon/base/status.h"',
                    "room plugins/quant_gguf may not include")
        self.expect("plugins/quant_gguf/plugin.cpp", '  #  include "plugins/quant_bf16/format.h"',
                    "room plugins/quant_gguf may not include")

    def test_a_library_with_one_owner_stays_there(self):
        self.expect("daemon/serve/socket.cpp", "#include <yaml-cpp/yaml.h>", "daemon/settings")
        self.expect("daemon/engine/engine.cpp", "#include <boost/asio.hpp>", "daemon/serve")
        self.expect("daemon/exec/graph.cpp", "#include <cuda_runtime.h>", "plugins/platform_cuda")

    def test_the_contract_includes_c_headers_only(self):
        self.expect("plugins/abi/atlas_plugin.h", "#include <string>", "may not include <string>")

    def test_paths_begin_at_the_root_and_every_folder_has_a_room(self):
        self.expect("daemon/base/log.cpp", '#include "status.h"', "no path from the root")
        self.expect("daemon/attic/old.cpp", '#include "daemon/base/status.h"', "is in no room")

    def test_nothing_to_check_is_not_a_success(self):
        self.assertEqual(self.check_tree({"README.md": ""})[0], 2)


class Symbols(unittest.TestCase):
    def test_what_a_plugin_exports_too_much_or_lacks_is_named(self):
        plugins = BUILD / "lib/atlas/test-plugins"
        status, output = run("symbols", plugins)
        self.assertEqual(status, 1, output)
        self.assertIn(f"{plugins}/exports_more.so: exports 'atlas_descriptor_note'", output)
        self.assertIn(f"{plugins}/no_entry.so: does not export 'atlas_plugin_entry'", output)
        self.assertNotIn("good.so", output)

    def test_what_a_pack_exports_too_much_is_named(self):
        with tempfile.TemporaryDirectory() as root:
            folder = pathlib.Path(root, "kernels/cpu")
            folder.mkdir(parents=True)
            os.symlink(BUILD / "lib/atlas/test-kernels/cpu/test.so", folder / "test.so")
            self.assertEqual(run("symbols", root)[0], 0)
            os.symlink(BUILD / "lib/atlas/test-plugins/good.so", folder / "good.so")
            status, output = run("symbols", root)
            self.assertEqual(status, 1)
            self.assertIn("exports 'atlas_plugin_entry'", output)

    def test_nothing_to_check_is_not_a_success(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(run("symbols", root)[0], 2)


class Tuning(unittest.TestCase):
    def check(self, change):
        """Exit status and output with gb10's file changed."""
        with tempfile.TemporaryDirectory() as root:
            for platform in ("h200", "gb10", "strix-hip"):
                text = (SOURCE / "kernels" / platform / "tuning.yaml").read_text()
                target = pathlib.Path(root, "kernels", platform, "tuning.yaml")
                target.parent.mkdir(parents=True)
                target.write_text(change(text) if platform == "gb10" else text)
            common = pathlib.Path(root, "kernels/common")
            common.mkdir()
            (common / "tuning.h").write_text((SOURCE / "kernels/common/tuning.h").read_text())
            return run("tuning", root)

    def test_what_an_entry_lacks_is_named_with_its_line(self):
        self.assertEqual(self.check(lambda text: text)[0], 0)
        for change, message in (
                (lambda text: text.replace("exl3_few", "exl3_fewer"), "choice 'exl3_fewer' is none of"),
                (lambda text: text.replace("exl3_many", "exl3_wgmma"), "a kernel that this platform does not have"),
                (lambda text: text.replace("above: 48", "above: many"), "`above` is no number"),
                (lambda text: text.replace("predicted", "measured", 1), "a measured entry needs `date`"),
                (lambda text: text.replace("predicted", "guessed", 1), "status 'guessed'"),
                (lambda text: text.replace("  above: 48\n", "  above: 48\n  n: [9, 3]\n"), "`n` is [least, most]"),
                (lambda text: text + "\nwrong\n", "is not `- key: value`"),
                (lambda text: text.replace("above: 48", "above: 40"), "is not what the files say")):
            status, output = self.check(change)
            self.assertEqual(status, 1, output)
            self.assertIn(message, output)
            if "files say" not in message:
                self.assertIn("kernels/gb10/tuning.yaml:", output)


HIP_REPORT = """    .group_segment_fixed_size: 0
    .max_flat_workgroup_size: 256
    .name: atlas_kernel_{}
    .sgpr_spill_count: 0
    .vgpr_count: 40
    .vgpr_spill_count: 0
"""


class Isa(unittest.TestCase):
    def test_a_table_of_some_platforms_is_not_written(self):
        page = SOURCE / "docs/kernels.md"
        before = page.read_text()
        with tempfile.TemporaryDirectory() as root:
            build = pathlib.Path(root)
            self.assertEqual(run("isa", build, "--docs")[0], 77)
            packs, reports = build / "lib/atlas/kernels/strix-hip", build / "kernels/strix-hip/strix-hip"
            packs.mkdir(parents=True)
            reports.mkdir(parents=True)
            (packs / "rows.hsaco").write_bytes(b"")
            (reports / "rows.txt").write_text(HIP_REPORT.format("copy_rows"))
            (build / "kernels/strix-hip/modules.txt").write_text("rows\n")
            self.assertEqual(run("isa", build)[0], 0)
            self.assertIn("`copy_rows` | strix-hip | 256 | 40", (build / "isa.md").read_text())
            status, output = run("isa", build, "--docs")
            self.assertEqual(status, 77, output)
            self.assertIn("not all platforms are built here: h200, gb10 (targets atlas_kernels_h200 ", output)
            # A pack that lacks a module is not whole.
            (build / "kernels/strix-hip/modules.txt").write_text("rows\ngqa\n")
            status, output = run("isa", build, "--docs")
            self.assertEqual(status, 77, output)
            self.assertIn("strix-hip (targets", output)
        self.assertEqual(page.read_text(), before)


SPILLING = """#include "kernels/common/device/device.h"
namespace atlas::kernels {
ATLAS_PARAMS(SpillingParams, const float* x; float* y;);
// More values at once than 1,024 threads have registers for.
ATLAS_DEVICE_KERNEL(spilling, SpillingParams, 1024) {
  float v[200];
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 200; ++i) v[i] = device::load(params.x + i * 1024 + device::thread_index());
  device::block_barrier();
  ATLAS_UNROLL
  for (uint32_t i = 0; i < 200; ++i) device::store(params.y + i, v[i] * v[199 - i]);
}
}
"""


# Sums are changed between two matrix instructions that could run on.
WAITING = """#include "kernels/common/device/wgmma.h"
namespace atlas::kernels {
ATLAS_PARAMS(WaitingParams, const uint32_t* x; float* y;);
ATLAS_DEVICE_KERNEL(waiting, WaitingParams, 128) {
  using namespace device;
  WgmmaSums<64> sums{};
  MmaA a[1] = {{{load(params.x), load(params.x + 1), load(params.x + 2), load(params.x + 3)}}};
  wgmma_begin(a);
  for (uint32_t i = 0; i < 2; ++i) {
    wgmma_f16(sums, a[0], wgmma_matrix(shared_memory<uint8_t>(), 8 * kWgmmaRowBytes).at_step(i), true);
    sums.r[3] += 1.0f;
  }
  wgmma_commit();
  wgmma_wait_for(sums);
  for (uint32_t i = 0; i < 32; ++i) store(params.y + 32 * thread_index() + i, sums.r[i]);
}
}
"""


@unittest.skipUnless(NVCC, "no nvcc")
class Modules(unittest.TestCase):
    def build(self, excuses, text=SPILLING):
        with tempfile.TemporaryDirectory() as root:
            source, out, spills = (pathlib.Path(root, name) for name in ("a.cu", "a.cubin", "spills.txt"))
            source.write_text(text)
            spills.write_text(excuses)
            done = subprocess.run(
                ["cmake", "-DFORM=cuda", f"-DSOURCE={source}", f"-DOUTPUT={out}", f"-DWORK={root}/a",
                 "-DPLATFORM=h200", "-DARCHITECTURE=90a", "-DDEFINE=ATLAS_ARCH_H200", f"-DROOT={SOURCE}",
                 f"-DNVCC={NVCC}", f"-DSPILLS={spills}", "-P", str(SOURCE / "cmake/build_gpu_module.cmake")],
                capture_output=True, text=True)
            return done.returncode, " ".join(done.stderr.split()), out.exists()

    def test_a_kernel_that_spills_is_no_module_unless_excused(self):
        status, output, built = self.build("# none\nh200/other: measured\n")
        self.assertNotEqual(status, 0)
        self.assertIn("kernel 'spilling' spills registers", output)
        self.assertFalse(built)
        status, output, built = self.build("h200/spilling: measured\n")
        self.assertEqual(status, 0, output)
        self.assertTrue(built)

    def test_matrix_instructions_that_wait_for_each_other_are_no_module(self):
        status, output, built = self.build("", WAITING)
        self.assertNotEqual(status, 0)
        self.assertIn("matrix instructions do not overlap", output)
        self.assertFalse(built)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
