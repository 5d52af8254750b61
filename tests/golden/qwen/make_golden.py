"""Writes tiny random checkpoints of qwen4_exp and its relatives, and the logits that transformers
computes from them. Needs torch, transformers 5.24 and safetensors.

    python make_golden.py --draft-modules FLASH_MINI/train/model.py [NAME ...]

writes one folder a model beside itself, and index.json:
- config.json, model.safetensors: the checkpoint, weights rounded to bf16;
- golden.json: token ids of each sequence, the vocabulary's size, whether there are draft logits;
- logits.f32: float32, little-endian, [tokens of all sequences in order, vocabulary];
- draft_logits.f32: the same of the draft head, one row less for each sequence. Row p has seen the
  trunk's streams at p and token p + 1, and predicts token p + 2. transformers has no draft head: its
  oracle are the modules that flash-mini was trained with, given by path.

Everything runs in float32 with eager attention, from an empty state. A model whose choices hang by a
hair (experts, blocks) or whose logits move under tiny changes of its weights is thrown away and made
again from the next seed, so that two correct programs agree on what remains.
"""

import argparse
import importlib.util
import json
import pathlib
import shutil
import sys

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
GAP = 2e-4  # least distance between the last chosen and the first unchosen expert or block
MOVED = 1e-4  # most that logits may move when all weights change by one part in a million
EOS = 2

torch.set_num_threads(1)
torch.set_grad_enabled(False)


# ------------------------------------------------------------------------------------------ models
def base(**more):
    return dict(
        vocab_size=96, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        hidden_act="silu", rms_norm_eps=1e-6, max_position_embeddings=256, bos_token_id=1,
        eos_token_id=EOS, pad_token_id=None, tie_word_embeddings=False, attention_bias=False,
    ) | more


def hybrid(types, **more):
    names = {"L": "linear_attention", "F": "full_attention"}
    return base(
        num_hidden_layers=len(types), layer_types=[names[t] for t in types],
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=8, linear_conv_kernel_dim=4,
        rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.25),
    ) | more


def experts(count, top, **more):
    return dict(num_experts=count, num_experts_per_tok=top, moe_intermediate_size=12,
                shared_expert_intermediate_size=16) | more


def qwen4(types, **more):
    return hybrid(
        types, **experts(5, 3), norm_topk_prob=True, output_gate_type="sigmoid",
        rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25,
                             mrope_section=[1, 1, 0], mrope_interleaved=True),
        hc_count=4, hc_lowrank=8, indexer_n_heads=4, indexer_kv_heads=1, indexer_head_dim=16,
        indexer_budget=16, indexer_compress_ratio=4, ple_layer_ids=[], ple_embed_dim=32,
        ple_conv_kernel_size=4, ngram_size=3, heads_per_ngram=2, ngram_vocab_size_base=97,
        make_ngram_vocab_size_divisible_by=8, split_ngram_parts=4, seed=1234,
    ) | more


