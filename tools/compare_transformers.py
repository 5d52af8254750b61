#!/usr/bin/env python3
"""Prefill and decode speed of Atlas beside transformers on a CPU, alternating, on the same checkpoint.

  compare_transformers.py ATLAS_BENCH MODEL_FOLDER [ROUNDS]

Needs the Python packages torch and transformers. Both run with two threads, transformers in float32 with
eager attention, from random ids: a prompt of 2,048 tokens, then 128 tokens more, greedy. Atlas runs in
`atlas-bench engine`, without and with a draft head's proposals. Run it on a machine that does nothing
else; a round's sides are beside each other in time, so that its ratio means something on a busy one too.
"""

import json
import random
import statistics
import subprocess
import sys
import time

import torch
import transformers

PROMPT, DECODE, THREADS = 2048, 128, 2


def atlas(bench, model, drafts):
    """(prefill, decode) in tokens a second."""
    run = subprocess.run(
        [bench, "engine", "--model", model, "--threads", str(THREADS), "--prompt-tokens", str(PROMPT),
         "--generate", str(DECODE), "--batch", "1", "--repeat", "1", "--json",
         "--set", f"engine.drafts={drafts}"], check=True, capture_output=True, text=True)
    point = json.loads(run.stdout)["results"][0]
    return point["prefill_tokens_per_s"], point["decode_tokens_per_s"]


class Transformers:
    def __init__(self, folder):
        torch.set_num_threads(THREADS)
        torch.set_grad_enabled(False)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()

    def run(self):
        ids = [random.randrange(self.model.config.get_text_config().vocab_size) for _ in range(PROMPT)]
        start = time.perf_counter()
        out = self.model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        prefill = PROMPT / (time.perf_counter() - start)
        start = time.perf_counter()
        for _ in range(DECODE):
            token = out.logits[:, -1:].argmax(-1)
            out = self.model(token, past_key_values=out.past_key_values, use_cache=True)
        return prefill, DECODE / (time.perf_counter() - start)


def main():
    bench, folder = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    random.seed(1)
    other = Transformers(folder)
    sides = {"atlas": [], "atlas, 1 draft": [], "transformers": []}
    for _ in range(rounds):
        sides["atlas"].append(atlas(bench, folder, 0))
        sides["transformers"].append(other.run())
        sides["atlas, 1 draft"].append(atlas(bench, folder, 1))
    for kind, what in enumerate(("prefill", "decode")):
        for name, runs in sides.items():
            ratio = statistics.median(a[kind] / b[kind] for a, b in zip(runs, sides["transformers"]))
            print(f"{what}, {name}: {statistics.median(r[kind] for r in runs):.1f} tok/s, "
                  f"{ratio:.2f} of transformers")


if __name__ == "__main__":
    main()
