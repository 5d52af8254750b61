"""Writes the golden files of the checkpoint tests: small files made by the formats' own packages, and
what they hold. Needs numpy, torch, safetensors, gguf and transformers.

    python make_golden.py        (writes beside itself)
"""

import json
import pathlib

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

HERE = pathlib.Path(__file__).parent


def hex_of(data):
    return bytes(data).hex()


def write_safetensors():
    """Every type that Atlas reads, a scalar, an empty tensor and one of five dimensions."""
    count = torch.arange(24)
    tensors = {
        "f32": count[:6].float().reshape(2, 3) / 7,
        "f16": count[:4].half() / 3,
        "bf16": count[:10].bfloat16().reshape(5, 2) / 3,
        "f64": count[:2].double() / 3,
        "i8": count[:3].to(torch.int8) - 2,
        "u8": count[:5].to(torch.uint8) + 250,
        "i16": count[:2].to(torch.int16) - 300,
        "u16": (count[:2].to(torch.int32) + 65000).to(torch.uint16),
        "i32": count[:2].to(torch.int32) - 70000,
        "u32": count[:2].to(torch.uint32),
        "i64": count[:2] - 2**40,
        "u64": count[:2].to(torch.uint64),
        "bool": count[:3] % 2 == 0,
        "e4m3": (count[:8].float() / 4).to(torch.float8_e4m3fn).reshape(4, 2),
        "e5m2": (count[:8].float() / 4).to(torch.float8_e5m2),
        "e8m0": torch.tensor([127, 128], dtype=torch.uint8).view(torch.float8_e8m0fnu),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "conv.weight": count.float().reshape(2, 3, 1, 2, 2),
        "name with \"quotes\", \\ and \u00e9": torch.ones(1),
    }
    save_file(tensors, HERE / "types.safetensors", metadata={"format": "pt", "note": "{\"a\": 1}"})
    return {
        name: {
            "dtype": str(t.dtype).removeprefix("torch."),
            "shape": list(t.shape),
            "data": hex_of(t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()),
        }
        for name, t in tensors.items()
    }


