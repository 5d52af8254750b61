#!/usr/bin/env python3
"""Prefill and decode speed of a running atlasd beside llama.cpp, alternating, on the same file.

  compare_llamacpp.py MODEL.gguf SOCKET [ROUNDS]

Needs the Python packages llama-cpp-python (built from source for this machine) and httpx; atlasd must
serve the same file. Run it on a machine that does nothing else.
"""

import random
import statistics
import sys
import time

import httpx
from llama_cpp import Llama

PROMPT, DECODE, THREADS = 512, 128, 2


def rate(tokens, run):
    start = time.perf_counter()
    run()
    return tokens / (time.perf_counter() - start)


class Atlas:
    def __init__(self, socket):
        self.http = httpx.Client(transport=httpx.HTTPTransport(uds=socket), timeout=300)
        self.model = self.http.get("http://atlas/v1/models").json()["data"][0]["id"]

    def complete(self, ids, max_tokens):
        # The end-of-generation tokens of SmolLM2 are banned, so that every answer has its full length.
        answer = self.http.post("http://atlas/v1/completions", json={
            "model": self.model, "prompt": ids, "max_tokens": max_tokens, "temperature": 0,
            "logit_bias": {"0": -100, "2": -100}})
        assert answer.json()["usage"]["completion_tokens"] == max_tokens, answer.text

    def prefill(self, ids):
        return rate(PROMPT, lambda: self.complete(ids, 1))

    def decode(self, ids):
        start = time.perf_counter()
        self.complete(ids[:8], 1)
        first = time.perf_counter() - start
        start = time.perf_counter()
        self.complete(ids[:8], DECODE + 1)
        return DECODE / (time.perf_counter() - start - first)


class LlamaCpp:
    def __init__(self, path):
        self.llama = Llama(path, n_ctx=2048, n_threads=THREADS, n_threads_batch=THREADS,
                           n_batch=PROMPT, n_ubatch=PROMPT, verbose=False)

    def clear(self):
        self.llama.reset()
        self.llama._ctx.kv_cache_clear()

    def prefill(self, ids):
        self.clear()
        return rate(PROMPT, lambda: self.llama.eval(ids))

    def decode(self, ids):
        self.clear()
        self.llama.eval(ids[:8])
        return rate(DECODE, lambda: [self.llama.eval([one]) for one in ids[:DECODE]])


def main():
    random.seed(1)
    ids = [random.randrange(1000, 40000) for _ in range(PROMPT)]
    atlas, other = Atlas(sys.argv[2]), LlamaCpp(sys.argv[1])
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 7
    for what in ("prefill", "decode"):
        pairs = [(getattr(atlas, what)(ids), getattr(other, what)(ids)) for _ in range(rounds)]
        ours, theirs = (statistics.median(side) for side in zip(*pairs))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{what}: atlasd {ours:.1f} tok/s, llama.cpp {theirs:.1f} tok/s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
