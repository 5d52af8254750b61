#!/usr/bin/env python3
"""Products and layers of experts by cuBLAS through PyTorch, measured as `atlas-bench kernels` measures them.

  compare_cublas.py [--shapes KxN,...] [--experts] [--rows N,...] [--formats bf16,...] > theirs.json
  compare_cublas.py --join ours.json theirs.json

The first needs the package torch. bf16: torch.mm, weights [n, k] seen transposed. fp8: torch._scaled_mm of
e4m3 by e4m3 with one scale a matrix; fp8_rows: with a scale for each row and output. A layer of experts:
torch._grouped_mm in bf16 over rows that are sorted already, gate and up as one product, silu * up, down; no
router, no gathering, no weighted sum. Calls are a graph, one after the other, each with another copy of the
weights (or other experts), so that they come from memory; on a CPU (--device cpu) they are called one by one.
The second needs nothing, and writes one table of both: ours is the JSON of `atlas-bench kernels --json`.
"""

import argparse
import json
import math
import random
import re
import statistics
import sys
import time

PRODUCTS = ("2560x10240,2560x12288,2560x6144,6144x2560,2560x640,640x2560,10240x324,320x10240,2560x513,"
            "2560x248320")
EXPERTS = "10of512:2560x640"
PRODUCT_ROWS = [1, 2, 4, 8, 16, 64, 512, 4096, 16384]
EXPERT_ROWS = [1, 2, 4, 8, 64, 512, 4096]
EXPERT_CALLS = ((1, 48), (2, 32), (4, 24), (8, 16), (64, 8), (512, 6))
MANY_ROWS, CALLS_OF_MANY_ROWS = 512, 16
REPLAY_S, MOST_CALLS = 2e-3, 2048


def parse_shape(text):
    """The fields of a shape: "2560x10240", or "10of512:2560x640" for experts."""
    match = re.fullmatch(r"(?:([1-9]\d*)of([1-9]\d*):)?([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}' is no shape: 2560x10240 or 10of512:2560x640")
    top, experts, k, n = (int(part or 0) for part in match.groups())
    return {"shape": text, "k": k, "n": n, "experts": experts, "top": top}


def shape_list(text):
    return [parse_shape(part) for part in text.split(",")]


def row_list(text):
    rows = sorted({int(part) for part in text.split(",")})
    if rows[0] < 1:
        raise argparse.ArgumentTypeError("rows begin at 1")
    return rows


