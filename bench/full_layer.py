#!/usr/bin/env python3
"""Quantises one layer of Flash's full shape and compares with what --dry-run foretold, for the layer and for all of Flash.

usage: bench/full_layer.py [--quantize PROGRAM] [--recipe NAME] [--folder DIR] [--json FILE]

Writes a synthetic checkpoint below DIR (default: a temporary folder; 4 GB on the disk, removed at the end): layer 0 holds
random FP4 and FP8 weights, everything else is holes in a sparse file. The same files serve as a model of one layer and as
one of 43. Needs Python's standard library only.
"""
import argparse
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time

WIDTH, EXPERT_WIDTH, EXPERTS, HEADS, HEAD, Q_RANK, GROUPS, RANK, VOCABULARY = 4096, 2048, 256, 64, 512, 1024, 8, 1024, 129280
LAYERS, HASH_LAYERS, STREAMS = 43, 3, 4
SPECIAL = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"]


def ratios(layers):
    return [0 if i < 2 else 4 if i % 2 == 0 else 128 for i in range(layers)]


def layer_tensors(n, ratio, hashed):
    """(name, type, shape) of a layer; FP8 and FP4 weights have their scales beside them."""
    p, mix = f"layers.{n}.", 2 * STREAMS + STREAMS * STREAMS

    def fp8(name, rows, columns):
        return [(f"{p}{name}.weight", "F8_E4M3", [rows, columns]), (f"{p}{name}.scale", "F8_E8M0", [rows // 128, columns // 128])]

    def compressor(name, width, dim):
        return [(f"{p}{name}.ape", "F32", [ratio, width]), (f"{p}{name}.wkv.weight", "BF16", [width, WIDTH]),
                (f"{p}{name}.wgate.weight", "BF16", [width, WIDTH]), (f"{p}{name}.norm.weight", "BF16", [dim])]

    out = []
    for part in ("attn", "ffn"):
        out += [(f"{p}hc_{part}_fn", "F32", [mix, STREAMS * WIDTH]), (f"{p}hc_{part}_scale", "F32", [3]),
                (f"{p}hc_{part}_base", "F32", [mix]), (f"{p}{part}_norm.weight", "BF16", [WIDTH])]
    out += fp8("attn.wq_a", Q_RANK, WIDTH) + fp8("attn.wq_b", HEADS * HEAD, Q_RANK) + fp8("attn.wkv", HEAD, WIDTH)
    out += fp8("attn.wo_a", GROUPS * RANK, HEADS * HEAD // GROUPS) + fp8("attn.wo_b", WIDTH, GROUPS * RANK)
    out += [(p + "attn.q_norm.weight", "BF16", [Q_RANK]), (p + "attn.kv_norm.weight", "BF16", [HEAD]), (p + "attn.attn_sink", "F32", [HEADS])]
    if ratio:
        out += compressor("attn.compressor", HEAD * (2 if ratio == 4 else 1), HEAD)
    if ratio == 4:
        out += fp8("attn.indexer.wq_b", 64 * 128, Q_RANK) + [(p + "attn.indexer.weights_proj.weight", "BF16", [64, WIDTH])]
        out += compressor("attn.indexer.compressor", 256, 128)
    out += [(p + "ffn.gate.weight", "BF16", [EXPERTS, WIDTH])]
    out += [(p + "ffn.gate.tid2eid", "I64", [VOCABULARY, 6]) if hashed else (p + "ffn.gate.bias", "F32", [EXPERTS])]
    for name, rows, columns in (("w1", EXPERT_WIDTH, WIDTH), ("w3", EXPERT_WIDTH, WIDTH), ("w2", WIDTH, EXPERT_WIDTH)):
        out += fp8(f"ffn.shared_experts.{name}", rows, columns)
        for e in range(EXPERTS):
            out += [(f"{p}ffn.experts.{e}.{name}.weight", "I8", [rows, columns // 2]),
                    (f"{p}ffn.experts.{e}.{name}.scale", "F8_E8M0", [rows, columns // 32])]
    return out


def global_tensors():
    return [("embed.weight", "BF16", [VOCABULARY, WIDTH]), ("norm.weight", "BF16", [WIDTH]), ("head.weight", "BF16", [VOCABULARY, WIDTH]),
            ("hc_head_fn", "F32", [STREAMS, STREAMS * WIDTH]), ("hc_head_base", "F32", [STREAMS]), ("hc_head_scale", "F32", [1])]


class Filler:
    """Random bytes that look like quantised normal values: FP4 codes and FP8 numbers by a table, scales near 2^-6."""

    def __init__(self):
        random.seed(7)
        levels = [0, 0.5, 1, 1.5, 2, 3, 4, 6]

        def fp4():
            value = random.gauss(0, 2.2)
            return min(range(8), key=lambda i: abs(levels[i] - abs(value))) + (8 if value < 0 else 0)
        self.raw = random.randbytes(1 << 26)
        self.tables = {"I8": bytes(fp4() | fp4() << 4 for _ in range(256)),
                       "F8_E4M3": bytes(c if c & 127 != 127 else 0 for c in range(256)),
                       "F8_E8M0": bytes(119 + i % 4 for i in range(256))}
        self.bytes = {kind: self.raw.translate(table) for kind, table in self.tables.items()}

    def fill(self, file, kind, size):
        source = self.bytes.get(kind)
        if source is None:  # small: zeros do
            file.write(bytes(size))
            return
        while size > 0:
            begin = random.randrange(len(source) // 2)
            piece = source[begin:begin + size]
            file.write(piece)
            size -= len(piece)


def write_shard(path, tensors, filler):
    """Without `filler` the data is a hole."""
    widths = {"F32": 4, "BF16": 2, "I64": 8, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
    entries, at = {}, 0
    for name, kind, shape in tensors:
        size = widths[kind]
        for dim in shape:
            size *= dim
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        if filler:
            for name, kind, _ in tensors:
                begin, end = entries[name]["data_offsets"]
                filler.fill(file, kind, end - begin)
        else:
            file.truncate(8 + len(header) + at)


def write_config(folder, layers):
    config = {
        "model_type": "deepseek_v4", "num_hidden_layers": layers, "hidden_size": WIDTH, "vocab_size": VOCABULARY,
        "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": HEAD, "qk_rope_head_dim": 64, "q_lora_rank": Q_RANK,
        "o_groups": GROUPS, "o_lora_rank": RANK, "sliding_window": 128, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512,
        "n_routed_experts": EXPERTS, "num_experts_per_tok": 6, "moe_intermediate_size": EXPERT_WIDTH, "n_shared_experts": 1,
        "num_hash_layers": min(layers, HASH_LAYERS), "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
        "norm_topk_prob": True, "swiglu_limit": 10.0, "hc_mult": STREAMS, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06, "rms_norm_eps": 1e-06,
        "rope_theta": 10000, "compress_rope_theta": 160000, "tie_word_embeddings": False, "max_position_embeddings": 1048576,
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1},
        "compress_ratios": ratios(layers), "bos_token_id": 0, "eos_token_id": 1}
    vocabulary = {f"t{i}": i for i in range(2, VOCABULARY - len(SPECIAL) + 2)}
    ids = [0, 1] + list(range(VOCABULARY - len(SPECIAL) + 2, VOCABULARY))
    tokenizer = {"added_tokens": [{"id": i, "content": text, "special": i < 2} for i, text in zip(ids, SPECIAL)],
                 "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
    for name, value in (("config", config), ("tokenizer", tokenizer), ("tokenizer_config", {})):
        with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False)


def run(command):
    """Output, wall seconds, processor seconds, and the largest resident set in MiB, mapped pages included."""
    begin, peak = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(command, stdout=output)
        # Not ru_maxrss, which begins with what this program had resident when it started the other one.
        pid = 0
        while pid == 0:
            time.sleep(0.02)
            with open(f"/proc/{child.pid}/status", encoding="ascii") as file:
                peak = max([peak] + [int(line.split()[1]) for line in file if line.startswith("VmHWM:")])
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if status != 0:
            sys.exit(f"{' '.join(command)}: status {status}")
        output.seek(0)
        return output.read(), time.monotonic() - begin, usage.ru_utime + usage.ru_stime, peak / 1024


def foretold(text):
    hours, minutes, seconds, threads = map(int, re.search(r"about (\d+):(\d+):(\d+) \(h:mm:ss\) on (\d+) threads", text).groups())
    size = int(re.search(r"file of (\d+) bytes", text).group(1))
    return {"seconds": 3600 * hours + 60 * minutes + seconds, "threads": threads, "file_bytes": size,
            "memory_mib": float(re.search(r"source: ([\d.]+) MiB", text).group(1))}


def measure(arguments, folder):
    layer, flash = os.path.join(folder, "layer"), os.path.join(folder, "flash")
    begin = time.monotonic()
    for path, layers in ((layer, 1), (flash, LAYERS)):
        os.mkdir(path)
        write_config(path, layers)
    write_shard(os.path.join(layer, "layer0.safetensors"), layer_tensors(0, 0, True), Filler())
    write_shard(os.path.join(layer, "global.safetensors"), global_tensors(), None)
    rest = [t for n in range(1, LAYERS) for t in layer_tensors(n, ratios(LAYERS)[n], n < HASH_LAYERS)]
    write_shard(os.path.join(flash, "rest.safetensors"), rest, None)
    for name in ("layer0", "global"):
        os.symlink(os.path.join(layer, name + ".safetensors"), os.path.join(flash, name + ".safetensors"))
    print(f"made in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    base = [arguments.quantize, "--recipe", arguments.recipe, "--checkpoint"]
    plan_text = run([*base, layer, "--dry-run"])[0]
    result = {"layer_foretold": foretold(plan_text)}
    flash_text, _, _, memory = run([*base, flash, "--dry-run"])
    result["flash_foretold"] = {**foretold(flash_text), "resident_mib": round(memory, 1)}
    out = os.path.join(folder, "out.gguf")
    _, wall, processor, memory = run([*base, layer, "-o", out])
    threads = result["layer_foretold"]["threads"]
    result["layer_measured"] = {"wall_seconds": round(wall, 1), "processor_seconds": round(processor, 1),
                                "processor_seconds_by_thread": round(processor / threads, 1), "resident_mib": round(memory, 1),
                                "file_bytes": os.path.getsize(out)}
    result["foretold_by_measured"] = round(result["layer_foretold"]["seconds"] * threads / processor, 3)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quantize", default="build/release/apps/quantize/ds4-quantize")
    parser.add_argument("--recipe", default="q2")
    parser.add_argument("--folder")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        result = {"what": f"one layer of Flash's shape, FP4 and FP8 source, recipe {arguments.recipe}, and embedding and output",
                  "command": f"bench/full_layer.py --recipe {arguments.recipe}", **measure(arguments, folder)}
    text = json.dumps(result, indent=2) + "\n"
    print(text, end="")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
