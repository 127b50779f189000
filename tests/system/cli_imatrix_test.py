#!/usr/bin/env python3
"""Collecting importance: what is written, its limits, and that nothing is written when it fails."""
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

from cli_support import LONG_TEXT, MODEL, PROGRAM, main, run, wait_for_line

LAYERS, EXPERTS, USED, WIDTH, EXPERT_WIDTH = 6, 8, 2, 256, 256
MARKER = "===== DS4_IMATRIX_PROMPT"
CHAT = "<｜begin▁of▁sentence｜><｜User｜>{}<｜Assistant｜></think>{}<｜end▁of▁sentence｜>"


def parse(data):
    """Entries by name, in order, then the number of chunks and the data set."""
    entries, position = {}, 4
    for _ in range(struct.unpack_from("<i", data)[0]):
        length = struct.unpack_from("<i", data, position)[0]
        name = data[position + 4:position + 4 + length].decode()
        position += 4 + length
        calls, count = struct.unpack_from("<ii", data, position)
        assert calls == 1, calls
        entries[name] = struct.unpack_from(f"<{count}f", data, position + 8)
        position += 8 + 4 * count
    chunks, length = struct.unpack_from("<ii", data, position)
    dataset = data[position + 8:].decode()
    assert len(data) == position + 8 + length, "bytes after the end"
    return entries, chunks, dataset


