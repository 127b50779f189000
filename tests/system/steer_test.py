#!/usr/bin/env python3
"""`ds4-steer` with the bundled model: files it writes, what it refuses, Ctrl+C, the same bytes twice; then `ds4`."""
import csv
import io
import json
import math
import os
import signal
import struct
import subprocess
import tempfile
import time
import unittest
import xml.dom.minidom

from cli_support import MODEL, TIMEOUT_S, main, run

DS4 = os.environ.get("DS4_CLI_PROGRAM", "ds4")
EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "steering")
LAYERS, WIDTH = 6, 256
QUESTIONS = ["What is the capital of France?", "What is the opposite of hot?", "What sound does the cow make?",
             "What is the currency of Japan?", "What is 12 + 7?", "Who wrote Hamlet?"]
ASKED = "What is the capital of Italy?\tRome\n# a remark\n\nWhat is 47 + 85?\t132\nWhat is a baker?\n"
KEYS = ["format", "shape", "component", "thinking", "pair_normalize", "orthogonalize_control_mean", "good_file", "bad_file",
        "model", "model_name", "positions", "layers", "system", "prompts_xxh3_128", "note"]


class Steer(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.good = self.write("good.txt", "".join(f"Briefly: {q}\n" for q in QUESTIONS))
        self.bad = self.write("bad.txt", "".join(f"{q}\n" for q in QUESTIONS))
        self.asked = self.write("asked.txt", ASKED)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def names(self):
        return sorted(set(os.listdir(self.folder.name)) - {"good.txt", "bad.txt", "asked.txt"})

    # The options come after the command.
    def steer(self, command, *arguments):
        return run(command, *arguments, model=False)

    def good_run(self, command, *arguments):
        result = self.steer(command, "-m", MODEL, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def bad_run(self, status, pattern, command, *arguments):
        before = self.names()
        result = self.steer(command, "-m", MODEL, *arguments)
        self.assertEqual((result.returncode, result.stdout), (status, b""), (arguments, result.stderr))
        self.assertRegex(result.stderr.decode(), pattern)
        self.assertTrue(result.stderr.startswith(b"ds4-steer: "), result.stderr)
        self.assertEqual(self.names(), before)
        return result

    def build(self, name, *arguments):
        return self.good_run("build", "--good", self.good, "--bad", self.bad, "-o", self.path(name), *arguments)

    def vectors(self, name):
        values = struct.unpack(f"<{LAYERS * WIDTH}f", self.read(name + ".f32"))
        return [values[l * WIDTH:(l + 1) * WIDTH] for l in range(LAYERS)]

    def test_build(self):
        result = self.build("d")
        self.assertEqual(result.stdout, b"")
        self.assertIn(b"ds4-steer: 6 pairs; wrote ", result.stderr)
        self.assertEqual(self.names(), ["d.f32", "d.json"])
        for vector in self.vectors("d"):
            self.assertAlmostEqual(math.fsum(x * x for x in vector), 1, places=5)
        about = json.loads(self.read("d.json"))
        self.assertEqual(list(about), KEYS)
        self.assertEqual(about["format"], "ds4-directional-steering-v1")
        self.assertEqual(about["shape"], [LAYERS, WIDTH])
        self.assertEqual((about["component"], about["positions"], about["layers"]), ("ffn_out", "last", [0, 5]))
        self.assertEqual((about["thinking"], about["pair_normalize"], about["orthogonalize_control_mean"]), (False,) * 3)
        self.assertEqual((about["good_file"], about["bad_file"]), (self.good, self.bad))
        self.assertEqual(about["model"], os.path.abspath(MODEL))
        self.assertEqual(about["system"], "You are a helpful assistant.")
        self.assertRegex(about["prompts_xxh3_128"], "^[0-9a-f]{32}$")

    def test_build_options(self):
        self.build("plain")
        plain = self.read("plain.f32")
        for number, (options, key, value) in enumerate([
                (("--component", "attn"), "component", "attn_out"), (("--positions", "3"), "positions", "last 3"),
                (("--positions", "all"), "positions", "all"), (("--orthogonalize",), "orthogonalize_control_mean", True),
                (("--pair-normalize",), "pair_normalize", True), (("--think",), "thinking", True),
                (("--system", ""), "system", ""), (("--layers", "2-3"), "layers", [2, 3])]):
            with self.subTest(options):
                self.build(f"d{number}", *options)
                self.assertEqual(json.loads(self.read(f"d{number}.json"))[key], value)
                self.assertNotEqual(self.read(f"d{number}.f32"), plain)
        empty = [all(x == 0 for x in vector) for vector in self.vectors("d7")]
        self.assertEqual(empty, [True, True, False, False, True, True])

    def test_the_same_run_gives_the_same_bytes(self):
        sweep = ("--direction", self.path("d.f32"), "--prompts", self.asked, "--scales", "-1,0,2", "-n", "12")
        written = []
        for _ in range(2):
            self.build("d")
            table = self.good_run("sweep", *sweep, "-o", self.path("s")).stdout
            written.append([self.read(name) for name in ("d.f32", "d.json", "s.csv", "s.svg")] + [table])
        self.assertEqual(written[0], written[1])
        self.build("d", "-t", "1")
        self.assertEqual(self.read("d.f32"), written[0][0])

    def test_numbers_of_prompts_that_differ(self):
        self.build("all")
        self.write("bad.txt", "".join(f"{q}\n" for q in QUESTIONS + ["And what has no partner?"]))
        result = self.build("some")
        self.assertRegex(result.stderr.decode(), r"6 prompts in .*good\.txt and 7 in .*bad\.txt: the first 6 of both are pairs")
        self.assertIn(b"6 pairs; wrote", result.stderr)
        self.assertEqual(self.read("some.f32"), self.read("all.f32"))
        self.write("bad.txt", "".join(f"{q}\n" for q in QUESTIONS[:4]))
        result = self.build("few")
        self.assertRegex(result.stderr.decode(), r"6 prompts in .*good\.txt and 4 in .*bad\.txt: the first 4 of both are pairs")
        self.assertIn(b"4 pairs; wrote", result.stderr)

    def test_what_build_refuses(self):
        build = ("build", "--good", self.good, "--bad", self.bad, "-o", self.path("d"))
        self.bad_run(1, r"--layers 6-6: the model's layers are 0 to 5", *build, "--layers", "6")
        self.bad_run(1, r"--layers 0-6: the model's layers are 0 to 5", *build, "--layers", "0-6")
        self.bad_run(1, "no-such-file", "build", "--good", "/no-such-file", "--bad", self.bad, "-o", self.path("d"))
        self.bad_run(1, "no-such-folder", *build[:-1], "/no-such-folder/d")
        self.bad_run(1, "bad.txt: there is no prompt in it", *build, "--bad", self.write("bad.txt", "# nothing\n"))
        self.write("bad.txt", "x\n" * len(QUESTIONS))
        self.bad_run(1, 'prompt "Briefly: What is the capital of France', *build, "--ctx", "10")
        self.bad_run(2, "--out is missing", *build[:-2])
        self.bad_run(2, "unexpected argument 'learn'", "learn")
        self.bad_run(2, "--positions needs a whole number", *build, "--positions", "0")
        self.bad_run(1, "no-such-model", *build, "-m", "/no-such-model")

    def test_sweep(self):
        self.build("brief", "--component", "attn")
        result = self.good_run("sweep", "--direction", self.path("brief.f32"), "--prompts", self.asked,
                               "--scales", "2,0,-1", "-n", "40", "-o", self.path("s.csv"))
        self.assertEqual(self.names(), ["brief.f32", "brief.json", "s.csv", "s.svg"])
        text = self.read("s.csv").decode()
        self.assertTrue(text.startswith("scale,words,tokens,projection,asked,right,cut\n"))
        rows = list(csv.DictReader(io.StringIO(text)))
        self.assertEqual([row["scale"] for row in rows], ["-1", "0", "2"])
        self.assertEqual({row["asked"] for row in rows}, {"2"})
        by_scale = {row["scale"]: row for row in rows}
        self.assertEqual(by_scale["0"]["right"], "2")
        # "The capital of Italy is Rome.", "47 + 85 = 132", "A baker is a person who makes bread."
        self.assertEqual(float(by_scale["0"]["words"]), round((6 + 5 + 8) / 3, 3))
        self.assertLess(float(by_scale["2"]["words"]), 4)
        self.assertGreater(float(by_scale["2"]["projection"]), float(by_scale["-1"]["projection"]))
        lines = result.stdout.decode().splitlines()
        self.assertEqual(len(lines), 4)
        self.assertEqual({len(line) for line in lines}, {len(lines[0])})
        chart = xml.dom.minidom.parse(self.path("s.svg"))
        self.assertEqual(chart.getElementsByTagName("text")[0].firstChild.data, "brief on Nano")
        panels = chart.getElementsByTagName("polyline")
        self.assertEqual([len(line.getAttribute("points").split()) for line in panels], [3, 3, 3])

    def test_the_directions_of_the_documentation(self):
        """The tables of docs/steering.md: longer and shorter answers of the bundled model, and both still right."""
        prompts = {name: os.path.join(EXAMPLES, f"{name}.txt") for name in ("brief", "detail", "plain", "questions", "sums")}

        def table(good, bad, *options, scales):
            self.good_run("build", "--good", prompts[good], "--bad", prompts[bad], "--component", "attn", "--layers", "2",
                          *options, "-o", self.path("d"))
            result = {}
            for asked in ("questions", "sums"):
                self.good_run("sweep", "--direction", self.path("d.f32"), "--prompts", prompts[asked], "--scales", scales,
                              "-n", "100", "-t", "1", "-o", self.path("s"))
                for row in csv.DictReader(io.StringIO(self.read("s.csv").decode())):
                    share = int(row["right"]) / int(row["asked"])
                    result[row["scale"], asked] = (float(row["words"]), share)
            return result

        style = table("brief", "detail", scales="-5,0,5")
        for asked, longer, plain, shorter in (("questions", 11, 6.1, 2), ("sums", 20, 5, 1.2)):
            self.assertGreater(style["-5", asked][0], longer)
            self.assertAlmostEqual(style["0", asked][0], plain, delta=0.1)
            self.assertLess(style["5", asked][0], shorter)
            self.assertEqual(style["0", asked][1], 1)
            self.assertGreater(min(share for _, share in style.values()), 0.9)
        brief = table("brief", "plain", scales="3")
        detail = table("plain", "detail", "--positions", "2", "--orthogonalize", scales="2")
        for asked in ("questions", "sums"):
            self.assertLess(brief["3", asked][0], 2)
            self.assertGreater(detail["2", asked][0], 20)
            self.assertGreater(min(brief["3", asked][1], detail["2", asked][1]), 0.9)

    def test_sweep_shows_answers(self):
        self.build("d")
        sweep = ("sweep", "--direction", self.path("d.f32"), "--prompts", self.asked, "--scales", "0")
        text = self.good_run(*sweep, "--show").stdout.decode()
        self.assertIn("--- scale 0: What is the capital of Italy?\nThe capital of Italy is Rome.\n", text)
        self.assertIn("--- scale 0: What is 47 + 85?\n47 + 85 = 132\n", text)
        short = self.good_run(*sweep, "-n", "2").stdout.decode()
        self.assertIn(" 3/3\n", short)
        # Reasoning does not count as an answer.
        thought = self.good_run(*sweep, "--think", "--show").stdout.decode()
        self.assertIn("--- scale 0: What is 47 + 85?\n47 + 85 = 132\n", thought)

    def test_what_sweep_refuses(self):
        self.build("d")
        sweep = ("sweep", "--direction", self.path("d.f32"), "--prompts", self.asked)
        self.bad_run(1, "no-such-folder", *sweep, "-o", "/no-such-folder/s")
        self.bad_run(1, "no-such-file", *sweep, "--prompts", "/no-such-file")
        self.bad_run(1, r"no-such-file\.f32", *sweep, "--direction", "/no-such-file.f32")
        self.bad_run(2, "--scales needs a number", *sweep, "--scales", "1,x")
        self.bad_run(2, "--prompts is missing", *sweep[:3])
        with open(self.path("d.f32"), "ab") as file:
            file.write(b"1234")
        self.bad_run(1, r"d\.f32: 6148 bytes, but the directions of a model with 6 layers of width 256 take 6144", *sweep)
        with open(self.path("d.f32"), "r+b") as file:
            file.write(struct.pack("<f", math.nan))
            file.truncate(LAYERS * WIDTH * 4)
        self.bad_run(1, r"d\.f32: the direction of layer 0 holds a value that is not finite", *sweep)

    def interrupt(self, *arguments):
        process = subprocess.Popen([os.environ["DS4_PROGRAM"], *arguments, "-m", MODEL], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            time.sleep(1)
            self.assertIsNone(process.poll(), "the work was over too soon")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()  # no effect on one that has ended
        self.assertEqual((process.returncode, out, err), (130, b"", b""))

    def test_ctrl_c_leaves_no_file(self):
        many = "".join(f"What is {a} + {b}?\n" for a in range(200) for b in range(50))
        for name in ("good.txt", "bad.txt", "asked.txt"):
            self.write(name, many)
        self.interrupt("build", "--good", self.good, "--bad", self.bad, "-o", self.path("d"))
        self.assertEqual(self.names(), [])
        with open(self.path("d.f32"), "wb") as file:
            file.write(struct.pack(f"<{WIDTH}f", *([1 / 16] * WIDTH)) * LAYERS)
        self.interrupt("sweep", "--direction", self.path("d.f32"), "--prompts", self.asked, "-o", self.path("s"))
        self.assertEqual(self.names(), ["d.f32"])

    def test_help(self):
        for arguments in (["--help"], ["build", "--help"], ["sweep", "-h"]):
            result = run(*arguments, model=False)
            self.assertEqual((result.returncode, result.stderr), (0, b""))
            for option in (b"--orthogonalize", b"--positions", b"--scales", b"--backend"):
                self.assertIn(option, result.stdout)
        self.assertRegex(run("--version", model=False).stdout, rb"^ds4-steer \d+\.\d+\.\d+\n$")

    # What was built, in the program that it is for.
    def ds4(self, *arguments):
        result = subprocess.run([DS4, "-m", MODEL, "--temp", "0", "--nothink", *arguments], capture_output=True,
                                stdin=subprocess.DEVNULL, timeout=TIMEOUT_S)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def test_ds4_takes_the_part_from_the_description(self):
        self.build("a", "--component", "attn")
        question = ("-p", "What is the capital of Italy?", "--dir-steering-file", self.path("a.f32"))
        self.assertIn(b"feed-forward 0, attention 1\n", self.ds4(*question).stderr)
        self.assertIn(b"feed-forward 2, attention 0\n", self.ds4(*question, "--dir-steering-ffn", "2").stderr)
        self.assertEqual(self.ds4(*question, "--dir-steering-attn", "0").stdout, b"The capital of Italy is Rome.\n")
        self.assertEqual(self.ds4(*question, "--dir-steering-attn", "2").stdout, b"Rome\n")
        os.remove(self.path("a.json"))
        self.assertIn(b"feed-forward 1, attention 0\n", self.ds4(*question).stderr)
        self.build("f")
        self.assertIn(b"feed-forward 1, attention 0\n",
                      self.ds4("-p", "What is salt?", "--dir-steering-file", self.path("f.f32")).stderr)


if __name__ == "__main__":
    main()