# What a model's files are like, beside its configuration: composite (nested text_config, other
# prefix, a vision tower), fused (experts in one tensor a layer), table (shards, one, fp8), draft,
# and `written`, which changes config.json only (None removes a key).
MODELS = {
    # 19 tokens are dense, later ones choose 4 of their complete blocks of 4.
    "qwen4_base": dict(
        config=qwen4("LLLF", ple_layer_ids=[2]), draft=True, lengths=[7, 19, 20, 42, 133]),
    "qwen4_no_ngrams": dict(
        config=qwen4("LF", **experts(7, 3), num_key_value_heads=1), lengths=[18, 19, 21, 40, 63]),
    "qwen4_two_sparse": dict(
        config=qwen4("LLLFLLLF", ple_layer_ids=[2], hidden_size=32, vocab_size=64), draft=True,
        lengths=[16, 19, 22, 37, 64],
        written=dict(layer_types=None, full_attention_interval=4, seed=None, norm_topk_prob=None)),
    "qwen4_two_streams": dict(
        config=qwen4("LLF", **experts(4, 2), ple_layer_ids=[2], hc_count=2, num_key_value_heads=1,
                     linear_conv_kernel_dim=2, ple_conv_kernel_size=2, indexer_n_heads=5,
                     indexer_budget=6, indexer_compress_ratio=2, split_ngram_parts=12,
                     head_dim=24, indexer_head_dim=8, ngram_vocab_size_base=31,
                     rope_parameters=dict(rope_type="default", rope_theta=1e6,
                                          partial_rotary_factor=0.25)),
        lengths=[6, 7, 8, 17, 30]),
    "qwen4_composite": dict(
        config=qwen4("LLF", **experts(7, 3), ple_layer_ids=[1]), composite=True, draft=True,
        lengths=[12, 19, 23, 36, 65]),
    "qwen4_separate_experts": dict(
        config=qwen4("LF", **experts(7, 3), ple_layer_ids=[1], hidden_size=48, num_attention_heads=6,
                     indexer_n_heads=5),
        fused=False, lengths=[19, 20, 21, 22, 66]),
    "qwen4_fp8_table": dict(
        config=qwen4("LLF", ple_layer_ids=[2], num_key_value_heads=1), table="fp8",
        lengths=[5, 19, 24, 39, 58]),
    "qwen4_four_grams": dict(
        config=qwen4("LF", ple_layer_ids=[1], ngram_size=4, ple_embed_dim=48, seed=7,
                     linear_num_key_heads=1, linear_num_value_heads=3, linear_value_head_dim=16),
        table="one", lengths=[13, 19, 25, 38, 71]),
    "qwen4_all_sparse": dict(
        config=qwen4("FF", **experts(7, 3), indexer_n_heads=5, indexer_budget=24,
                     indexer_compress_ratio=8),
        lengths=[31, 32, 33, 38, 50]),
    "qwen4_all_delta": dict(
        config=qwen4("LL", **experts(8, 1), ple_layer_ids=[2]), lengths=[1, 4, 63, 64, 130],
        written=dict(indexer_n_heads=None, indexer_kv_heads=None, indexer_head_dim=None,
                     indexer_budget=None, indexer_compress_ratio=None)),
    "qwen4_flash_next": dict(
        config=qwen4("LLF", ple_layer_ids=[2], attention_bias=True, norm_topk_prob=False,
                     output_gate_type=None, hc_count=3),
        lengths=[10, 19, 20, 35, 62],
        written=dict(model_type="qwen3_8_flash_next_text",
                     architectures=["Qwen3_8FlashNextForCausalLM"])),
}

NEXT = dict(intermediate_size=40, norm_topk_prob=True)
MODELS |= {
    "next_base": dict(config=hybrid("LLLF", **experts(5, 3), **NEXT), fused=False, lengths=[33, 70]),
    "next_dense_layers": dict(
        config=hybrid("LLLF", **experts(7, 2), **NEXT, mlp_only_layers=[1], num_key_value_heads=1),
        fused=False, lengths=[40]),
    "next_sparse_step": dict(
        config=hybrid("LFLF", **experts(6, 2), **NEXT, decoder_sparse_step=2, attention_bias=True),
        fused=False, lengths=[37, 65]),
    "next_raw_weights": dict(
        config=hybrid("LLF", **experts(5, 3), **(NEXT | dict(norm_topk_prob=False)),
                      linear_num_key_heads=3, linear_num_value_heads=6),
        fused=False, lengths=[35]),
    "next_fused_tied": dict(
        config=hybrid("LF", **experts(7, 3), **NEXT, tie_word_embeddings=True,
                      linear_value_head_dim=16),
        lengths=[34]),
}
MODELS |= {
    "qwen3_5_moe_base": dict(config=hybrid("LLLF", **experts(5, 3)), lengths=[33, 70]),
    "qwen3_5_moe_composite": dict(
        config=hybrid("LLF", **experts(7, 3), num_key_value_heads=1), composite=True,
        written=dict(mtp_num_hidden_layers=1), stray_draft=True, lengths=[36]),
    "qwen3_5_moe_separate": dict(
        config=hybrid("LF", **experts(8, 2), hidden_size=48, num_attention_heads=6), fused=False,
        lengths=[34, 65]),
    "qwen3_5_moe_biased": dict(
        config=hybrid("LLF", **experts(5, 1), attention_bias=True, linear_num_key_heads=1,
                      linear_num_value_heads=3),
        lengths=[35]),
    "qwen3_5_moe_tied": dict(
        config=hybrid("LFLF", **experts(6, 4), tie_word_embeddings=True), lengths=[38]),
}
DENSE = dict(intermediate_size=40)
MODELS |= {
    "qwen3_5_base": dict(config=hybrid("LLLF", **DENSE), lengths=[33, 70]),
    "qwen3_5_composite": dict(
        config=hybrid("LLLF", **DENSE, num_key_value_heads=1),
        composite=True, written=dict(layer_types=None, full_attention_interval=4), lengths=[39]),
    "qwen3_5_biased": dict(
        config=hybrid("LLF", **DENSE, attention_bias=True, linear_key_head_dim=16), lengths=[37]),
    "qwen3_5_rotary": dict(
        config=hybrid("LF", **DENSE, rope_parameters=dict(
            rope_type="default", rope_theta=1e7, partial_rotary_factor=0.5, mrope_section=[2, 1, 1],
            mrope_interleaved=True)),
        lengths=[34, 65]),
    "qwen3_5_short_conv": dict(
        config=hybrid("LF", **DENSE, linear_conv_kernel_dim=2, linear_num_key_heads=4,
                      num_attention_heads=3, num_key_value_heads=3, tie_word_embeddings=True),
        lengths=[36]),
}


