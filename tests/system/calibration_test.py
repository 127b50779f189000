#!/usr/bin/env python3
"""scripts/make-calibration: what it writes, that it writes it again, and what it is for: less loss in two bits."""
import hashlib
import json
import os
import subprocess
import sys
import unittest

from quantize_support import DATA, DS4, MODEL, TIMEOUT_S, Gguf, QuantizeTest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PROGRAM = os.path.join(ROOT, "scripts", "make-calibration")
MARKER = "===== DS4_IMATRIX_PROMPT "
FILES = ["manifest.json", "prompts.jsonl", "rendered_prompts.txt", "rendered_prompts_nothink.txt", "rendered_prompts_think.txt"]
sys.path.insert(0, os.path.join(ROOT, "scripts", "calibration"))
sys.dont_write_bytecode = True
import chat  # noqa: E402


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


class Calibration(QuantizeTest):
    def make_set(self, name, *arguments):
        """The folder with the set, and its records."""
        folder = self.path(name)
        done = subprocess.run([PROGRAM, "--out", folder, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(os.listdir(folder)), FILES)
        return folder, [json.loads(line) for line in read(folder, "prompts.jsonl").splitlines()]

    # Cases that differ: tool results beside text that the script never writes, and efforts that it does not use.
    def test_conversations_are_rendered_as_the_engine_does(self):
        checked = 0
        for case in json.loads(read(DATA, "..", "chat-cases.json"))["cases"]:
            messages = [dict(m, calls=[(name, json.loads(arguments)) for name, arguments in m.get("calls", [])])
                        if all(a.startswith("{") for _, a in m.get("calls", [])) else None for m in case["messages"]]
            if None in messages or case["mode"] == "max" or any(m["role"] == "developer" for m in messages):
                continue
            schemas = case["tool_schemas"].split("\n") if case["tool_schemas"] else []
            self.assertEqual(chat.render(messages, schemas, think=case["mode"] != "none"), case["rendered"], case["name"])
            checked += 1
        self.assertGreater(checked, 10)

    def test_files(self):
        folder, records = self.make_set("set", "--bytes", "300k")
        about = json.loads(read(folder, "manifest.json"))
        self.assertEqual(about["record_count"], len(records))
        self.assertEqual(about["modes"], {"nothink": len(records) / 2, "think": len(records) / 2})
        self.assertEqual(about["rendered_utf8_bytes"], sum(len(r["rendered"].encode()) for r in records))
        self.assertTrue(0.9 < about["rendered_utf8_bytes"] / 300000 < 1.3, about)
        shares = {k: v / about["rendered_utf8_bytes"] for k, v in about["bytes_by_category"].items()}
        self.assertGreater(shares["source"], 0.4)
        self.assertGreater(shares["agent"], 0.3)
        self.assertEqual(len(shares), 9)
        self.assertEqual(records, sorted(records, key=lambda r: (r["category"], r["source"], r["mode"], r["id"])))
        self.assertEqual(len({r["rendered"] for r in records}), len(records))
        for name, modes in (("", ("nothink", "think")), ("_nothink", ("nothink",)), ("_think", ("think",))):
            blocks = read(folder, f"rendered_prompts{name}.txt").split(MARKER)
            wanted = [r for r in records if r["mode"] in modes]
            self.assertEqual(blocks[0], "\n\n")
            self.assertEqual(len(blocks) - 1, len(wanted))
            for block, record in zip(blocks[1:], wanted):
                head, text = block.split(" =====\n", 1)
                self.assertEqual(head, f"{record['id']} {record['category']} {record['mode']} {record['source']}")
                self.assertEqual(text.rstrip("\n"), record["rendered"].rstrip("\n"))
        for record in records:
            text, category = record["rendered"], record["category"]
            digest = hashlib.sha1("\0".join((category, record["source"], record["mode"], text[:4096])).encode()).hexdigest()
            self.assertEqual(record["id"], f"{category}-{digest[:12]}")
            self.assertTrue(text.startswith("<｜begin▁of▁sentence｜>"))
            self.assertTrue(text.endswith("<think>" if record["mode"] == "think" else "</think>"))
            self.assertEqual(text.count("<｜begin▁of▁sentence｜>"), 1)
            self.assertFalse([line for line in text.split("\n") if line != line.rstrip()])

    def test_the_seed_decides(self):
        for profile in ("full", "nano"):
            made = [self.make_set(f"{profile}{i}", "--profile", profile, "--bytes", "60k", "--seed", seed)
                    for i, seed in enumerate(("1", "1", "2"))]
            first, again, other = [[read(folder, name) for name in FILES] for folder, _ in made]
            self.assertEqual(first, again)
            self.assertNotEqual(first[1], other[1])

    # The text must teach all experts, and what it teaches must help where it was not looked at.
    def test_importance_lowers_the_divergence_of_two_bits(self):
        folder, _ = self.make_set("nano", "--profile", "nano", "--bytes", "200k")
        importance, reference = self.path("importance.dat"), self.path("reference")
        done = subprocess.run([DS4, "-m", MODEL, "--cpu", "--raw-prompt", "--imatrix-dataset",
                               os.path.join(folder, "rendered_prompts.txt"), "--imatrix-out", importance],
                              capture_output=True, text=True, timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("48 of 48 experts were chosen", done.stderr)
        plain, weighted = self.path("plain.gguf"), self.path("weighted.gguf")
        self.good("--gguf", MODEL, "--recipe", "q2", "-o", plain)
        self.good("--gguf", MODEL, "--recipe", "q2", "--imatrix", importance, "--embed-imatrix", "-o", weighted)
        self.assertEqual(Gguf(weighted).tensors["imatrix.blk.3.ffn_down_exps.weight"][:2], (0, (256, 8)))
        self.good("score", MODEL, "--backend", "cpu", "--raw-prompt", "--dataset", os.path.join(DATA, "held-out.txt"),
                  "--max-tokens", "300", "--write-reference", reference, "--keep", "4096")
        self.good("score", plain, weighted, "--backend", "cpu", "--reference", reference, "--json", self.path("score.json"))
        without, with_it = [m["mean_kl"] for m in json.loads(read(self.path("score.json")))["models"]]
        print(f"KL of q2: {without:.5f} without importance, {with_it:.5f} with it ({100 * with_it / without - 100:+.1f} %)")
        self.assertLess(with_it, 0.9 * without)

    def test_wrong_usage(self):
        for arguments in ([], ["--out", self.path("x"), "--bytes", "0"], ["--out", self.path("x"), "--profile", "big"]):
            done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S)
            self.assertEqual(done.returncode, 2, done.stderr)
        done = subprocess.run([PROGRAM, "--out", "/dev/null/x", "--bytes", "1k"], capture_output=True, text=True, timeout=TIMEOUT_S)
        self.assertEqual((done.returncode, done.stdout), (1, ""))


if __name__ == "__main__":
    unittest.main()
