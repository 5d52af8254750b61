#!/usr/bin/env python3
"""How far the logits of Atlas are from those of transformers in float32 on the same GGUF file.

Run by hand with a Python that has torch, transformers, gguf and numpy; no test needs it.

  compare.py MODEL.gguf [--tool build/release/bin/atlas-eval] [--chunk N] [-- OPTIONS OF atlas-eval]

Prints JSON: the largest and the mean difference of a logit, the Kullback-Leibler divergence of each
position from the reference's distribution (largest and mean, in nats, computed in float64), the share
of positions whose likeliest token is the same, and the perplexity of both.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers

TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "text.txt")


def reference(model_path, text, limit):
    """Ids of the text, and their logits by transformers, [tokens, vocab] float32."""
    folder, name = os.path.split(os.path.abspath(model_path))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    ids = tokenizer(text)["input_ids"][:limit]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits = model.eval()(torch.tensor([ids])).logits[0]
    return ids, logits.float().numpy()


def ours(tool, model_path, ids, chunk, options):
    """The logits of the same ids by atlas-eval."""
    with tempfile.TemporaryDirectory() as folder:
        ids_file, out = os.path.join(folder, "ids.json"), os.path.join(folder, "logits.f32")
        with open(ids_file, "w", encoding="utf-8") as file:
            json.dump(ids, file)
        subprocess.run([tool, "logits", "--model", model_path, "--ids", ids_file, "--out", out,
                        "--chunk", str(chunk), *options], check=True)
        return numpy.fromfile(out, dtype="<f4").reshape(len(ids), -1)


def log_softmax(logits):
    wide = logits.astype(numpy.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - numpy.log(numpy.exp(wide).sum(axis=1, keepdims=True))


def figures(ids, expected, got):
    difference = numpy.abs(expected.astype(numpy.float64) - got)
    p, q = log_softmax(expected), log_softmax(got)
    divergence = (numpy.exp(p) * (p - q)).sum(axis=1)
    same = expected.argmax(axis=1) == got.argmax(axis=1)
    rows, following = numpy.arange(len(ids) - 1), numpy.array(ids[1:])
    return {
        "tokens": len(ids),
        "largest_difference": difference.max(),
        "mean_difference": difference.mean(),
        "largest_kl": divergence.max(),
        "mean_kl": divergence.mean(),
        "same_top_1": same.mean(),
        "positions_of_other_top_1": numpy.flatnonzero(~same).tolist(),
        "perplexity_reference": numpy.exp(-p[rows, following].mean()),
        "perplexity": numpy.exp(-q[rows, following].mean()),
    }


def main():
    arguments = sys.argv[1:]
    options = []
    if "--" in arguments:
        split = arguments.index("--")
        arguments, options = arguments[:split], arguments[split + 1:]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tool", default="build/release/bin/atlas-eval")
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--tokens", type=int, default=512, help="of the text, at most")
    parser.add_argument("--chunk", type=int, default=64)
    parsed = parser.parse_args(arguments)
    with open(parsed.text, encoding="utf-8") as file:
        text = file.read()
    ids, expected = reference(parsed.model, text, parsed.tokens)
    got = ours(parsed.tool, parsed.model, ids, parsed.chunk, options)
    if got.shape != expected.shape:
        sys.exit(f"the reference has logits {expected.shape}, atlas-eval gave {got.shape}")
    result = {"model": os.path.basename(parsed.model), "options": options}
    result.update(figures(ids, expected, got))
    print(json.dumps(result, indent=2, default=float))


if __name__ == "__main__":
    main()