def dense(layers=3, **more):
    return base(num_hidden_layers=layers, intermediate_size=40,
                rope_parameters=dict(rope_type="default", rope_theta=1e4)) | more


MODELS |= {
    "qwen3_base": dict(config=dense(), lengths=[33, 70]),
    "qwen3_tied": dict(config=dense(2, tie_word_embeddings=True, num_key_value_heads=1), lengths=[35]),
    "qwen3_biased": dict(config=dense(2, attention_bias=True), lengths=[36]),
    "qwen3_yarn": dict(
        config=dense(2, rope_parameters=dict(rope_type="yarn", rope_theta=1e6, factor=4.0,
                                             original_max_position_embeddings=64)),
        lengths=[80]),
    "qwen3_wide_heads": dict(
        config=dense(2, head_dim=24, num_attention_heads=3, num_key_value_heads=3), lengths=[34]),
}
MOE = dict(num_experts=5, num_experts_per_tok=3, moe_intermediate_size=12, norm_topk_prob=False)
MODELS |= {
    "qwen3_moe_base": dict(config=dense(3, **MOE), fused=False, lengths=[33, 70]),
    "qwen3_moe_normalized": dict(
        config=dense(2, **(MOE | dict(norm_topk_prob=True, num_experts=7))), fused=False,
        lengths=[35]),
    "qwen3_moe_dense_layers": dict(
        config=dense(4, **MOE, mlp_only_layers=[0, 2]), fused=False, lengths=[36]),
    "qwen3_moe_sparse_step": dict(
        config=dense(4, **MOE, decoder_sparse_step=2, num_key_value_heads=1), fused=False,
        lengths=[34]),
    "qwen3_moe_fused": dict(
        config=dense(2, **MOE, attention_bias=True, tie_word_embeddings=True), lengths=[37],
        written=dict(num_experts=None, num_local_experts=5)),
}
MODELS |= {
    "llama_attention_bias": dict(config=dense(3, attention_bias=True), lengths=[33, 70]),
    "llama_mlp_bias": dict(config=dense(2, mlp_bias=True), lengths=[35]),
    "llama_biases": dict(
        config=dense(2, attention_bias=True, mlp_bias=True, tie_word_embeddings=True), lengths=[36]),
    "llama_wide_heads": dict(
        config=dense(2, attention_bias=True, head_dim=24, num_key_value_heads=1),
        lengths=[34]),
    "llama_llama3_rope": dict(
        config=dense(2, attention_bias=True, mlp_bias=True, rope_parameters=dict(
            rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0,
            high_freq_factor=4.0, original_max_position_embeddings=32)),
        lengths=[60]),
}

# Beginning of a model's name: architecture, model_type of its text part, class names.
FAMILIES = [
    ("qwen4", "qwen4_exp", "qwen4_exp_text", "Qwen4ExpText", "Qwen4Exp"),
    ("next", "qwen3_next", "qwen3_next", "Qwen3Next", "Qwen3Next"),
    ("qwen3_5_moe", "qwen3_5_moe", "qwen3_5_moe_text", "Qwen3_5MoeText", "Qwen3_5Moe"),
    ("qwen3_5", "qwen3_5", "qwen3_5_text", "Qwen3_5Text", "Qwen3_5"),
    ("qwen3_moe", "qwen3_moe", "qwen3_moe", "Qwen3Moe", "Qwen3Moe"),
    ("qwen3", "qwen3", "qwen3", "Qwen3", "Qwen3"),
    ("llama", "llama", "llama", "Llama", "Llama"),
]


def family(name):
    return next(f for f in FAMILIES if name.startswith(f[0]))


# ----------------------------------------------------------------------------------------- weights
def centered(name):
    return family(name)[0] in ("qwen4", "next", "qwen3_5", "qwen3_5_moe")