def write_gguf():
    """A complete tiny llama: metadata of every value type, and tensors of every readable type."""
    rng = np.random.default_rng(1)
    hidden, layers, ffn, vocab = 256, 1, 256, 8
    writer = gguf.GGUFWriter(HERE / "types.gguf", "llama")
    writer.add_name("golden")
    writer.add_block_count(layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(8)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(32)
    writer.add_uint8("test.u8", 200)
    writer.add_int8("test.i8", -100)
    writer.add_uint16("test.u16", 60000)
    writer.add_int16("test.i16", -30000)
    writer.add_uint32("test.u32", 4000000000)
    writer.add_int32("test.i32", -2000000000)
    writer.add_uint64("test.u64", 2**63 - 1)
    writer.add_int64("test.i64", -(2**62))
    writer.add_float32("test.f32", 0.5)
    writer.add_float64("test.f64", 0.1)
    writer.add_bool("test.true", True)
    writer.add_bool("test.false", False)
    writer.add_string("test.text", "caf\u00e9\nline")
    writer.add_array("test.texts", ["", "a", "\u00e9"])
    writer.add_array("test.integers", [1, -2, 3])
    writer.add_array("test.numbers", [0.5, 1.5])
    writer.add_array("test.nested", [[1, 2], [3]])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    tokens = ["a", "b", "ab", "\u0120", "<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>", "x"]
    writer.add_token_list(tokens)
    writer.add_token_types([1, 1, 1, 1, 3, 3, 3, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(4)
    writer.add_eos_token_id(6)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages }}")

    def add(name, values, kind):
        if kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
        else:
            try:
                data = gguf.quants.quantize(values, kind)
            except NotImplementedError:
                # The package does not quantize to this type: any bytes of the right size do.
                block, size = gguf.GGML_QUANT_SIZES[kind]
                data = rng.integers(0, 256, (values.shape[0], values.shape[1] // block * size), np.uint8)
            writer.add_tensor(name, data, raw_dtype=kind)

    q = gguf.GGMLQuantizationType
    matrix = lambda n, k: rng.standard_normal((n, k), dtype=np.float32)
    add("token_embd.weight", matrix(vocab, hidden), q.Q8_0)
    add("output_norm.weight", np.ones(hidden, np.float32), q.F32)
    add("output.weight", matrix(vocab, hidden), q.BF16)
    add("rope_freqs.weight", np.linspace(1, 8, 16, dtype=np.float32), q.F32)
    kinds = [q.Q4_0, q.Q4_1, q.Q5_0, q.Q5_1, q.Q4_K, q.Q5_K, q.Q6_K]
    rows = {"attn_q": 8, "attn_k": 4, "attn_v": 4, "attn_output": 8, "ffn_gate": 4, "ffn_up": 4,
            "ffn_down": 4}
    for (name, n), kind in zip(rows.items(), kinds):
        add(f"blk.0.{name}.weight", matrix(n, hidden), kind)
    add("blk.0.attn_norm.weight", np.ones(hidden, np.float32), q.F32)
    add("blk.0.ffn_norm.weight", np.ones(hidden, np.float32), q.F32)
    add("blk.0.unheard_of.weight", matrix(2, 32), q.F16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reader = gguf.GGUFReader(HERE / "types.gguf")
    return {
        t.name: {
            "dtype": t.tensor_type.name.lower(),
            "shape": [int(d) for d in reversed(t.shape)],
            "offset": int(t.data_offset),
            "data": hex_of(t.data.tobytes()[:64]),
        }
        for t in reader.tensors
    }


def rope_cases():
    """Inverse frequencies as transformers computes them, with the config.json that asks for them."""
    base = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
            "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
            "intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5}
    llama3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192}
    variants = {
        "default": {"rope_theta": 100000.0},
        "theta 10000 by default": {},
        "head of 128": {"head_dim": 128, "rope_theta": 500000.0},
        "head of 96, where the exponent is not exact": {"head_dim": 96, "rope_theta": 1000000.0},
        "linear, old spelling": {"rope_theta": 10000.0,
                                 "rope_scaling": {"type": "linear", "factor": 4.0}},
        "llama3, rope_scaling": {"rope_theta": 500000.0, "head_dim": 64,
                                 "max_position_embeddings": 131072, "rope_scaling": llama3},
        "llama3, rope_parameters": {"head_dim": 128, "max_position_embeddings": 131072,
                                    "rope_parameters": {"rope_theta": 500000.0, **llama3,
                                                        "factor": 8.0}},
        "yarn": {"rope_theta": 10000.0, "max_position_embeddings": 16384,
                 "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                  "original_max_position_embeddings": 4096}},
        "yarn with every key": {"rope_theta": 1000000.0, "max_position_embeddings": 65536,
                                "rope_scaling": {"rope_type": "yarn", "factor": 8.0,
                                                 "original_max_position_embeddings": 8192,
                                                 "beta_fast": 16.0, "beta_slow": 2.0,
                                                 "mscale": 1.0, "mscale_all_dim": 0.5,
                                                 "truncate": False}},
        "yarn with its attention factor": {"rope_theta": 10000.0, "max_position_embeddings": 16384,
                                           "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                                            "attention_factor": 1.25,
                                                            "original_max_position_embeddings": 4096}},
    }
    out = []
    for name, change in variants.items():
        config = {**base, **change}
        rope = LlamaRotaryEmbedding(LlamaConfig(**json.loads(json.dumps(config))))
        out.append({
            "name": name,
            "config": config,
            # float32 values print exactly as the float64 that they are.
            "inverse_frequencies": [float(v) for v in rope.inv_freq],
            "attention_scale": float(rope.attention_scaling),
        })
    return out


def write_corpus():
    """Small inputs for the fuzz programs: little data, so that mutations hit headers."""
    corpus = HERE.parent.parent / "fuzz" / "corpus"
    save_file({"a": torch.ones(2, 3), "b": torch.ones(1, dtype=torch.bfloat16)},
              corpus / "safetensors" / "two.safetensors", metadata={"format": "pt"})
    save_file({}, corpus / "safetensors" / "none.safetensors")
    index = {"metadata": {"total_size": 26}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    (corpus / "safetensors" / "index.json").write_text(json.dumps(index))
    for name, case in (("llama3", rope_cases()[6]), ("yarn", rope_cases()[8])):
        config = {**case["config"], "bos_token_id": 1, "eos_token_id": [2, 3], "tie_word_embeddings": True}
        (corpus / "safetensors" / f"config_{name}.json").write_text(json.dumps(config))
    for scaling in (None, "yarn"):
        writer = gguf.GGUFWriter(corpus / "gguf" / f"small_{scaling or 'factors'}.gguf", "llama")
        writer.add_block_count(1)
        writer.add_context_length(128)
        writer.add_embedding_length(32)
        writer.add_feed_forward_length(64)
        writer.add_head_count(4)
        writer.add_head_count_kv([2, 2])
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["a", "b", "<|im_end|>"])
        writer.add_token_types([1, 1, 3])
        writer.add_token_merges(["a b"])
        writer.add_eos_token_id(1)
        writer.add_array("test.nested", [[1, 2], [3]])
        if scaling:
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(4.0)
            writer.add_rope_scaling_orig_ctx_len(32)
        else:
            writer.add_tensor("rope_freqs.weight", np.ones(4, np.float32))
        writer.add_tensor("token_embd.weight", np.ones((3, 32), np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


if __name__ == "__main__":
    write_corpus()
    golden = {"safetensors": write_safetensors(), "gguf": write_gguf(), "rope": rope_cases()}
    (HERE / "golden.json").write_text(json.dumps(golden, indent=0, ensure_ascii=True) + "\n")
