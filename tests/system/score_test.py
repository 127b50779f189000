#!/usr/bin/env python3
"""`ds4-quantize score` with the bundled model: numbers that `ds4` prints too, references, continuations, stamps."""
import hashlib
import json
import os
import re
import signal
import subprocess
import time
import unittest
import xml.dom.minidom

from quantize_support import DATA, DS4, MODEL, QUANTIZE, TIMEOUT_S, Gguf, QuantizeTest

MARK = "===== DS4_IMATRIX_PROMPT"
TEXTS = f"""{MARK} a =====
<｜begin▁of▁sentence｜><｜User｜>What is the capital of Italy?<｜Assistant｜></think>The capital of Italy is Rome.<｜end▁of▁sentence｜>
{MARK} b =====
<｜begin▁of▁sentence｜>You are a succinct assistant.<｜User｜>Calculate 26 - 249.<｜Assistant｜></think>-223<｜end▁of▁sentence｜>
"""
QUESTIONS = "".join(json.dumps({"id": f"q{i}", "prompt": text}) + "\n" for i, text in enumerate(
    ["What is the capital of Japan?", "Calculate 47 + 85.", "What is a clock?"]))


class Score(QuantizeTest):
    def score(self, *arguments):
        """The report as JSON."""
        self.good("score", *arguments, "--backend", "cpu", "--json", self.path("score.json"))
        with open(self.path("score.json"), encoding="utf-8") as file:
            return json.load(file)

    def test_the_likelihood_is_that_of_ds4(self):
        facts = os.path.join(DATA, "facts.txt")
        model = self.score(MODEL, "--text", facts, "--max-tokens", "200")["models"][0]
        printed = subprocess.run([DS4, "-m", MODEL, "--cpu", "--perplexity-file", facts, "-n", "200"], capture_output=True,
                                 text=True, timeout=TIMEOUT_S)
        expected = float(re.search(r"avg_nll=([0-9.]+)", printed.stdout).group(1))
        self.assertEqual((model["tokens"], model["items"][0]["id"], model["items"][0]["given"]), (200, "facts.txt", 32))
        self.assertAlmostEqual(model["mean_nll"], expected, places=6)

    def test_a_model_is_no_way_from_itself_and_others_are(self):
        texts = self.write("texts.txt", TEXTS)
        for keep in ("64", "100000"):
            at_once = self.score(MODEL, "--raw-prompt", "--dataset", texts)["models"][0]
            written = self.score(MODEL, "--raw-prompt", "--dataset", texts, "--write-reference", self.path("ref"), "--keep", keep)
            self.assertEqual([i["id"] for i in at_once["items"]], ["texts.txt:1", "texts.txt:2"])
            self.assertAlmostEqual(written["models"][0]["nll"], at_once["nll"], places=4, msg="steps and passes agree")
            q2 = self.make("q2", f"q2-{keep}.gguf")
            report = self.score(MODEL, q2, "--reference", self.path("ref"), "--svg", self.path("chart.svg"))
            same, other = report["models"]
            self.assertEqual(report["reference"]["model"], same["name"])
            self.assertLess(abs(same["mean_kl"]), 1e-6)
            self.assertEqual(same["agreements"], same["tokens"])
            self.assertAlmostEqual(same["nll"], same["reference_nll"], places=4)
            self.assertGreater(other["mean_kl"], 1e-3)
            self.assertNotEqual(other["nll"], other["reference_nll"])
            self.assertEqual(sum(i["tokens"] for i in other["items"]), other["tokens"])
            self.assertAlmostEqual(sum(i["kl"] for i in other["items"]), other["kl"], places=5)
            chart = xml.dom.minidom.parse(self.path("chart.svg"))
            self.assertIn(f"q2-{keep}.gguf", [n.firstChild.data for n in chart.getElementsByTagName("text") if n.firstChild])

    def test_continuations(self):
        questions = self.write("questions.jsonl", QUESTIONS)
        self.score(MODEL, "--questions", questions, "--continue", "6", "--write-reference", self.path("ref"))
        same = self.score(MODEL, "--reference", self.path("ref"))["models"][0]
        self.assertEqual((same["continuations"], same["first_matches"]), (3, 3))
        self.assertEqual(same["greedy_prefix"], same["tokens"])
        self.assertLessEqual(max(i["tokens"] for i in same["items"]), 6)
        # The same from files, with an answer that the model does not give.
        os.mkdir(self.path("data"))
        for name, text in (("p", "What is the capital of Japan?"), ("right", "The capital of Japan"), ("wrong", "Seven red hats"),
                           ("late", "The capital of Rome is")):
            self.write(f"data/{name}.txt", text)
        manifest = self.write("data/manifest.tsv", "# id\tprompt\tcontinuation\tresponse\n\nr\tp.txt\tright.txt\tx.json\n"
                                                   "w\tp.txt\twrong.txt\r\nl\tp.txt\tlate.txt\n")
        items = self.score(MODEL, "--continuations", manifest)["models"][0]["items"]
        self.assertEqual([i["first_matches"] for i in items], [1, 0, 1])
        self.assertEqual(items[0]["greedy_prefix"], items[0]["tokens"])
        self.assertEqual(items[1]["greedy_prefix"], 0)
        self.assertTrue(1 <= items[2]["greedy_prefix"] < items[2]["tokens"], items[2])
        table = self.good("score", MODEL, "--continuations", manifest, "--backend", "cpu")
        self.assertRegex(table, r"nano\.gguf +\d+ .* 2/3 ")
        # Lists in the original's layout.
        for name, model in (("old.tsv", MODEL), ("new.tsv", self.make("q2"))):
            self.score(model, "--continuations", manifest, "--tsv", self.path(name))
        lines = self.read("old.tsv").decode().splitlines()
        self.assertEqual(lines[0].split("\t"), ["id", "prompt_tokens", "target_tokens", "nll", "avg_nll", "first_match", "greedy_lcp"])
        self.assertAlmostEqual(float(lines[1].split("\t")[3]), items[0]["nll"], places=6)
        compared = dict(line.split("\t", 1) for line in self.good("compare", self.path("old.tsv"), self.path("new.tsv")).splitlines())
        self.assertEqual(compared["cases"], "3")
        self.assertAlmostEqual(float(compared["old_avg_nll"]), sum(i["nll"] for i in items) / sum(i["tokens"] for i in items), places=6)
        self.bad(1, "no line of a list", "compare", manifest, self.path("new.tsv"))

    def test_importance_brings_two_bits_nearer(self):
        # docs/quantize.md §4 has the whole table; the bound here is that of the page.
        held_out, texts = os.path.join(DATA, "held-out.txt"), os.path.join(DATA, "calibration.txt")
        collected = subprocess.run([DS4, "-m", MODEL, "--cpu", "--raw-prompt", "--imatrix-dataset", texts, "--imatrix-out",
                                    self.path("importance.dat"), "--imatrix-max-tokens", "8000"], capture_output=True, text=True,
                                   timeout=TIMEOUT_S)
        self.assertEqual(collected.returncode, 0, collected.stderr)
        self.score(MODEL, "--raw-prompt", "--dataset", held_out, "--max-tokens", "80", "--write-reference", self.path("ref"))
        self.good("--gguf", MODEL, "--recipe", "q2", "--imatrix", self.path("importance.dat"), "-o", self.path("with.gguf"))
        without, importance = self.score(self.make("q2"), self.path("with.gguf"), "--reference", self.path("ref"))["models"]
        self.assertLess(importance["mean_kl"], 0.9 * without["mean_kl"])

    def test_stamps(self):
        texts = self.write("texts.txt", TEXTS)
        self.score(MODEL, "--raw-prompt", "--dataset", texts, "--write-reference", self.path("ref"))
        model = self.make("q2")
        os.symlink("q2.gguf", self.path("link.gguf"))
        before = Gguf(model)
        for round in range(2):
            report = self.score(self.path("link.gguf"), "--reference", self.path("ref"), "--stamp")
            score, after = report["models"][0], Gguf(model)
            stamp = {k[len("quantize.score."):]: v for k, v in after.keys.items() if k.startswith("quantize.score.")}
            self.assertEqual(stamp["tokens"], score["tokens"])
            self.assertEqual(stamp["items"], 2)
            self.assertAlmostEqual(stamp["nll"], score["mean_nll"], places=5)
            self.assertAlmostEqual(stamp["kl"], score["mean_kl"], places=6)
            self.assertEqual(stamp["reference.fingerprint"], report["reference"]["fingerprint"])
            self.assertEqual({k: v for k, v in after.keys.items() if not k.startswith("quantize.score.")}, before.keys)
            self.assertEqual(list(after.tensors), list(before.tensors))
            for name in before.tensors:
                self.assertEqual(after.tensors[name][:2], before.tensors[name][:2])
                self.assertEqual(after.data(name), before.data(name), name)
            self.assertTrue(os.path.islink(self.path("link.gguf")))
        # Requantised it is another file, without a score.
        self.assertFalse([k for k in Gguf(self.make("q4", source=model)).keys if k.startswith("quantize.score.")])

    def test_a_stamp_that_cannot_be_written_leaves_the_model(self):
        texts, model = self.write("texts.txt", TEXTS), self.make("q2")
        before = self.read("q2.gguf")
        self.bad(1, "q2.gguf.tmp: cannot be written", "score", model, "--dataset", texts, "--stamp", "--backend", "cpu",
                 largest_file=5_000_000)
        self.assertEqual(self.read("q2.gguf"), before)
        self.assertEqual(self.names(), ["q2.gguf", "texts.txt"])

    def test_a_stamp_keeps_the_permissions_and_a_checksum_true(self):
        texts, model = self.write("texts.txt", TEXTS), self.make("q2")
        os.chmod(model, 0o640)
        self.write("q2.gguf.sha256", f"{hashlib.sha256(self.read('q2.gguf')).hexdigest()}  q2.gguf\n")
        self.good("score", model, "--dataset", texts, "--stamp", "--backend", "cpu")
        self.assertEqual(self.read("q2.gguf.sha256").decode(), f"{hashlib.sha256(self.read('q2.gguf')).hexdigest()}  q2.gguf\n")
        self.assertEqual(os.stat(model).st_mode & 0o777, 0o640)

    def test_what_is_read_is_not_replaced(self):
        texts, model = self.write("texts.txt", TEXTS), self.make("q2")
        self.good("score", model, "--dataset", texts, "--write-reference", self.path("ref"), "--backend", "cpu")
        before = {name: self.read(name) for name in self.names()}
        os.symlink(model, self.path("link"))
        for option in ("--json", "--svg", "--tsv", "--write-reference"):
            for victim in ("q2.gguf", "texts.txt", "link"):
                self.bad(1, f"{victim} is a file that is read", "score", model, "--dataset", texts, "--backend", "cpu", option,
                         self.path(victim))
        self.bad(1, "ref is a file that is read", "score", model, "--reference", self.path("ref"), "--json", self.path("ref"))
        self.bad(1, "both would be written twice", "score", model, "--dataset", texts, "--json", self.path("both"), "--svg",
                 self.path("./both"))
        self.good("score", model, "--dataset", texts, "--json", "/dev/null", "--svg", "/dev/null", "--backend", "cpu")
        os.remove(self.path("link"))
        self.assertEqual({name: self.read(name) for name in self.names()}, before)

    def test_special_tokens_count_only_when_asked_for(self):
        texts = self.write("texts.txt", TEXTS)
        plain = subprocess.run([QUANTIZE, "score", MODEL, "--dataset", texts, "--backend", "cpu", "--json", self.path("plain.json")],
                               capture_output=True, text=True, timeout=TIMEOUT_S)
        self.assertEqual(plain.returncode, 0, plain.stderr)
        self.assertIn("texts.txt spells special tokens, which count as plain text; --raw-prompt makes them special", plain.stderr)
        rendered = self.score(MODEL, "--raw-prompt", "--dataset", texts)["models"][0]
        self.assertGreater(json.loads(self.read("plain.json"))["models"][0]["tokens"], rendered["tokens"])

    def test_what_would_fail_later_fails_first(self):
        texts = self.write("texts.txt", TEXTS)
        missing = self.path("missing.gguf")
        for arguments in ((MODEL, missing), (MODEL, "--json", self.path("no/x")), (MODEL, "--svg", self.path("no/x")),
                          (MODEL, "--tsv", self.path("no/x"))):
            said = self.bad(1, "missing.gguf|no/x", "score", *arguments, "--dataset", texts, "--backend", "cpu")
            self.assertNotIn("scored", said)
        model = self.make("q2")
        self.write("q2.gguf.tmp", "work")
        said = self.bad(1, "q2.gguf.tmp is there already", "score", model, "--dataset", texts, "--stamp", "--backend", "cpu")
        self.assertNotIn("scored", said)
        self.assertEqual(self.names(), ["q2.gguf", "q2.gguf.tmp", "texts.txt"])

    def test_an_interrupt_leaves_no_reference(self):
        running = subprocess.Popen([QUANTIZE, "score", MODEL, "--text", os.path.join(DATA, "facts.txt"), "--backend", "cpu",
                                    "--write-reference", self.path("ref")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.time() + 60
        while time.time() < deadline and not self.names():
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
        self.assertEqual(running.returncode, 130)
        self.assertEqual(self.names(), [])

    def test_mistakes_are_said(self):
        texts, short = self.write("texts.txt", TEXTS), self.write("short.txt", "Hello")
        self.bad(2, "MODEL is required", "score")
        self.bad(2, "nothing to score", "score", MODEL)
        self.bad(2, "come from the reference", "score", MODEL, "--reference", "x", "--text", texts)
        self.bad(2, "takes one model", "score", MODEL, MODEL, "--text", texts, "--write-reference", "x")
        self.bad(2, "--tsv takes one model", "score", MODEL, MODEL, "--text", texts, "--tsv", "x")
        self.bad(2, "needs --write-reference", "score", MODEL, "--questions", texts)
        self.bad(1, "nowhere: cannot be opened", "score", MODEL, "--reference", self.path("nowhere"))
        self.bad(1, "no undamaged reference", "score", MODEL, "--reference", texts)
        self.bad(1, "too short to score", "score", MODEL, "--text", short, "--backend", "cpu")
        self.bad(1, "texts.txt:1: an id and two files", "score", MODEL, "--continuations", texts, "--backend", "cpu")
        self.bad(1, "short.txt:1: an object", "score", MODEL, "--questions", short, "--write-reference", self.path("r"),
                 "--backend", "cpu")
        self.assertEqual(self.names(), ["short.txt", "texts.txt"])
        # Lists of scores could not tell these apart.
        twice = self.write("twice.jsonl", QUESTIONS + QUESTIONS)
        tab = self.write("tab.jsonl", json.dumps({"id": "a\tb", "prompt": "x"}))
        manifest = self.write("manifest.tsv", "a\ttexts.txt\tshort.txt\na\ttexts.txt\tshort.txt\n")
        for name, pattern in ((twice, 'twice.jsonl:4: there is another line of "q0"'), (tab, "tab.jsonl:1: .* is no id")):
            self.bad(1, pattern, "score", MODEL, "--questions", name, "--write-reference", self.path("r"), "--backend", "cpu")
        self.bad(1, 'manifest.tsv:2: there is another line of "a"', "score", MODEL, "--continuations", manifest, "--backend", "cpu")


if __name__ == "__main__":
    unittest.main()