def randomize(name, key, shape, gen, tied):
    """A value for the parameter `key`. What transformers starts at a constant becomes random too."""

    def normal(std, mean=0.0):
        return torch.randn(shape, generator=gen) * std + mean

    if key.endswith("A_log"):
        return torch.empty(shape).uniform_(0.2, 4.0, generator=gen).log()
    if key.endswith("dt_bias"):
        return torch.empty(shape).uniform_(-3.0, 1.0, generator=gen)
    if key.endswith("bias"):
        return normal(0.2)
    if key.endswith("linear_attn.norm.weight"):
        return normal(0.2, 1.0)
    if len(shape) == 1:
        return normal(0.2, 0.0 if centered(name) else 1.0)
    if "conv1d" in key:
        return normal(0.5)
    if key.endswith("embed_tokens.weight"):
        # Tied embeddings make the logits, which should not be larger than those of other models.
        return normal(0.25 if tied else 1.0)
    if key.endswith("ngram_embedding.weight"):
        return normal(1.0)
    if key.endswith("mlp.gate.weight"):
        return normal(0.3)
    if "input_mix_weight" in key or "block_inject" in key:
        return normal(0.2)
    return normal((1.3 if key.endswith("lm_head.weight") else 1.0) / shape[-1] ** 0.5)


def fill(name, module, gen, config):
    """Random weights. The indexer's second query head is the first one's opposite, so that one of the
    two is positive for every block: blocks do not tie at a score of zero."""
    for key, value in module.named_parameters():
        tied = config["tie_word_embeddings"]
        value.copy_(randomize(name, key, value.shape, gen, tied).bfloat16().float())
        if key.endswith("index_qk_proj.weight"):
            d = config["indexer_head_dim"]
            value[d : 2 * d] = -value[:d]


def quantize_table(model):
    """The n-gram table as FP8 with one scale. The model keeps float32 products of the two."""
    weight = next(v for k, v in model.named_parameters() if k.endswith("ngram_embedding.weight"))
    scale = (weight.abs().max() / 400).bfloat16()
    codes = (weight / scale.float()).to(torch.float8_e4m3fn)
    weight.copy_(codes.float() * scale.float())
    return codes, scale.reshape(1)


