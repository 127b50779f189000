#!/usr/bin/env python3
"""`ds4-eval` with the bundled model: the nano suite as a gate, traces and their regrading, budgets, options, exit
codes."""
import os
import re
import signal
import subprocess
import tempfile
import unittest

from cli_support import MODEL, PROGRAM, main, run

# The trace of a greedy run on the CPU. After a change that is meant to change results:
#   build/release/apps/eval/ds4-eval -m models/nano/nano.gguf --cpu --suite nano --plain --trace tests/data/eval/nano.trace
BASELINE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/eval/nano.trace")
EXPECTED_SCORE = "ds4-eval: 58/60 passed, 2 failed, runtime "
NANO = ("--cpu", "--suite", "nano", "--plain", "--seed", "1")


def report_of(output):
    """The report at the end of a run, or at the beginning of regraded output."""
    text = output.decode()
    begin = text.rindex("ds4-eval: ", 0, text.rindex("/", 0, text.rindex(" passed")))
    return [line for line in text[begin:].splitlines() if not line.startswith("regraded")]


class Eval(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def ends(self, status, *arguments, pattern=None, **options):
        result = run(*arguments, **options)
        self.assertEqual(result.returncode, status, (arguments, result.stdout[-500:], result.stderr))
        if pattern:
            self.assertRegex(result.stderr.decode(), pattern)
        return result

    def test_gate(self):
        """Score, verdicts, answers and numbers of tokens of the whole suite."""
        trace = self.path("run.trace")
        result = self.ends(0, *NANO, "--baseline", BASELINE, "--trace", trace)
        self.assertIn("the same as", result.stderr.decode())
        report = report_of(result.stdout)
        self.assertTrue(report[0].startswith(EXPECTED_SCORE), report[0])
        self.assertEqual(len(report), 62)
        regraded = self.ends(0, "--regrade-trace", trace, model=False)
        self.assertEqual(report_of(regraded.stdout), report)
        self.assertRegex(regraded.stdout.decode(),
                         r"regraded 60 cases from .*: passed=58 failed=2 changed=0 unknown=0 parse_errors=0\n$")

    def test_drafts_change_nothing(self):
        drafter = os.path.join(os.path.dirname(MODEL), "nano-mtp.gguf")
        result = self.ends(0, *NANO, "--mtp", drafter, "--baseline", BASELINE, pattern="drafts accepted by place")
        self.assertTrue(report_of(result.stdout)[0].startswith(EXPECTED_SCORE))

    def test_gate_fails_on_a_change(self):
        with open(BASELINE, encoding="utf-8") as file:
            changed = file.read().replace("\ngenerated_tokens: ", "\ngenerated_tokens: 1", 1)
        path = self.write("changed.trace", changed)
        self.ends(1, *NANO, "--questions", "2", "--baseline", path,
                  pattern=r"nano-01: generated tokens was 111, is 11\n(.*\n)*.*case 3, .* was not asked")

    def test_exit_status_tells_about_failures(self):
        self.ends(0, *NANO, "--questions", "2")
        self.ends(1, *NANO, "--case-id", "nano-40")

    def test_regrading(self):
        with open(BASELINE, encoding="utf-8") as file:
            text = file.read()
        path = self.write("old.trace", text.replace("status: PASSED", "status: FAILED", 1))
        result = self.ends(0, "--regrade-trace", path, model=False)
        self.assertIn("Nano/nano-01: FAILED -> PASSED, picked 132 -> 132, key 132\n", result.stdout.decode())
        self.assertIn("changed=1 ", result.stdout.decode())
        path = self.write("unknown.trace", text.replace("id: nano-01\n", "id: nano-999\n", 1))
        result = self.ends(1, "--regrade-trace", path, model=False)
        self.assertIn("unknown=1 ", result.stdout.decode())
        self.ends(1, "--regrade-trace", self.write("empty.trace", "nothing\n"), model=False)
        self.ends(2, "--regrade-trace", self.path("none"), model=False, pattern="none")

    def test_self_test_and_lists(self):
        result = self.ends(0, "--self-test-extractors", model=False)
        self.assertGreaterEqual(int(re.search(rb"(\d+) checks", result.stdout).group(1)), 150)
        rows = self.ends(0, "--list-cases", model=False).stdout.decode().splitlines()
        self.assertEqual(rows[0], "#\tsource\tdomain\tid\tkind\ttitle")
        self.assertEqual(len(rows), 93)
        self.assertTrue(all(len(row.split("\t")) == 6 for row in rows))
        rows = self.ends(0, "--list-cases", "--source", "compsec", model=False).stdout.decode().splitlines()
        self.assertEqual(len(rows), 18)
        self.assertIn(b"152 cases are valid", self.ends(0, "--validate-cases", "--suite", "all", model=False).stdout)

    def test_wrong_usage(self):
        result = self.ends(2, "--role", "worker", model=False, pattern="one machine")
        self.assertEqual(len(result.stderr.decode().splitlines()), 1)
        self.ends(2, "--suite", "hard", pattern="there are: core, nano, all")
        self.ends(2, "--questions", "93", pattern="there are 92")
        self.ends(2, "--case-sequence", "", pattern="--case-sequence")
        self.ends(2, "--case-sequence", "93", pattern="there are 92 questions")
        self.ends(2, "--tokens", "512", pattern="leaves no room")
        self.ends(2, "--tokens", "1000000", pattern="at most 1000000 are possible")
        self.ends(2, "--frobnicate", model=False, pattern="unknown option")

    def test_questions_of_a_file(self):
        path = self.write("gpqa.csv", "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n"
                                      "What is the symbol of helium?,He,H,Hg,Ho\n")
        result = run("--cpu", "--suite-file", path, "--plain", "--trace", self.path("t"))
        self.assertIn(result.returncode, (0, 1), result.stderr)
        self.assertIn("Choices:\nA. ", self.read("t"))
        self.assertIn("Answer: <letter>\nQUESTION_PROMPT_END", self.read("t"))
        regraded = run("--regrade-trace", self.path("t"), "--suite-file", path, model=False)
        self.assertEqual(regraded.returncode, 0, regraded.stdout)
        self.ends(1, "--suite-file", self.write("bad.jsonl", "{}\nx"), pattern="line 2: not a JSON object")

    def test_reasoning_ends_in_time(self):
        think = (*NANO, "--case-id", "nano-11", "--trace", self.path("t"))
        run(*think)
        self.assertIn("think_close: natural\n", self.read("t"))
        run(*think, "-n", "60", "--soft-limit-reply-budget", "30", "--hard-limit-reply-budget", "30")
        self.assertIn("think_close: hard_forced\nthink_close_token_index: 31\nthink_close_remaining_budget: 30\n",
                      self.read("t"))
        run(*think, "-n", "60", "--soft-limit-reply-budget", "50", "--hard-limit-reply-budget", "5",
            "--soft-limit-think-close-rank", "4096")
        self.assertRegex(self.read("t"), "think_close: soft_forced\nthink_close_token_index: 11\n"
                                         "think_close_remaining_budget: 50\nthink_close_rank: [1-9]")

    def test_incomplete_answers_are_asked_again(self):
        cut = (*NANO, "--case-id", "nano-15", "--trace", self.path("t"), "-n", "12", "--hard-limit-reply-budget", "1",
               "--soft-limit-reply-budget", "1")
        result = self.ends(1, *cut)
        self.assertIn(b"INCOMPLETE got ? expected 121", result.stdout)
        self.assertEqual(self.read("t").count("===== CASE"), 1)
        self.ends(1, *cut, "--retry-incomplete")
        self.assertEqual(self.read("t").count("status: INCOMPLETE"), 2)
        self.assertIn("generated_tokens: 24\n", self.read("t"))

    def test_prompts_that_do_not_fit_are_skipped(self):
        result = self.ends(0, *NANO, "--case-id", "nano-15", "-c", "40", pattern="its case will be skipped")
        self.assertRegex(result.stdout.decode(), r"SKIPPED: the prompt has \d+ tokens, the context 40\n")
        self.assertRegex(result.stdout.decode(), r"ds4-eval: 0/1 passed, runtime .*\n.*\n +1 SKIPPED ")

    def test_small_context_for_the_longest_effort(self):
        self.ends(0, *NANO, "--case-id", "nano-11", "--think-max", "-c", "4000", pattern="393216 tokens or more; this one")

    def test_a_full_context_ends_a_reply(self):
        result = self.ends(1, *NANO, "--case-id", "nano-15", "-c", "91", "--hard-limit-reply-budget", "2",
                           "--soft-limit-reply-budget", "2", "--trace", self.path("t"), pattern="leaves 20 for its answer")
        self.assertIn(b" 20 tokens)", result.stdout)

    def test_interrupted(self):
        process = subprocess.Popen([PROGRAM, "-m", MODEL, *NANO, "--trace", self.path("t")], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while b"[2/60]" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"PENDING", out)
        self.assertIn("===== SUMMARY =====", self.read("t"))


if __name__ == "__main__":
    main()
