#!/usr/bin/env python3
"""One-shot answers: what goes to standard output, prompts from everywhere, limits, failing output."""
import json
import os
import struct
import subprocess
import tempfile
import unittest

from cli_support import (ENDLESS, LONG_TEXT, MODEL, PROGRAM, Terminal, main, run, start, tensor_bytes,
                         vocabulary_entry)

CAPITAL = "What is the capital of Japan?"
ANSWER = b"The capital of Japan is Tokyo.\n"
GREEDY = ("--temp", "0", "--nothink")


class Answers(unittest.TestCase):
    def test_answer_alone_on_standard_output(self):
        result = run(*GREEDY, "-p", CAPITAL)
        self.assertEqual((result.returncode, result.stdout), (0, ANSWER))
        self.assertRegex(result.stderr, rb"(?m)^ds4: prefill: \d+\.\d\d t/s, generation: \d+\.\d\d t/s$")
        self.assertNotIn(b"\x1b", result.stderr)

    def test_reasoning_is_shown_and_separated(self):
        result = run("--temp", "0", "-p", "Calculate 108 + 913.")
        lines = result.stdout.decode().splitlines()
        self.assertEqual(lines[-1], "108 + 913 = 1021")
        self.assertIn("Units", lines[0])
        self.assertNotIn("think>", result.stdout.decode())

    def test_drafts_change_nothing_but_the_speed(self):
        drafter = os.path.join(os.path.dirname(MODEL), "nano-mtp.gguf")
        for sampling in (("--temp", "0"), ("--temp", "1", "--seed", "7")):
            plain = run(*sampling, "-p", "Calculate 108 + 913.")
            for depth in ("1", "3", "16"):
                drafted = run(*sampling, "-p", "Calculate 108 + 913.", "--mtp", drafter, "--mtp-draft", depth,
                              "--mtp-margin", "0")
                self.assertEqual((drafted.returncode, drafted.stdout), (0, plain.stdout))
                self.assertRegex(drafted.stderr, rb"(?m)^ds4: drafts accepted by place: \d+/[1-9]\d*.*; \d\.\d\d tokens per step")
        self.assertNotIn(b"drafts", plain.stderr)
        result = run("--mtp-draft", "2", "-p", "x")
        self.assertEqual((result.returncode, result.stdout), (1, b""))
        self.assertIn(b"--mtp-draft needs a drafter", result.stderr)
        self.assertEqual(run("--mtp", MODEL, "-p", "x").returncode, 1)
        self.assertEqual(run("--mtp", drafter, "--mtp-draft", "17", "-p", "x").returncode, 2)

    def test_steering(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "d.f32")
            with open(path, "wb") as file:
                file.write(struct.pack("<256f", *([0.0625] * 256)) * 6)
            plain = run(*GREEDY, "-p", CAPITAL)
            off = run(*GREEDY, "-p", CAPITAL, "--dir-steering-file", path, "--dir-steering-ffn", "0")
            self.assertEqual(off.stdout, plain.stdout)
            strong = run(*GREEDY, "-p", CAPITAL, "-n", "20", "--dir-steering-file", path, "--dir-steering-ffn", "-100")
            self.assertEqual(strong.returncode, 0)
            self.assertNotEqual(strong.stdout, plain.stdout)
            self.assertIn(b"steering by " + path.encode() + b": feed-forward -100, attention 0", strong.stderr)
            with open(path, "ab") as file:
                file.write(b"1234")
            wrong = run("-p", "x", "--dir-steering-file", path)
            self.assertEqual((wrong.returncode, wrong.stdout), (1, b""))
            self.assertRegex(wrong.stderr, rb"d\.f32: 6148 bytes, but the directions of a model with 6 layers of width 256 take 6144")
        lost = run("-p", "x", "--dir-steering-attn", "1")
        self.assertEqual(lost.returncode, 2)
        self.assertIn(b"--dir-steering-attn needs a direction", lost.stderr)

    def test_reasoning_is_dim_on_a_terminal(self):
        terminal = Terminal("--temp", "0", "-p", "Calculate 108 + 913.")
        terminal.expect(r"\x1b\[90m108.*1021\.?\x1b\[0m\r\n108 \+ 913 = 1021\r\n")
        terminal.expect(r"\x1b\[36mds4: prefill: [\d.]+ t/s, generation: [\d.]+ t/s\x1b\[0m")
        self.assertEqual(terminal.close(), 0)

    def test_prompt_sources_agree(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(CAPITAL.encode())
            file.flush()
            self.assertEqual(run(*GREEDY, "--prompt-file", file.name).stdout, ANSWER)
        self.assertEqual(run(*GREEDY, stdin=CAPITAL.encode() + b"\n").stdout, ANSWER)
        self.assertEqual(run(*GREEDY, "-p", "-", stdin=CAPITAL.encode()).stdout, ANSWER)

    def test_system_text(self):
        self.assertEqual(run(*GREEDY, "-sys", "Be succinct.", "-p", CAPITAL).stdout, b"Tokyo\n")
        self.assertEqual(run(*GREEDY, "-sys", "", "-p", CAPITAL).returncode, 0)

    def test_special_tokens_are_text_unless_raw(self):
        rendered = "<｜begin▁of▁sentence｜>Be succinct.<｜User｜>" + CAPITAL + "<｜Assistant｜></think>"
        self.assertEqual(run(*GREEDY, "--raw-prompt", "-p", rendered).stdout, b"Tokyo\n")

        def tokens(*arguments):
            dump = run("--dump-logprobs", "/dev/stdout", "-n", "1", "--nothink", "-sys", "", *arguments).stdout
            return json.loads(dump)["prompt_tokens"]
        # BOS, user, the text, assistant, end of reasoning
        self.assertEqual(tokens("-p", "a"), 5)
        self.assertGreater(tokens("-p", "<｜User｜>"), 6)
        self.assertGreater(tokens("-p", "<｜begin▁of▁sentence｜>"), 6)
        self.assertEqual(tokens("--raw-prompt", "-p", "<｜User｜>"), 1)

    def test_tool_call(self):
        schemas = (b'[{"type":"function","function":{"name": "get_weather", "description": "Get the current weather '
                   b'of a city.", "parameters": {"type": "object", "properties": {"city": {"type": "string", '
                   b'"description": "Name of the city"}}, "required": ["city"]}}}]')
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            file.write(schemas)
            file.flush()
            result = run(*GREEDY, "--tools", file.name, "-p", "Weather in Lisbon?")
        text = result.stdout.decode()
        self.assertIn('<｜DSML｜invoke name="get_weather">', text)
        self.assertIn('<｜DSML｜parameter name="city" string="true">Lisbon</｜DSML｜parameter>', text)
        self.assertTrue(text.endswith("</｜DSML｜tool_calls>\n"))

    def test_seed_decides(self):
        arguments = ("--nothink", "--temp", "2", "--min-p", "0", "-n", "12", "-p", "Tell me something.")
        first = run(*arguments, "--seed", "7").stdout
        self.assertEqual(run(*arguments, "--seed", "7").stdout, first)
        others = {run(*arguments, "--seed", str(seed)).stdout for seed in (8, 9, 10)}
        self.assertNotEqual(others, {first})

    def test_token_limit(self):
        self.assertEqual(run(*GREEDY, "-n", "2", "-p", CAPITAL).stdout, b"The capital\n")

    def test_full_context_ends_the_answer(self):
        result = run(*GREEDY, "-c", "20", "-p", CAPITAL)
        self.assertEqual(result.returncode, 0)
        self.assertTrue(ANSWER.startswith(result.stdout.rstrip(b"\n")))
        self.assertLess(len(result.stdout), len(ANSWER))
        self.assertIn(b"the context of 20 tokens is full", result.stderr)

    def test_prompt_larger_than_the_context(self):
        result = run(*GREEDY, "-c", "8", "-p", CAPITAL)
        self.assertEqual((result.returncode, result.stdout), (1, b""))
        self.assertRegex(result.stderr, rb"ds4: .*8")

    def test_longest_effort_on_a_small_context_is_told_once(self):
        result = run("--temp", "0", "--think-max", "-n", "2", "-p", CAPITAL)
        self.assertEqual(result.stderr.count(b"393216"), 1)
        self.assertEqual(run("--temp", "0", "--think", "-n", "2", "-p", CAPITAL).stderr.count(b"393216"), 0)

    def test_other_runtime_flags(self):
        for flags in (["--cpu"], ["--backend", "cpu"], ["--backend", "auto", "--quality"], ["-t", "1"],
                      ["--prefill-chunk", "128", "--warm-weights"]):
            self.assertEqual(run(*GREEDY, *flags, "-p", CAPITAL).stdout, ANSWER, flags)

    def test_bundled_model_is_found_with_one_notice(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run(*GREEDY, "-p", CAPITAL, model=False, cwd=folder)
            self.assertEqual((result.returncode, result.stdout), (0, ANSWER))
            self.assertEqual(result.stderr.count(b"bundled"), 1)
            os.symlink(os.path.abspath(MODEL), os.path.join(folder, "ds4flash.gguf"))
            result = run(*GREEDY, "-p", CAPITAL, model=False, cwd=folder)
            self.assertEqual(result.stdout, ANSWER)
            self.assertNotIn(b"bundled", result.stderr)


class ChangedModels(unittest.TestCase):
    """Copies of the model with something replaced."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "changed.gguf")
        with open(MODEL, "rb") as file:
            self.data = file.read()

    def write(self, data):
        self.assertEqual(len(data), len(self.data))
        with open(self.path, "wb") as file:
            file.write(data)

    def test_a_token_that_is_not_the_models_to_write_ends_the_reply(self):
        for other in ("<｜User｜>", "<｜begin▁of▁sentence｜>"):
            # The names change places, the ids do not: what the model takes for EOS is now called otherwise.
            names = {"<｜end▁of▁sentence｜>": other, other: "<｜end▁of▁sentence｜>"}
            (i, first), (j, second) = sorted((self.data.index(vocabulary_entry(name)), name) for name in names)
            rest = i + len(vocabulary_entry(first))
            self.write(self.data[:i] + vocabulary_entry(second) + self.data[rest:j] + vocabulary_entry(first) +
                       self.data[j + len(vocabulary_entry(second)):])
            prompt = "<｜begin▁of▁sentence｜>You are a helpful assistant<｜User｜>" + CAPITAL + "<｜Assistant｜></think>"
            prompt = prompt.replace(other, names[other])
            result = run("--temp", "0", "-n", "50", "--raw-prompt", "-p", prompt, "-m", self.path)
            self.assertEqual((result.returncode, result.stdout), (0, ANSWER), result.stderr)

    def test_an_answer_cannot_command_the_terminal(self):
        # In the vocabulary's alphabet, ě is the byte of ESC.
        self.write(self.data.replace(vocabulary_entry("ĠTokyo"), vocabulary_entry("Ġě[2J")))
        arguments = ("-m", self.path, *GREEDY, "-p", CAPITAL)
        self.assertEqual(run(*arguments).stdout, ANSWER.replace(b"Tokyo", b"\x1b[2J"))
        terminal = Terminal(*arguments)
        terminal.expect(r"Japan is \^\[\[2J\.")
        self.assertEqual(terminal.close(), 0)

    def test_weights_that_are_not_numbers(self):
        begin = tensor_bytes(self.data, "token_embd.weight", "output_norm.weight")
        self.write(self.data[:begin] + b"\xff" * 1024 + self.data[begin + 1024:])
        dump = self.path + ".json"
        for arguments in (["-p", "Hi"], ["-p", "Hi", "--dump-logprobs", dump], ["--perplexity-file", __file__]):
            result = run("-m", self.path, "--nothink", *arguments)
            self.assertEqual((result.returncode, result.stdout), (1, b""))
            self.assertRegex(result.stderr, rb"ds4: position \d+: the model computed NaN[^\n]*\n$")
        self.assertFalse(os.path.exists(dump))


class Output(unittest.TestCase):
    def test_full_disk(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full here")
        for arguments in (["-p", CAPITAL, *GREEDY], ["--help"], ["--inspect"], ["--dump-tokens", "-p", "x"]):
            with open("/dev/full", "wb") as full:
                result = subprocess.run([PROGRAM, "-m", MODEL, *arguments], stdin=subprocess.DEVNULL, stdout=full,
                                        stderr=subprocess.PIPE, timeout=60)
            self.assertEqual(result.returncode, 1, arguments)
            self.assertIn(b"cannot write to standard output", result.stderr)

    def test_closed_pipe_ends_quietly(self):
        process = start(*ENDLESS, "-p", "Tell me a long story.")
        process.stdout.read(1)
        process.stdout.close()
        self.assertEqual(process.wait(timeout=60), 1)
        errors = process.stderr.read()
        process.stderr.close()
        self.assertNotIn(b"rite", errors)
        self.assertNotIn(b"ipe", errors)

    def test_tokens_are_flushed_one_by_one(self):
        process = start(*GREEDY, "-sys", "Be verbose.", "-p", "Calculate 12 + 13.")
        chunks = []
        while chunk := os.read(process.stdout.fileno(), 65536):
            chunks.append(chunk)
        process.wait(timeout=60)
        process.stdout.close()
        process.stderr.close()
        self.assertGreater(len(chunks), 2)

    def test_progress_only_on_a_terminal(self):
        prompt = LONG_TEXT[:8000]
        self.assertNotIn(b"processing", run(*GREEDY, "-n", "1", "-p", prompt).stderr)
        terminal = Terminal(*GREEDY, "-n", "1", "-p", prompt)
        terminal.expect(r"\rprocessing (\d+) input tokens: \1/\1 \(100\.0%\)|"
                        r"\r\x1b\[36mprocessing (\d+) input tokens: \2/\2 \(100\.0%\)\x1b\[0m\x1b\[K\r\n")
        self.assertEqual(terminal.close(), 0)


if __name__ == "__main__":
    main()
