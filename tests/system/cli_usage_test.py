#!/usr/bin/env python3
"""The command line: help, wrong usage, files that cannot be used. Exit codes 0, 1 and 2."""
import os
import tempfile
import unittest

from cli_support import MODEL, main, run


class Usage(unittest.TestCase):
    def usage_error(self, pattern, *arguments, **options):
        result = run(*arguments, **options)
        self.assertEqual((result.returncode, result.stdout), (2, b""), (arguments, result.stderr))
        self.assertRegex(result.stderr.decode(), pattern)
        return result

    def test_help_goes_to_standard_output(self):
        for arguments in (["--help"], ["-h"], ["-h", "all"], ["--help", "sampling"]):
            result = run(*arguments, model=False)
            self.assertEqual((result.returncode, result.stderr), (0, b""))
            self.assertIn(b"--", result.stdout)
            self.assertNotIn(b"\x1b", result.stdout)
        for topic, expected in (("runtime", b"--prefill-chunk"), ("sampling", b"--min-p"),
                                ("diagnostics", b"--dump-logits"), ("commands", b"/think-max"), ("all", b"Ctrl+R")):
            self.assertIn(expected, run("--help", topic, model=False).stdout)
        result = run("--help", "nonsense", model=False)
        self.assertEqual(result.returncode, 0)
        self.assertIn(b"no help topic 'nonsense'", result.stdout)

    def test_version(self):
        self.assertRegex(run("--version", model=False).stdout, rb"^ds4 \d+\.\d+\.\d+\n$")

    def test_unknown_options_show_the_short_help(self):
        for option in ("--no-such-option", "--temp=1", "-x", "--power", "--server", "stray"):
            result = self.usage_error("unknown option|unexpected argument", option, "1")
            self.assertIn(b"usage: ds4", result.stderr)

    def test_values(self):
        for option in ("-n", "-c", "-t", "--seed", "--prefill-chunk"):
            for value in ("0", "-1", "1x", "", "1.5"):
                self.usage_error("whole number", option, value, "-p", "x")
        for option in ("--temp", "--top-p", "--min-p"):
            for value in ("-1", "nan", "x", "101"):
                self.usage_error("needs a number", option, value, "-p", "x")
        self.usage_error("needs a value", "-p")
        self.usage_error("no backend 'metal'", "--backend", "metal", "-p", "x")

    def test_prompts(self):
        self.usage_error("one prompt only", "-p", "a", "-p", "b")
        self.usage_error("one prompt only", "-p", "a", "--prompt-file", "b")
        self.usage_error("empty", "-p", "")
        self.usage_error("empty", "-p", "-", stdin=b"")
        self.usage_error("empty", stdin=b"")
        self.usage_error("empty", "--prompt-file", os.devnull)
        self.usage_error("no-such-file", "--prompt-file", "/no-such-file")
        self.usage_error("directory", "--prompt-file", "/")
        self.usage_error("/dev/zero has more than 256 MiB", "--prompt-file", "/dev/zero")
        self.usage_error("perplexity", "--perplexity-file", MODEL, "-p", "x")
        self.usage_error("empty|prompt", "--dump-tokens")
        self.usage_error("empty|prompt", "--dump-logits", "/no-such-folder/x")

    def test_tools(self):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            file.write(b'{"name": "x"}')
            file.flush()
            self.usage_error("not a JSON array", "--tools", file.name, "-p", "x")
        self.usage_error("no-such-file", "--tools", "/no-such-file", "-p", "x")


class Models(unittest.TestCase):
    def failure(self, path, pattern, *arguments):
        for extra in (["-p", "x"], ["--inspect"], ["--dump-tokens", "-p", "x"]):
            result = run("-m", path, *extra, *arguments, model=False)
            self.assertEqual((result.returncode, result.stdout), (1, b""), (extra, result.stderr))
            lines = result.stderr.decode().strip().splitlines()
            self.assertEqual(len(lines), 1, lines)
            self.assertRegex(lines[0], "^ds4: ")
            self.assertRegex(lines[0], pattern)

    def test_missing(self):
        self.failure("/no-such-model.gguf", "/no-such-model.gguf")

    def test_directory(self):
        with tempfile.TemporaryDirectory() as folder:
            self.failure(folder, os.path.basename(folder))

    def test_not_a_model(self):
        with tempfile.NamedTemporaryFile() as file:
            self.failure(file.name, os.path.basename(file.name))
            file.write(b"some text\n" * 1000)
            file.flush()
            self.failure(file.name, os.path.basename(file.name))

    def test_truncated(self):
        with open(MODEL, "rb") as model:
            content = model.read()
        for size in (3, 24, 1000, 100_000, len(content) // 2, len(content) - 1):
            with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
                file.write(content[:size])
                file.flush()
                self.failure(file.name, os.path.basename(file.name))

    def test_unreadable(self):
        if os.geteuid() == 0:
            self.skipTest("root reads everything")
        with tempfile.NamedTemporaryFile() as file:
            os.chmod(file.name, 0)
            self.failure(file.name, "ermission")


if __name__ == "__main__":
    main()
