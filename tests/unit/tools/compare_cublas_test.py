"""tools/compare_cublas.py: its joined table, its command line, and, where torch is installed, a measurement.

  compare_cublas_test.py SOURCE_FOLDER
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = sys.argv.pop(1)


def run(*arguments):
    return subprocess.run([sys.executable, os.path.join(SOURCE, "tools", "compare_cublas.py"), *arguments],
                          capture_output=True, text=True, check=False)


class Join(unittest.TestCase):
    def join(self, ours, theirs):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("ours.json", "theirs.json")]
            for path, results in zip(paths, (ours, theirs)):
                with open(path, "w", encoding="utf-8") as file:
                    json.dump({"results": results}, file)
            joined = run("--join", *paths)
            self.assertEqual(joined.returncode, 0, joined.stderr)
            return [[cell.strip() for cell in line.strip("|").split("|")]
                    for line in joined.stdout.splitlines()[2:]]

    def test_figures_of_one_shape_and_row_count_stand_side_by_side(self):
        ours = [{"format": "exl3:3", "shape": "2560x10240", "rows": 1, "launches": 1, "us": 8.0, "floor_us": 4.0,
                 "bytes_floor_us": 3.5, "operations_floor_us": 0.07, "decode_floor_us": 4.0},
                {"format": "bf16", "shape": "64x48", "rows": 2, "launches": 2, "us": 5.0}]
        theirs = [{"format": "bf16", "shape": "2560x10240", "rows": 1, "us": 16.0},
                  {"format": "fp8_rows", "shape": "2560x10240", "rows": 1, "us": 11.0},
                  {"format": "fp8", "shape": "2560x10240", "rows": 1, "us": 12.0},
                  {"format": "bf16", "shape": "2560x10240", "rows": 2, "us": 17.0}]
        self.assertEqual(self.join(ours, theirs), [
            ["exl3:3", "2560x10240", "1", "1", "8.00", "3.50", "0.07", "4.00", "50 %", "16.00", "11.00", "2.00"],
            ["bf16", "64x48", "2", "2", "5.00", "", "", "", "", "", "", ""]])


class CommandLine(unittest.TestCase):
    def test_files_that_cannot_be_joined_are_wrong_usage_and_named(self):
        good = b'{"results": [{"format": "bf16", "shape": "1x1", "rows": 1, "us": 2.0, "launches": 1}]}'
        with tempfile.TemporaryDirectory() as folder:
            paths = {"good": os.path.join(folder, "good"), "folder": folder, "nowhere": os.path.join(folder, "nowhere")}
            for name, text in {"good": good, "text": b"no JSON", "bytes": b"\xff\xfe", "list": b"[]",
                               "other": b'{"results": 3}', "deep": b"[" * 100000, "zero": good.replace(b"2.0", b"0.0"),
                               "typed": good.replace(b"2.0", b'"2"')}.items():
                paths[name] = os.path.join(folder, name)
                with open(paths[name], "wb") as file:
                    file.write(text)
            self.assertEqual(run("--join", paths["good"], paths["good"]).returncode, 0)
            for name in paths.keys() - {"good"}:
                for pair in (paths["good"], paths[name]), (paths[name], paths["good"]):
                    joined = run("--join", *pair)
                    self.assertEqual(joined.returncode, 2, name)
                    self.assertIn(f"'{paths[name]}'", joined.stderr)
                    self.assertNotIn("Traceback", joined.stderr)

    def test_what_is_no_shape_or_format_is_wrong_usage(self):
        for wrong in (["--shapes", "256"], ["--shapes", "0x5"], ["--rows", "0"], ["--formats", "int4"]):
            self.assertEqual(run(*wrong).returncode, 2, wrong)


@unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
class Measure(unittest.TestCase):
    def test_products_and_experts_are_measured_by_the_clock_on_a_cpu(self):
        measured = run("--device", "cpu", "--shapes", "64x48,2of8:32x16", "--rows", "1,5", "--weights-mb", "1",
                       "--ms", "0.1")
        self.assertEqual(measured.returncode, 0, measured.stderr)
        results = json.loads(measured.stdout)["results"]
        bf16 = [one for one in results if one["format"] == "bf16" and not one["experts"]]
        self.assertEqual([one["rows"] for one in bf16], [1, 5])
        self.assertEqual(bf16[1]["operations"], 2 * 5 * 64 * 48)
        self.assertTrue(all(one["us"] > 0 for one in results))


if __name__ == "__main__":
    unittest.main()
