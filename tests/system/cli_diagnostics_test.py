#!/usr/bin/env python3
"""Dump formats, and that a file appears as a whole or not at all."""
import json
import math
import os
import re
import signal
import stat
import tempfile
import time
import unittest

from cli_support import LONG_TEXT, MODEL, main, run, start

CAPITAL = "What is the capital of Japan?"


class Diagnostics(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "out.json")

    def read(self):
        with open(self.path, "rb") as file:
            return file.read().decode()

    def test_dump_tokens(self):
        result = run("--dump-tokens", "-p", "Hello <｜User｜> è")
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        first, *lines = result.stdout.decode().splitlines()
        ids = json.loads(first)
        self.assertRegex(first, r"^\[\d+(, \d+)*\]$")
        self.assertIn(4091, ids)
        self.assertIn("  4091  <｜User｜>", lines)
        self.assertEqual([int(line[:6]) for line in lines], ids)
        self.assertTrue(all(line[6:8] == "  " for line in lines))
        pieces = "".join(line[8:] for line in lines)
        self.assertEqual(pieces, "HelloĠ<｜User｜>ĠÃ¨")

    def test_dump_logprobs_layout(self):
        result = run("--dump-logprobs", self.path, "--nothink", "-p", CAPITAL, "--logprobs-top-k", "3", "-c", "512")
        self.assertEqual((result.returncode, result.stdout), (0, b""))
        text = self.read()
        number = r"-?\d+(\.\d+)?(e[-+]\d+)?"
        token = r'\{"id":\d+,"text":"([^"\\]|\\.)*","bytes":\[(\d+(,\d+)*)?\]\}'
        entry = rf'\{{"token":{token},"logit":{number},"logprob":{number}\}}'
        step = rf'    \{{"step":\d+,"selected":{token},"top_logprobs":\[{entry},{entry},{entry}\]\}}'
        self.assertRegex(text, rf'\A\{{\n  "source":"ds4",\n  "prompt_tokens":\d+,\n  "ctx":512,\n  "top_k":3,\n'
                               rf'  "steps":\[\n({step},\n)*{step}\n  \]\n\}}\n\Z')
        steps = json.loads(text)["steps"]
        self.assertEqual([s["step"] for s in steps], list(range(len(steps))))
        self.assertEqual(b"".join(bytes(s["selected"]["bytes"]) for s in steps[:-1]), b"The capital of Japan is Tokyo.")
        self.assertEqual(steps[-1]["selected"]["id"], 1)  # EOS is recorded and ends the list
        for s in steps:
            self.assertEqual(s["top_logprobs"][0]["token"], s["selected"])
            probabilities = [t["logprob"] for t in s["top_logprobs"]]
            self.assertEqual(probabilities, sorted(probabilities, reverse=True))

    def test_dump_logprobs_limits(self):
        run("--dump-logprobs", self.path, "--nothink", "-n", "2", "-p", CAPITAL, "--logprobs-top-k", "5000")
        dump = json.loads(self.read())
        self.assertEqual((dump["top_k"], dump["ctx"], len(dump["steps"])), (128, 32768, 2))
        self.assertEqual(len(dump["steps"][0]["top_logprobs"]), 128)
        tokens = dump["prompt_tokens"]
        run("--dump-logprobs", self.path, "--nothink", "-p", CAPITAL, "-c", str(tokens + 1))
        self.assertTrue(self.read().endswith('"steps":[\n\n  ]\n}\n'))

    def test_dump_logits(self):
        result = run("--dump-logits", self.path, "--dump-logprobs", self.path + "2", "-n", "1", "--nothink",
                     "-p", CAPITAL)
        self.assertEqual((result.returncode, result.stdout), (0, b""))
        dump = json.loads(self.read())
        self.assertEqual(list(dump), ["source", "model", "backend", "quant_bits", "prompt_tokens", "ctx", "vocab",
                                      "argmax_token", "argmax_logit", "logits"])
        self.assertEqual((dump["source"], dump["model"], dump["backend"]), ("ds4", MODEL, "cpu"))
        self.assertEqual(len(dump["logits"]), dump["vocab"])
        self.assertEqual(max(dump["logits"]), dump["argmax_logit"])
        self.assertEqual(dump["logits"].index(dump["argmax_logit"]), dump["argmax_token"]["id"])
        rows = self.read().split('"logits":[\n')[1].splitlines()
        self.assertEqual(len(rows[0].strip(" ,").split(",")), 8)
        with open(self.path + "2", encoding="utf-8") as file:
            step = json.load(file)["steps"][0]
        self.assertEqual(step["selected"], dump["argmax_token"])
        total = math.log(math.fsum(math.exp(x - dump["argmax_logit"]) for x in dump["logits"]))
        self.assertAlmostEqual(step["top_logprobs"][0]["logprob"], -total, places=5)

    def score(self, *arguments):
        """The five numbers of --perplexity-file, and how many tokens were the likeliest."""
        result = run("--perplexity-file", *arguments)
        self.assertEqual(result.returncode, 0, result)
        match = re.fullmatch(rb"tokens=(\d+) scored=(\d+) nll=(\d+\.\d{9}) avg_nll=(\d+\.\d{9}) ppl=(\d+\.\d{9})\n",
                             result.stdout)
        top = re.search(rb"(?m)^ds4: top-1: (\d+) of (\d+) tokens \(\d+\.\d\d %\), \d+\.\d\d t/s$", result.stderr)
        self.assertTrue(match and top, result)
        self.assertEqual(top.group(2), match.group(2))
        return [float(x) for x in match.groups()] + [int(top.group(1))]

    def test_perplexity(self):
        text_path = os.path.join(self.folder.name, "text")
        with open(text_path, "w", encoding="utf-8") as file:
            file.write("The capital of Japan is Tokyo. The capital of France is Paris. " * 24)
        tokens, scored, nll, average, perplexity, _ = self.score(text_path)
        self.assertEqual(scored, tokens - 32)
        self.assertAlmostEqual(average, nll / scored, places=8)
        self.assertAlmostEqual(perplexity, math.exp(average), places=5)
        for arguments in (("-t", "1"), ("-t", "3"), ("--prefill-chunk", "5")):
            self.assertEqual(run("--perplexity-file", text_path, *arguments).stdout,
                             run("--perplexity-file", text_path).stdout, arguments)
        self.assertEqual(self.score(text_path, "-n", "10")[1], 10)
        self.assertIn(b"ds4: scored 256 of", run("--perplexity-file", text_path).stderr)
        for context, warned in (("40", True), (str(int(tokens)), False)):
            result = run("--perplexity-file", text_path, "-c", context)
            self.assertIn(f"scored={int(context) - 32} ".encode(), result.stdout)
            self.assertEqual(b"ends before the text" in result.stderr, warned, result)

    def test_perplexity_is_that_of_the_dumped_logits(self):
        text = "The capital of Japan is Tokyo. The capital of France is Paris. " * 3
        text_path = os.path.join(self.folder.name, "text")
        with open(text_path, "w", encoding="utf-8") as file:
            file.write(text)
        dump = run("--dump-tokens", "--raw-prompt", "--prompt-file", text_path).stdout.decode().splitlines()
        ids, pieces = json.loads(dump[0]), [line[8:].replace("Ġ", " ") for line in dump[1:]]
        self.assertEqual("".join(pieces), text)
        nll, likeliest, count = 0, 0, 6
        for i in range(32, 32 + count):
            result = run("--dump-logits", self.path, "--raw-prompt", "-p", "".join(pieces[:i]))
            self.assertEqual(result.returncode, 0)
            with open(self.path, encoding="utf-8") as file:
                logits = json.load(file)
            self.assertEqual(logits["prompt_tokens"], i)
            values = logits["logits"]
            nll += math.log(math.fsum(math.exp(x - values[ids[i]]) for x in values))
            likeliest += max(values) == values[ids[i]]
        score = self.score(text_path, "-n", str(count))
        self.assertEqual((score[0], score[1], score[5]), (len(ids), count, likeliest))
        self.assertAlmostEqual(score[2], nll, delta=count * 1e-6)

    def test_perplexity_errors(self):
        text_path = os.path.join(self.folder.name, "text")
        for text, told in ((b"", b"0 tokens"), (b"a", b"1 token "), (b"too short", b"32")):
            with open(text_path, "wb") as file:
                file.write(text)
            result = run("--perplexity-file", text_path)
            self.assertEqual((result.returncode, result.stdout), (1, b""))
            self.assertRegex(result.stderr, rb"\Ads4: [^\n]*" + told + rb"[^\n]*\n\Z")
        with open(text_path, "w", encoding="utf-8") as file:
            file.write("word " * 100)
        for arguments in ((text_path, "-c", "32"), ("/no-such-file",), (self.folder.name,)):
            result = run("--perplexity-file", *arguments)
            self.assertEqual((result.returncode, result.stdout), (1, b""))
            self.assertRegex(result.stderr, rb"\Ads4: [^\n]+\n\Z")

    def test_inspect(self):
        result = run("--inspect")
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        text = result.stdout.decode()
        for pattern in (r"(?m)^architecture: +deepseek4$", r"(?m)^GGUF: +version 3, \d+ metadata keys, \d+ tensors$",
                        r"(?m)^layers: +6$", r"(?m)^training context: +1048576 tokens$", r"(?m)^parameters: +0\.02 billion$",
                        r"(?m)^type Q8_0: +\d+ tensors, [\d.]+ MiB$", r"heads 4, KV heads 1, head dim 512"):
            self.assertRegex(text, pattern)
        counts = [int(n) for n in re.findall(r"(?m)^type .*?(\d+) tensors", text)]
        self.assertEqual(sum(counts), int(re.search(r"(\d+) tensors$", text, re.M).group(1)))

    def test_memory(self):
        result = run("--memory", "--ctx", "5000", "--cpu")
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        text = result.stdout.decode()
        self.assertTrue(text.startswith("memory on cpu\n"), text)
        for pattern in (r"(?m)^  weights: routed experts +9\.56 MiB$", r"(?m)^  weights in all +22\.15 MiB$",
                        r"(?m)^a session of 5000 tokens$", r"(?m)^  state per token +335 B$",
                        r"(?m)^  such sessions fit +[1-9]\d*$"):
            self.assertRegex(text, pattern)
        self.assertEqual(run("--memory", "-m", "/no-such-file").returncode, 1)

    def test_files_that_cannot_be_written(self):
        for option in ("--dump-logits", "--dump-logprobs"):
            for path in ("/no-such-folder/x", self.folder.name):
                result = run(option, path, "-n", "1", "-p", "x")
                self.assertEqual(result.returncode, 1, (option, path))
                self.assertIn(path.encode(), result.stderr)
        if os.path.exists("/dev/full"):
            result = run("--dump-logprobs", "/dev/full", "-n", "1", "-p", "x")
            self.assertEqual(result.returncode, 1)
            self.assertTrue(stat.S_ISCHR(os.stat("/dev/full").st_mode))
        result = run("--dump-logprobs", "/dev/stdout", "-n", "1", "-p", "x")
        self.assertEqual(len(json.loads(result.stdout)["steps"]), 1)

    def test_no_partial_file_after_an_interrupt(self):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write("old")
        process = start("--dump-logprobs", self.path, "-p", LONG_TEXT)
        deadline = time.monotonic() + 60
        while len(os.listdir(self.folder.name)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(os.listdir(self.folder.name), ["out.json"])
        self.assertEqual(self.read(), "old")

    def test_no_partial_file_after_an_error(self):
        result = run("--dump-logprobs", self.path, "-c", "4", "-p", CAPITAL)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(os.listdir(self.folder.name), [])


if __name__ == "__main__":
    main()