class Timer:
    """Times chains of calls: as a graph on a GPU, by the clock elsewhere."""

    def __init__(self, torch, device, ms):
        self.torch, self.gpu, self.ms = torch, device.startswith("cuda"), ms

    def chain(self, calls):
        """A function that runs all of `calls` in order."""
        if not self.gpu:
            return lambda: [call() for call in calls]
        torch = self.torch
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):  # what allocates or chooses at the first call does it here
            calls[0]()
            calls[-1]()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        return graph.replay

    def seconds(self, run, replays):
        if self.gpu:
            self.torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(replays):
            run()
        if self.gpu:
            self.torch.cuda.synchronize()
        return (time.perf_counter() - start) / replays

    def measure(self, calls):
        """Microseconds of one call: (median, best) of the replays."""
        count = len(calls)
        run = self.chain(calls)
        self.seconds(run, 1)
        once = self.seconds(run, 1)
        rounds = min(math.ceil(REPLAY_S / once), MOST_CALLS // count)
        if rounds > 1:
            count *= rounds
            run = self.chain(calls * rounds)
            self.seconds(run, 1)
            once = self.seconds(run, 1)
        replays = max(1, min(1000, int(REPLAY_S / once)))
        samples = max(3, min(25, int(self.ms / 1000 / (once * replays))))
        times = [1e6 * self.seconds(run, replays) / count for _ in range(samples)]
        return statistics.median(times), min(times)


class Bench:
    def __init__(self, torch, options):
        self.torch, self.device = torch, options.device
        self.resident_bytes = options.weights_mb * 1000000
        self.timer = Timer(torch, options.device, options.ms)
        self.results, self.skipped = [], []

    def random(self, *size):
        return self.torch.randn(*size, device=self.device, dtype=self.torch.bfloat16)

    def add(self, format, shape, rows, bytes, operations, times):
        self.results.append({"format": format, **shape, "rows": rows, "us": times[0], "best_us": times[1],
                             "bytes": bytes, "operations": operations})

    def attempt(self, format, shape, rows, make):
        """Measures the calls that `make` gives; what PyTorch refuses is left out with its reason."""
        try:
            calls, bytes, operations = make()
            self.add(format, shape, rows, bytes, operations, self.timer.measure(calls))
        except (RuntimeError, ValueError, NotImplementedError, AttributeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.skipped.append({"format": format, **shape, "rows": rows, "reason": reason})

    def products(self, format, shape, all_rows):
        torch, k, n = self.torch, shape["k"], shape["n"]
        bytes = n * k * (2 if format == "bf16" else 1)
        copies = max(2, min(1024, math.ceil(self.resident_bytes / bytes)))
        weights = [self.random(n, k) * k ** -0.5 for _ in range(min(copies, 4))]
        if format != "bf16":
            weights = [weight.to(torch.float8_e4m3fn) for weight in weights]
        while len(weights) < copies:
            weights.append(weights[len(weights) % 4].clone())
        for rows in all_rows:
            self.attempt(format, shape, rows, lambda: (
                self.product_calls(format, weights, rows), bytes, 2 * rows * n * k))

    def product_calls(self, format, weights, rows):
        torch = self.torch
        n, k = weights[0].shape
        if rows >= MANY_ROWS:
            weights = weights[:CALLS_OF_MANY_ROWS]
        x = self.random(rows, k)
        if format == "bf16":
            y = torch.empty(rows, n, device=self.device, dtype=torch.bfloat16)
            return [lambda w=w: torch.mm(x, w.t(), out=y) for w in weights]
        x = x.to(torch.float8_e4m3fn)
        by_row = format == "fp8_rows"
        scale_x = torch.ones((rows, 1) if by_row else (), device=self.device)
        scale_w = torch.ones((1, n) if by_row else (), device=self.device)
        return [lambda w=w: torch._scaled_mm(x, w.t(), scale_a=scale_x, scale_b=scale_w,
                                             out_dtype=torch.bfloat16, use_fast_accum=True) for w in weights]

    def experts(self, shape, all_rows):
        count, k, n = shape["experts"], shape["k"], shape["n"]
        gate_up = self.random(count, 2 * n, k) * k ** -0.5
        down = self.random(count, k, n) * n ** -0.5
        for rows in all_rows:
            self.attempt("bf16", shape, rows, lambda: self.expert_calls(shape, gate_up, down, rows))

    def expert_calls(self, shape, gate_up, down, rows):
        torch, n = self.torch, shape["n"]
        x = self.random(rows * shape["top"], shape["k"])
        count = next((calls for most, calls in EXPERT_CALLS if rows <= most), 4)
        calls, distinct = [], 0
        for chosen in expert_choices(shape, rows, count):
            distinct += sum(1 for uses in chosen if uses)
            ends, total = [], 0
            for uses in chosen:
                total += uses
                ends.append(total)
            ends = torch.tensor(ends, device=self.device, dtype=torch.int32)

            def call(ends=ends):
                both = torch._grouped_mm(x, gate_up.transpose(1, 2), offs=ends)
                inner = torch.nn.functional.silu(both[:, :n]) * both[:, n:]
                return torch._grouped_mm(inner, down.transpose(1, 2), offs=ends)
            calls.append(call)
        matrix = shape["k"] * n
        return calls, 6 * matrix * distinct / count, 6 * rows * shape["top"] * matrix


def expert_choices(shape, rows, calls):
    """How often each expert is chosen, call by call: at random; by one row in turn, as none is to be in a cache."""
    draw = random.Random(rows)
    order, place = list(range(shape["experts"])), shape["experts"]
    for _ in range(calls):
        uses = [0] * shape["experts"]
        for _ in range(rows):
            if rows > 1 or place + shape["top"] > len(order):
                draw.shuffle(order)
                place = 0
            for expert in order[place:place + shape["top"]]:
                uses[expert] += 1
            place += shape["top"]
        yield uses


def measure(options):
    try:
        import torch
    except ModuleNotFoundError:
        sys.exit("the package torch is not installed; only --join does without it")
    torch.set_grad_enabled(False)
    torch.manual_seed(1)
    bench = Bench(torch, options)
    shapes = options.shapes
    if shapes is None:
        shapes = [] if options.experts else shape_list(PRODUCTS)
    if options.experts or options.shapes is None:
        shapes = shapes + [parse_shape(EXPERTS)]
    for shape in shapes:
        if shape["experts"]:
            if "bf16" in options.formats:
                bench.experts(shape, options.rows or EXPERT_ROWS)
            continue
        for format in options.formats:
            bench.products(format, shape, options.rows or PRODUCT_ROWS)
    gpu = options.device.startswith("cuda")
    json.dump({"benchmark": "cublas", "torch": torch.__version__, "cuda": torch.version.cuda,
               "device": torch.cuda.get_device_name() if gpu else "cpu",
               "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
               "results": bench.results, "skipped": bench.skipped}, sys.stdout, indent=2)
    print()
    if not bench.results:
        sys.exit("nothing could be measured: " + (bench.skipped[0]["reason"] if bench.skipped else "no shapes"))


def number(value, digits=2):
    return "" if value is None else f"{value:,.{digits}f}"


def read_results(path, fields):
    """The results of a file of JSON; raises ValueError with what is wrong with it."""
    try:
        with open(path, encoding="utf-8") as file:
            results = json.load(file)["results"]
        wrong = [one for one in results if not all(isinstance(one[name], kind) for name, kind in fields.items())
                 or not one["us"] > 0]
    except OSError as error:
        raise ValueError(f"cannot read '{path}': {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"'{path}' is no JSON: {error}") from error
    except (KeyError, TypeError) as error:
        raise ValueError(f"'{path}' has no list 'results' of objects with {', '.join(fields)}") from error
    if wrong:
        raise ValueError(f"'{path}' has a result with a wrong value in {', '.join(fields)}: {wrong[0]}")
    return results


FIELDS = {"format": str, "shape": str, "rows": int, "us": (int, float)}


def join(ours, theirs):
    """A Markdown table: each of our figures, its floor, and theirs for the same shape and rows."""
    times = {}
    for one in theirs:
        format = one["format"].removesuffix("_rows")
        key = (format, one["shape"], one["rows"])
        times[key] = min(one["us"], times.get(key, one["us"]))
    print("| format | in x out | rows | launches | us | floors: bytes us | operations us | decode us | share | "
          "cuBLAS bf16 us | fp8 us | bf16 / ours |")
    print("|" + " --- |" * 12)
    for one in ours:
        bf16, fp8 = (times.get((format, one["shape"], one["rows"])) for format in ("bf16", "fp8"))
        floors = [number(one.get(f"{what}_floor_us")) for what in ("bytes", "operations", "decode")]
        share = f"{100 * one['floor_us'] / one['us']:.0f} %" if "floor_us" in one else ""
        print("| " + " | ".join([one["format"], one["shape"], str(one["rows"]), str(one["launches"]),
                                 number(one["us"]), *floors, share, number(bf16), number(fp8),
                                 number(bf16 / one["us"] if bf16 else None)]) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--join", nargs=2, metavar=("OURS", "THEIRS"))
    parser.add_argument("--formats", type=lambda text: text.split(","), default=["bf16", "fp8", "fp8_rows"])
    parser.add_argument("--shapes", type=shape_list)
    parser.add_argument("--experts", action="store_true")
    parser.add_argument("--rows", type=row_list)
    parser.add_argument("--weights-mb", type=int, default=320)
    parser.add_argument("--ms", type=float, default=30)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    for format in options.formats:
        if format not in ("bf16", "fp8", "fp8_rows"):
            parser.error(f"there is no format '{format}': bf16, fp8, fp8_rows")
    if options.join:
        try:
            files = read_results(options.join[0], FIELDS | {"launches": int}), read_results(options.join[1], FIELDS)
        except ValueError as error:
            parser.error(str(error))
        join(*files)
    else:
        measure(options)


if __name__ == "__main__":
    main()
