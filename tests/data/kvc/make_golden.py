#!/usr/bin/env python3
"""Makes golden.json: what KVC files of made-up Flash states must be, written from docs/formats.md §11 and §14 with
numpy alone. A state follows from its number of tokens by a hash, so that a test can make the same one.

usage: make_golden.py OUT | --check FILE
"""
import hashlib
import json
import struct
import sys

try:
    import numpy as np
except ImportError:
    print("skipped: there is no numpy")
    sys.exit(77)

LAYERS, VOCABULARY, WINDOW, BLOCK = 43, 129280, 128, 128
RATIOS = [0, 0] + [4 if layer % 2 == 0 else 128 for layer in range(2, LAYERS)]
KINDS = dict(window=0, attention=1, values=2, scores=3, index=4, index_values=5, index_scores=6)
LOGITS, TOKENS = LAYERS * 16, (LAYERS + 1) * 16


def noise(key, numbers):
    """SplitMix64 of the number in the stream of the key."""
    with np.errstate(over="ignore"):
        z = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15) + np.asarray(numbers, dtype=np.uint64)
        z = (z + np.uint64(0x9E3779B97F4A7C15))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def floats(key, rows, stride, width):
    numbers = np.asarray(rows, dtype=np.uint64)[:, None] * np.uint64(stride) + np.arange(width, dtype=np.uint64)
    h = noise(key, numbers)
    bits = (h >> np.uint64(63)) << np.uint64(31) | (np.uint64(110) + (h >> np.uint64(32)) % np.uint64(20)) << np.uint64(23)
    return (bits | h & np.uint64(0x7FFFFF)).astype(np.uint32).view(np.float32)


def e4m3(codes):
    sign = np.where(codes & 128, -1.0, 1.0)
    exponent, mantissa = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float64)
    return sign * np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))


def attention_rows(key, rows):
    """Packed bytes [n][584], values [n][512]."""
    rows = np.asarray(rows, dtype=np.uint64)
    n = len(rows)
    base = rows[:, None] * np.uint64(1024)
    h = noise(key, base + np.arange(448, dtype=np.uint64))
    codes = (h & np.uint64(255)).astype(np.uint8)
    codes = np.where(codes & 127 == 127, codes - 1, codes).astype(np.uint8)
    codes[:, ::64] = codes[:, ::64] & 128 | 126  # the largest value of a block is the largest there is
    exponents = (np.uint64(106) + noise(key, base + np.arange(448, 455, dtype=np.uint64)) % np.uint64(20)).astype(np.uint8)
    tails = (noise(key, base + np.arange(512, 576, dtype=np.uint64)) & np.uint64(0xFFFF)).astype(np.uint16)
    tails = np.where(tails & 0x7C00 == 0x7C00, tails & 0xBFFF, tails).astype("<u2")
    packed = np.zeros((n, 584), np.uint8)
    packed[:, :448], packed[:, 448:455], packed[:, 456:] = codes, exponents, tails.view(np.uint8).reshape(n, 128)
    values = np.empty((n, 512), np.float64)
    values[:, :448] = e4m3(codes) * np.repeat(2.0 ** (exponents.astype(np.float64) - 127), 64, axis=1)
    values[:, 448:] = tails.view(np.float16)
    return packed.tobytes(), values.astype("<f4").tobytes()


def index_rows(key, rows):
    """Packed bytes [n][68], values [n][128]."""
    rows = np.asarray(rows, dtype=np.uint64)
    n = len(rows)
    base = rows[:, None] * np.uint64(256)
    codes = (noise(key, base + np.arange(128, dtype=np.uint64)) & np.uint64(15)).astype(np.uint8)
    codes[:, ::32] = codes[:, ::32] & 8 | 7
    exponents = (np.uint64(100) + noise(key, base + np.arange(128, 132, dtype=np.uint64)) % np.uint64(40)).astype(np.uint8)
    blocks = codes.reshape(n, 4, 2, 16)
    packed = np.concatenate([(blocks[:, :, 0] | blocks[:, :, 1] << 4).reshape(n, 64), exponents], axis=1)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    values = table[codes] * np.repeat(2.0 ** (exponents.astype(np.float64) - 127), 32, axis=1)
    return packed.astype(np.uint8).tobytes(), values.astype("<f4").tobytes()


def open_tokens(ratio, tokens):
    """Tokens whose rows a compressor still needs, and where in its matrices they stand."""
    start = tokens // ratio * ratio
    if ratio == 128:
        return [(q, q - start) for q in range(start, tokens)]
    return [(q, q - start + 4) for q in range(max(0, start - 4), tokens)]