def files_tensors(spec, model, draft, table):
    """Names and tensors as the variant's checkpoint has them."""
    out = {}
    state = {k: v for k, v in model.state_dict().items()}
    if spec["config"]["tie_word_embeddings"]:
        state.pop("lm_head.weight")
    if draft is not None:
        state |= {"mtp." + k: v for k, v in draft.state_dict().items()}
    prefix = "model.language_model." if spec.get("composite") else "model."
    for key, value in state.items():
        if key.startswith("model."):
            key = prefix + key.removeprefix("model.")
        value = value if value.dtype == torch.int64 else value.bfloat16()
        if key.endswith("ngram_embedding.weight"):
            value, scale = table if table is not None else (value, None)
            if scale is not None:
                out[key + "_scale"] = scale
            if spec.get("table") != "one":
                parts = spec["config"]["split_ngram_parts"]
                stem = key.removesuffix("weight")
                rows = -(-value.shape[0] // parts)
                for i, piece in enumerate(value.split(rows)):
                    out[f"{stem}shard_{i}.weight"] = piece
                continue
        if key.endswith(("experts.gate_up_proj", "experts.down_proj")) and not spec.get("fused", True):
            stem, what = key.rsplit(".", 1)
            for e in range(value.shape[0]):
                if what == "down_proj":
                    out[f"{stem}.{e}.down_proj.weight"] = value[e]
                else:
                    gate, up = value[e].chunk(2)
                    out[f"{stem}.{e}.gate_proj.weight"], out[f"{stem}.{e}.up_proj.weight"] = gate, up
            continue
        out[key] = value
    if spec.get("composite"):
        out["model.visual.patch_embed.proj.weight"] = torch.ones(8, 3, 1, 2, 2, dtype=torch.bfloat16)
        out["model.visual.blocks.0.norm1.bias"] = torch.ones(8, dtype=torch.bfloat16)
    if spec.get("stray_draft"):
        out["mtp.fc.weight"] = torch.ones(4, 8, dtype=torch.bfloat16)
    return {k: v.clone().contiguous() for k, v in out.items()}


def config_json(name, spec):
    _, arch, text_type, _, cls = family(name)
    text = dict(model_type=text_type, dtype="bfloat16") | spec["config"]
    if spec.get("draft"):
        text["mtp_num_hidden_layers"] = 1
    if spec.get("composite"):
        text |= spec.get("written", {})
        out = dict(architectures=[cls + "ForConditionalGeneration"], model_type=arch,
                   tie_word_embeddings=text["tie_word_embeddings"], image_token_id=90,
                   text_config={k: v for k, v in text.items() if v is not None},
                   vision_config=dict(depth=1, hidden_size=8))
    else:
        out = dict(architectures=[cls + "ForCausalLM"]) | text | spec.get("written", {})
    return {k: v for k, v in out.items() if v is not None}


# ------------------------------------------------------------------------------------------ checks
def rotate(x, cos, sin):
    half = cos.shape[-1] // 2
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    c, s = cos[..., :half], sin[..., :half]
    return torch.cat([a * c - b * s, b * c + a * s, rest], -1)


class Gaps:
    """Smallest distances between what was chosen and what was not, over all that hooks have seen."""

    def __init__(self):
        self.expert = self.block = float("inf")
        self.sparse_rows = 0

    def see_router(self, logits, top):
        if top < logits.shape[-1]:
            s = logits.sort(-1, descending=True).values
            self.expert = min(self.expert, (s[..., top - 1] - s[..., top]).min().item())

    def see_scores(self, scores, ratio, top):
        """scores [queries, blocks] of a sequence from its start."""
        for p in range(scores.shape[0]):
            blocks = (p + 1) // ratio
            if blocks > top:
                s = scores[p, :blocks].sort(descending=True).values
                self.block = min(self.block, (s[top - 1] - s[top]).item())
                self.sparse_rows += 1

    def watch(self, model, c):
        for key, module in model.named_modules():
            if key.endswith("mlp.gate"):
                module.register_forward_pre_hook(self.router_hook(c))
            if key.endswith("self_attn.indexer"):
                module.register_forward_hook(self.indexer_hook(c), with_kwargs=True)

    def router_hook(self, c):
        def hook(module, args):
            x = args[0].reshape(-1, args[0].shape[-1])
            self.see_router(F.linear(x, module.weight), c["num_experts_per_tok"])

        return hook

    def indexer_hook(self, c):
        heads, d, ratio = c["indexer_n_heads"], c["indexer_head_dim"], c["indexer_compress_ratio"]
        top = c["indexer_budget"] // ratio

        def hook(module, args, kwargs, selected):
            u, (cos, sin) = args[0], args[1]
            t = u.shape[1]
            q, k = module.index_qk_proj(u)[0].split([heads * d, d], -1)
            q = rotate(module.q_layernorm(q.view(t, heads, d)), cos[0, :, None], sin[0, :, None])
            blocks = t // ratio
            k = module.k_layernorm(k[: blocks * ratio].view(blocks, ratio, d).mean(1))
            k = rotate(k, cos[0, : blocks * ratio : ratio], sin[0, : blocks * ratio : ratio])
            scores = torch.relu(torch.einsum("thd,bd->thb", q, k)).sum(1) / d**0.5
            self.see_scores(scores, ratio, top)
            # The library's own choice is the one that these scores give.
            for p in range(t):
                complete = (p + 1) // ratio
                want = set(range(complete * ratio, p + 1))
                for b in scores[p, :complete].topk(min(top, complete)).indices.tolist():
                    want |= set(range(b * ratio, (b + 1) * ratio))
                got = set(selected[0, 0, p].nonzero().flatten().tolist())
                assert self.block < GAP or got == want, (p, got, want)

        return hook


class Draft:
    """The draft head of flash-mini's modules, over the streams that enter the trunk's mixer."""

    def __init__(self, modules, config):
        self.m = modules
        self.c = modules.Cfg(config)
        self.head = modules.MTP(self.c)
        self.streams = None

    def watch(self, model, gaps):
        model.model.hyper_connection_mixer.register_forward_pre_hook(
            lambda module, args: setattr(self, "streams", args[0]))
        attention, c = self.head.layers[0].self_attn, self.c
        select = attention.indexer.select

        def seen(scores):
            gaps.see_scores(scores[0], c.indexer_compress_ratio,
                            c.indexer_budget // c.indexer_compress_ratio)
            return select(scores)

        attention.indexer.select = seen
        self.head.layers[0].mlp.register_forward_pre_hook(
            lambda module, args: gaps.see_router(F.linear(args[0][0], module.gate.weight), module.k))

    def logits(self, model, ids):
        n = ids.shape[1] - 1
        cos, sin = self.m.rope_tables(self.c, n, "cpu")
        embeddings = model.model.embed_tokens(ids[:, 1:])
        y = self.head.enter(self.streams[:, :-1], embeddings, torch.float32)
        y = self.head.layers[0](y, torch.float32, cos, sin)[0]
        return model.lm_head(self.head.hyper_connection_mixer(y, torch.float32))[0]


# ------------------------------------------------------------------------------------------- making
def make_ids(spec, gen):
    """Random ids; every second sequence has end tokens inside, one of them twice in a row."""
    out = []
    for i, n in enumerate(spec["lengths"]):
        ids = torch.randint(3, spec["config"]["vocab_size"], (n,), generator=gen)
        if i % 2 == 1 and n > 8:
            ids[n // 2] = EOS
            if n > 30:
                ids[n // 3] = ids[n // 3 + 1] = EOS
        out.append(ids.tolist())
    return out


def attempt(name, spec, modules, seed):
    """The checkpoint's parts made from `seed`, or why they will not do."""
    _, _, _, config_class, cls = family(name)
    gen = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    config = getattr(transformers, config_class + "Config")(**spec["config"])
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = getattr(transformers, cls + "ForCausalLM")(config).float().eval()
    fill(name, model, gen, spec["config"])
    table = quantize_table(model) if spec.get("table") == "fp8" else None
    gaps = Gaps()
    gaps.watch(model, spec["config"])
    draft = None
    if spec.get("draft"):
        draft = Draft(modules, spec["config"])
        fill(name, draft.head, gen, spec["config"])
        draft.watch(model, gaps)
    ids = make_ids(spec, gen)

    def run():
        logits, drafts = [], []
        for one in ids:
            batch = torch.tensor([one])
            logits.append(model(input_ids=batch, use_cache=False).logits[0])
            if draft is not None:
                drafts.append(draft.logits(model, batch))
        return torch.cat(logits), torch.cat(drafts) if drafts else None

    logits, drafts = run()
    tensors = files_tensors(spec, model, draft.head if draft else None, table)
    if gaps.expert < GAP or gaps.block < GAP:
        return None, f"experts {gaps.expert:.1e}, blocks {gaps.block:.1e} apart"
    for module in [model] + ([draft.head] if draft else []):
        for value in module.parameters():
            value.mul_(1 + 1e-6 * torch.randn(value.shape, generator=gen))
    again, drafts_again = run()
    moved = (again - logits).abs().max().item()
    if drafts is not None:
        moved = max(moved, (drafts_again - drafts).abs().max().item())
    if not moved < MOVED:
        return None, f"logits moved by {moved:.1e}"
    return dict(logits=logits, drafts=drafts, ids=ids, tensors=tensors, moved=moved, gaps=gaps), None


def write(name, spec, made, seed):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_json(name, spec), indent=1) + "\n")
    save_file(made["tensors"], folder / "model.safetensors", metadata={"format": "pt"})
    made["logits"].numpy().astype("<f4").tofile(folder / "logits.f32")
    if made["drafts"] is not None:
        made["drafts"].numpy().astype("<f4").tofile(folder / "draft_logits.f32")
    golden = dict(seed=seed, vocab=spec["config"]["vocab_size"], draft=made["drafts"] is not None,
                  sequences=made["ids"])
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draft-modules", required=True)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    where = importlib.util.spec_from_file_location("draft_modules", args.draft_modules)
    modules = importlib.util.module_from_spec(where)
    where.loader.exec_module(modules)
    for name, spec in MODELS.items():
        if args.names and name not in args.names:
            continue
        for seed in range(1, 2000):
            made, why = attempt(name, spec, modules, seed)
            if made is not None:
                break
            print(f"  {name}: seed {seed}: {why}", file=sys.stderr)
        else:
            raise SystemExit(f"{name}: no seed will do")
        write(name, spec, made, seed)
        g = made["gaps"]
        print(f"{name}: seed {seed}, gaps {g.expert:.1e} {g.block:.1e}, {g.sparse_rows} sparse rows, "
              f"moved {made['moved']:.1e}, logits {made['logits'].std():.2f}", flush=True)
    index = []
    for name in MODELS:
        if not (HERE / name).exists():
            continue
        golden = json.loads((HERE / name / "golden.json").read_text())
        index.append(dict(name=name, architecture=family(name)[1], vocab=golden["vocab"],
                          draft=golden["draft"], lengths=[len(s) for s in golden["sequences"]]))
    (HERE / "index.json").write_text(json.dumps(dict(models=index), indent=1) + "\n")


if __name__ == "__main__":
    main()
