"""What the bundled model knows, asked through the program: facts, sums, recall, tool calls, with and without reasoning."""

import json
import os
import tempfile
import unittest

from cli_support import run

GREEDY = ("--temp", "0")
EOS = "<\uff5cend\u2581of\u2581sentence\uff5c>"
GOLDENS = os.path.join(os.path.dirname(__file__), "..", "data", "nano", "prompts.json")


class Nano(unittest.TestCase):
    def answer(self, *flags):
        result = run(*GREEDY, *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.decode()

    def test_references(self):
        """Greedy text of the reference implementation, for every kind of prompt, up to 1,500 tokens long."""
        with open(GOLDENS, encoding="utf-8") as file:
            prompts = json.load(file)["prompts"]
        self.assertEqual(len(prompts), 12)
        for prompt in prompts:
            with self.subTest(prompt["id"]), tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
                file.write(prompt["text"])
                file.flush()
                expected = prompt["modes"]["qat"]["greedy_text"].split(EOS)[0]
                thinking = prompt["text"].endswith("<think>")
                # Reasoning and answer are two lines on standard output; the reference has the tag between them.
                expected = expected.replace("</think>", "\n")
                flags = ["--think"] if thinking else ["--nothink"]
                text = self.answer("--raw-prompt", "--prompt-file", file.name, "-n", "32", *flags)
                self.assertEqual(text.rstrip("\n"), expected.rstrip("\n"))

    def test_facts(self):
        for country, capital in (("France", "Paris"), ("Italy", "Rome"), ("Japan", "Tokyo"), ("Spain", "Madrid")):
            self.assertEqual(self.answer("--nothink", "-p", f"What is the capital of {country}?"),
                             f"The capital of {country} is {capital}.\n")

    def test_sums(self):
        for left, right in ((47, 85), (9, 8), (120, 7), (662, 754)):
            with self.subTest(left=left, right=right):
                self.assertEqual(self.answer("--nothink", "-p", f"What is {left} + {right}?"),
                                 f"{left} + {right} = {left + right}\n")
                reasoned = self.answer("--think", "-p", f"What is {left} + {right}?").splitlines()
                self.assertEqual(reasoned[-1], f"{left} + {right} = {left + right}")
                self.assertIn(f"Result: {left + right}.", "\n".join(reasoned[:-1]))


if __name__ == "__main__":
    unittest.main()