def matrix(key, ratio, tokens, width, unwritten):
    """The living rows one after the other, and the whole matrix."""
    whole = np.full((8 if ratio == 4 else 128, width), unwritten, np.float32)
    places = open_tokens(ratio, tokens)
    living = floats(key, [q for q, _ in places], 1024, width) if places else np.empty((0, width), np.float32)
    for row, (_, place) in zip(living, places):
        whole[place] = row
    return living.astype("<f4").tobytes(), whole.astype("<f4").tobytes()


def make(tokens):
    key = lambda layer, kind: layer * 16 + KINDS[kind]
    ids = (noise(TOKENS, np.arange(tokens)) % np.uint64(VOCABULARY)).astype("<u4")
    logits = floats(LOGITS, [0], 0, VOCABULARY).astype("<f4").tobytes()
    window, blocks = min(tokens, WINDOW), tokens // BLOCK
    native = [b""] * blocks
    frontier, payload, borders = b"", b"", []
    for layer, ratio in enumerate(RATIOS):
        packed, values = attention_rows(key(layer, "window"), range(tokens - window, tokens))
        frontier += packed
        borders.append(len(payload))
        payload += values
        if ratio == 0:
            continue
        parts = [("attention", attention_rows, 584, "values", "scores", 1024 if ratio == 4 else 512)]
        if ratio == 4:
            parts.append(("index", index_rows, 68, "index_values", "index_scores", 256))
        for kind, rows, row_bytes, kv, score, width in parts:
            packed, values = rows(key(layer, kind), range(tokens // ratio))
            size = BLOCK // ratio * row_bytes
            for block in range(blocks):
                native[block] += packed[block * size:(block + 1) * size]
            frontier += packed[blocks * size:]
            living_values, all_values = matrix(key(layer, kv), ratio, tokens, width, 0)
            living_scores, all_scores = matrix(key(layer, score), ratio, tokens, width, -1.0e30)
            frontier += living_values + living_scores
            for piece in (values, all_values, all_scores):
                borders.append(len(payload))
                payload += piece
    frontier += logits

    context = max(tokens + 1, 2048)
    ring = min(max((min(WINDOW + 2048, context) + 255) // 256 * 256, WINDOW), context, 8192)
    head = struct.pack("<13I", 0x34565344, 1, context, 2048, ring, WINDOW, context // 4 + 2, tokens, LAYERS, 512, 128,
                       VOCABULARY, window)
    counts = [tokens // r if r else 0 for r in RATIOS] + [tokens // 4 if r == 4 else 0 for r in RATIOS]
    start = head + ids.tobytes() + logits + struct.pack("<86I", *counts)
    payload = start + payload
    text = f"A cache text for {tokens} tokens, in UTF-8: \u00e4\u6f22\U0001f600".encode()
    tools = [(b"call_1", b"\n\n<tools>one</tools>"), (b"toolu_2", b"<tools>two</tools>")]
    trailer = b"KTM\x01" + struct.pack("<I", len(tools))
    for name, block in tools:
        trailer += struct.pack("<2I", len(name), len(block)) + name + block
    header = b"KVC\x01" + bytes([2, 1, 1, 0]) + struct.pack("<4I3QI", tokens, 7, context, 0, 1700000000, 1700000123,
                                                            len(payload), len(text))
    file = header + text + payload + trailer
    samples = [0, 52, 52 + len(text), 104 + len(text), len(file) - len(trailer)]
    samples += [52 + len(text) + len(start) + border for border in borders[:9] + borders[-6:]]
    return {
        "tokens": tokens,
        "name": hashlib.sha1(text).hexdigest() + ".kv",
        "blocks": hashlib.sha256(b"".join(native)).hexdigest(),
        "frontier": hashlib.sha256(frontier).hexdigest(),
        "payload_bytes": len(payload),
        "file": hashlib.sha256(file).hexdigest(),
        "samples": [[at, file[at:at + 64].hex()] for at in samples],
    }


def main():
    check = len(sys.argv) == 3 and sys.argv[1] == "--check"
    if not check and len(sys.argv) != 2:
        sys.exit(__doc__)
    text = json.dumps([make(tokens) for tokens in (1, 5, 128, 130, 300)], indent=1) + "\n"
    if not check:
        with open(sys.argv[1], "w") as out:
            out.write(text)
        return
    with open(sys.argv[2]) as file:
        if file.read() != text:
            sys.exit(f"{sys.argv[2]} is not what this script makes")


if __name__ == "__main__":
    main()