class Imatrix(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.dataset = os.path.join(self.folder.name, "calibration.txt")
        self.out = os.path.join(self.folder.name, "out.dat")
        prompts = [CHAT.format(f"What is {a} + {a + 3}?", f"{a} + {a + 3} = {2 * a + 3}") for a in range(1, 60)]
        self.write("".join(f"\n\n{MARKER} sum-{i} =====\n{text}\n" for i, text in enumerate(prompts)))

    def write(self, text):
        with open(self.dataset, "w") as file:
            file.write(text)

    def collect(self, *arguments, status=0):
        result = run("--imatrix-dataset", self.dataset, "--imatrix-out", self.out, *arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        return result

    def read(self):
        with open(self.out, "rb") as file:
            return file.read()

    def test_file(self):
        result = self.collect("--raw-prompt")
        entries, chunks, dataset = parse(self.read())
        self.assertEqual(list(entries), [f"blk.{layer}.ffn_{matrix}_exps.weight" for layer in range(LAYERS)
                                         for matrix in ("gate", "up", "down")])
        self.assertEqual(chunks, 59 * LAYERS)
        self.assertEqual(dataset, self.dataset)
        for name, values in entries.items():
            self.assertEqual(len(values), EXPERTS * (EXPERT_WIDTH if "down" in name else WIDTH))
            self.assertTrue(all(value >= 0 for value in values))
            self.assertGreater(len(set(values)), len(values) / 2, name)
        self.assertEqual(entries["blk.3.ffn_gate_exps.weight"], entries["blk.3.ffn_up_exps.weight"])
        tokens = int(result.stdout.split(b" tokens")[0].split()[-1])
        self.assertIn(f"{self.out}: 59 prompts, {tokens} tokens, {tokens * LAYERS * USED} observations".encode(),
                      result.stdout)
        self.assertIn(b"59/59 prompts", result.stderr)
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["calibration.txt", "out.dat"])

    def test_threads_and_chunks_change_nothing(self):
        self.collect("--raw-prompt", "--backend", "cpu", "-t", "1")
        first = self.read()
        self.collect("--raw-prompt", "--backend", "cpu", "-t", "3", "--prefill-chunk", "5")
        self.assertEqual(self.read(), first)

    def test_limits(self):
        result = self.collect("--raw-prompt", "--imatrix-max-prompts", "4")
        self.assertIn(b" 4 prompts, ", result.stdout)
        whole = self.read()
        # The same tokens from a file of four prompts, and then fewer of them.
        with open(self.dataset) as file:
            first = MARKER.join(file.read().split(MARKER)[:5])
        self.write(first)
        self.collect("--raw-prompt")
        self.assertEqual(self.read(), whole)
        result = self.collect("--raw-prompt", "--imatrix-max-tokens", "30")
        self.assertIn(b" 2 prompts, 30 tokens, ", result.stdout)
        result = self.collect("--raw-prompt", "--ctx", "7")
        self.assertIn(b" 4 prompts, 28 tokens, ", result.stdout)

    def test_special_tokens_need_the_option(self):
        raw = self.collect("--raw-prompt")
        plain = self.collect()
        self.assertNotEqual(raw.stdout, plain.stdout)
        self.assertNotIn(b"spells special tokens", raw.stderr)
        self.assertIn(b"spells special tokens", plain.stderr)
        self.write("no markers, no special tokens")
        self.assertNotIn(b"spells special tokens", self.collect().stderr)

    def test_few_samples(self):
        self.write(CHAT.format("Hi", "Hello"))
        self.collect("--raw-prompt")
        entries, _, _ = parse(self.read())
        values = entries["blk.0.ffn_gate_exps.weight"]
        experts = [values[e * WIDTH:(e + 1) * WIDTH] for e in range(EXPERTS)]
        unseen = [e for e in range(EXPERTS) if set(experts[e]) == {1.0}]
        self.assertTrue(unseen)
        result = self.collect("--raw-prompt", "--imatrix-min-expert-samples", "1")
        self.assertIn(b"filled up", result.stderr)
        filled = parse(self.read())[0]["blk.0.ffn_gate_exps.weight"]
        for e in range(EXPERTS):
            now = filled[e * WIDTH:(e + 1) * WIDTH]
            self.assertEqual(now != experts[e], e in unseen)

    def test_usage_errors(self):
        for arguments in (["--imatrix-dataset", self.dataset], ["--imatrix-out", self.out],
                          ["--imatrix-max-tokens", "5"],
                          ["--imatrix-dataset", self.dataset, "--imatrix-out", self.out, "-p", "x"],
                          ["--imatrix-dataset", self.dataset, "--imatrix-out", self.out, "--inspect"],
                          ["--imatrix-dataset", self.dataset, "--imatrix-out", self.out, "--imatrix-max-prompts", "0"]):
            result = run(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn(b"imatrix", result.stderr)
        self.assertFalse(os.path.exists(self.out))

    def test_failures_leave_nothing(self):
        missing = run("--imatrix-dataset", self.dataset + "x", "--imatrix-out", self.out)
        self.assertEqual(missing.returncode, 1)
        self.write(f"{MARKER}\n \n{MARKER}\n")
        self.assertIn(b"no prompt", self.collect(status=1).stderr)
        self.assertEqual(os.listdir(self.folder.name), ["calibration.txt"])
        result = run("--imatrix-dataset", self.dataset, "--imatrix-out", "/no-such-folder/x")
        self.assertEqual(result.returncode, 1)
        self.write("text")
        result = run("--imatrix-dataset", self.dataset, "--imatrix-out", "/dev/full")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"/dev/full", result.stderr)

    def test_what_is_read_is_not_replaced(self):
        model = os.path.join(self.folder.name, "model.gguf")
        shutil.copy(MODEL, model)
        with open(self.dataset, "rb") as file:
            before = file.read()
        for victim in (model, self.dataset):
            result = run("-m", model, "--imatrix-dataset", self.dataset, "--imatrix-max-prompts", "1", "--imatrix-out", victim,
                         model=False)
            self.assertEqual(result.returncode, 1)
            self.assertIn(b"is a file that is read", result.stderr)
        result = run("-m", model, "-p", "hi", "--dump-logits", model, model=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"is a file that is read", result.stderr)
        self.assertEqual(os.path.getsize(model), os.path.getsize(MODEL))
        with open(self.dataset, "rb") as file:
            self.assertEqual(file.read(), before)

    def test_interrupt_keeps_the_file_that_was_there(self):
        with open(self.out, "w") as file:
            file.write("earlier")
        self.write("\n".join(f"{MARKER} {i}\n{LONG_TEXT * 20}" for i in range(50)))  # minutes of work
        process = subprocess.Popen(
            [PROGRAM, "-m", MODEL, "--imatrix-dataset", self.dataset, "--imatrix-out", self.out],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for_line(process.stderr, rb"context 32768")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()  # no effect on one that has ended
        self.assertEqual((process.returncode, out), (130, b""), err)
        self.assertEqual(self.read(), b"earlier")
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["calibration.txt", "out.dat"])


if __name__ == "__main__":
    main()
