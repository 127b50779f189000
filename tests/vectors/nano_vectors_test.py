#!/usr/bin/env python3
"""`ds4_test --logprob-vectors` with vectors that `ds4 --dump-logprobs` wrote: right ones pass, each wrong one fails."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

TEST_PROGRAM = os.environ["DS4_TEST_PROGRAM"]
PROGRAM = os.environ["DS4_PROGRAM"]
MODEL = os.environ["DS4_MODEL"]
OFFICIAL_EOS = "<｜｜end▁of▁sentence｜｜>"  # the hosted API's spelling

PROMPTS = {
    "japan": "What is the capital of Japan?",
    "sum": "What is 17 plus 25?",
    "long": "The quick brown fox jumps over the lazy dog. " * 40 + "What is the capital of France?",
}
STEPS = 6


def run(*arguments):
    return subprocess.run([TEST_PROGRAM, "--logprob-vectors", *arguments], stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=300, check=False)


def dump(folder, prompt):
    path = os.path.join(folder, "dump.json")
    subprocess.run([PROGRAM, "-m", MODEL, "--cpu", "--nothink", "-sys", "", "-p", prompt, "-n", str(STEPS),
                    "--dump-logprobs", path], stdin=subprocess.DEVNULL, check=True, capture_output=True, timeout=300)
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def case_text(name, steps, path):
    lines = [f"case {name} 4096 {len(steps)} any/folder/{path}"]
    for step in steps:
        lines.append(f"step {step['step']} {bytes(step['selected']['bytes']).hex()} {len(step['top_logprobs'])}")
        lines += [f"top {bytes(t['token']['bytes']).hex()} {t['logprob']:.9g}" for t in step["top_logprobs"]]
    return "\n".join(lines + ["end", ""])


def reply_json(name, prompt, dumped):
    def token(value):
        data = bytes(value["bytes"])
        return {"text": data.decode("utf-8", "replace"), "bytes": list(data)}

    steps = [{"step": s["step"], "token": token(s["selected"]),
              "top_logprobs": [{"token": token(t["token"]), "logprob": float(f"{t['logprob']:.9g}")}
                               for t in s["top_logprobs"]]} for s in dumped["steps"]]
    # As the API does: a token whose log-probability is not told.
    steps[0]["top_logprobs"].pop()
    steps[0]["top_logprobs"].append({"token": {"text": OFFICIAL_EOS, "bytes": list(OFFICIAL_EOS.encode())},
                                     "logprob": -9999})
    content = b"".join(bytes(s["selected"]["bytes"]) for s in dumped["steps"]).decode()
    return {"schema": "ds4-official-logprobs-v1", "id": name, "prompt": prompt,
            "request": {"temperature": 0, "thinking": {"type": "disabled"},
                        "messages": [{"role": "user", "content": prompt}]},
            "usage": {"prompt_tokens": dumped["prompt_tokens"]}, "message": {"content": content}, "steps": steps}


class NanoVectors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.root)
        os.makedirs(os.path.join(cls.root, "prompts"))
        os.makedirs(os.path.join(cls.root, "official"))
        cls.dumps = {name: dump(cls.root, prompt) for name, prompt in PROMPTS.items()}
        for name, prompt in PROMPTS.items():
            cls.write(f"prompts/{name}.txt", prompt)
        cls.write_all()

    @classmethod
    def write(cls, name, text):
        with open(os.path.join(cls.root, name), "w", encoding="utf-8") as file:
            file.write(text)

    @classmethod
    def write_all(cls):
        """Case "japan" with its JSON file, the others without."""
        for name in os.listdir(os.path.join(cls.root, "official")):
            os.remove(os.path.join(cls.root, "official", name))
        texts = {name: case_text(name, d["steps"], f"{name}.txt") for name, d in cls.dumps.items()}
        last = texts["japan"].split("\n")
        del last[1 + len(cls.dumps["japan"]["steps"][0]["top_logprobs"])]  # untold in the JSON file
        last[1] = last[1].replace(" 20", " 19")
        texts["japan"] = "\n".join(last)
        cls.vec = "# our own\n" + "\n".join(texts.values())
        cls.reply = json.dumps(reply_json("japan", PROMPTS["japan"], cls.dumps["japan"]))
        cls.write("official.vec", cls.vec)
        cls.write("official/japan.official.json", cls.reply)

    def setUp(self):
        self.write_all()

    def check(self, *arguments):
        return run("-m", MODEL, "--cpu", "--vectors", self.root, *arguments)

    def fails(self, pattern, *arguments):
        result = self.check(*arguments)
        self.assertEqual(result.returncode, 1, result)
        self.assertRegex(result.stdout + result.stderr, pattern)
        return result

    def test_right_ones_pass(self):
        result = self.check()
        self.assertEqual((result.returncode, result.stderr), (0, b""), result.stdout)
        lines = result.stdout.decode().splitlines()
        self.assertEqual(lines[-1], "3 cases passed, 0 failed, 0 skipped")
        for name, dumped in self.dumps.items():
            steps = len(dumped["steps"])
            line = next(line for line in lines if line.startswith(name + ": "))
            self.assertRegex(line, rf"^{name}: passed, {dumped['prompt_tokens']} prompt tokens, {steps} of {steps} "
                                   r"tokens as recorded, log-probabilities within 0\.00\d")
        self.assertRegex(result.stdout, rb"japan: passed, [^\n]* [01] of 1 alternatives among the likeliest 20")
        result = self.check("--case", "sum", "-t", "3", "--prefill-chunk", "5")
        self.assertEqual(result.returncode, 0, result)
        self.assertTrue(result.stdout.endswith(b"1 cases passed, 0 failed, 0 skipped\n"))

    def test_a_wrong_log_probability_fails(self):
        for shift, fails in ((-3.9, False), (-4.1, True)):
            step = self.dumps["sum"]["steps"][2]
            old = f"top {bytes(step['selected']['bytes']).hex()} {step['top_logprobs'][0]['logprob']:.9g}\n"
            new = f"{old.rsplit(' ', 1)[0]} {step['top_logprobs'][0]['logprob'] + shift:.9g}\n"
            begin = self.vec.index("case sum")
            self.write("official.vec", self.vec[:begin] + self.vec[begin:].replace(old, new, 1))
            if fails:
                self.fails(rb"sum: FAILED, [^\n]*\n  step 2: the log-probability of \"[^\n]+ recorded -\d[^\n]*\n")
            else:
                self.assertEqual(self.check().returncode, 0)

    def test_a_wrong_token_fails(self):
        step = self.dumps["sum"]["steps"][1]
        old = f"step 1 {bytes(step['selected']['bytes']).hex()} "
        begin = self.vec.index("case sum")
        other = bytes(step["top_logprobs"][1]["token"]["bytes"]).hex()
        for token, pattern in ((other, rb"step 1: recorded \"[^\n]+\", the model chooses \""),
                               ("ff" * 40, rb"no token has the bytes \"\\xff")):
            self.write("official.vec", self.vec[:begin] + self.vec[begin:].replace(old, f"step 1 {token} ", 1))
            result = self.fails(pattern)
            self.assertIn(b"2 cases passed, 1 failed", result.stdout)

    def test_a_token_far_down_fails(self):
        begin = self.vec.index("case sum")
        listed = re.search(r"top ([0-9a-f]+) \S+\nstep 1", self.vec[begin:])
        wrong = listed.group(0).replace(listed.group(1), b" the".hex())
        self.assertNotIn(f"top {b' the'.hex()} ", self.vec[begin:self.vec.index("step 1", begin)])
        self.write("official.vec", self.vec[:begin] + self.vec[begin:].replace(listed.group(0), wrong, 1))
        self.fails(rb"step 0: \" the\" is not among the 20 likeliest tokens")

    def test_another_prompt_or_its_length_fails(self):
        self.write("prompts/sum.txt", "What is the capital of Italy?")
        self.fails(rb"sum: FAILED")
        self.write("prompts/sum.txt", PROMPTS["sum"])
        reply = json.loads(self.reply)
        reply["usage"]["prompt_tokens"] += 1
        self.write("official/japan.official.json", json.dumps(reply))
        self.fails(rb"the prompt has \d+ tokens, the hosted model counted \d+")

    def test_damaged_files_are_one_sentence(self):
        for name, text in (("official.vec", self.vec[:-4]), ("official.vec", ""), ("official.vec", "\xff\x00"),
                           ("official.vec", self.vec.replace("any/folder/sum.txt", "nothing.txt")),
                           ("official/japan.official.json", self.reply[:-1]),
                           ("official/japan.official.json", self.reply.replace("capital", "size", 1)),
                           ("official/japan.official.json", "[" * 100000)):
            self.write_all()
            self.write(name, text)
            result = self.check()
            self.assertEqual((result.returncode, result.stdout), (1, b""), name)
            self.assertRegex(result.stderr, rb"\Ads4_test: [^\n]+\n\Z")

    def test_without_a_model_it_skips(self):
        for arguments, reason in (((), rb"no model is named"), (("-m", "/no-such-file"), rb"no file /no-such-file")):
            result = run(*arguments)
            self.assertEqual((result.returncode, result.stderr), (77, b""))
            self.assertRegex(result.stdout, rb"\ASKIPPED: [^\n]*" + reason + rb"[^\n]*\n\Z")
        self.assertEqual(run("--no-such-option").returncode, 2)
        self.assertEqual(run("--case", "none").returncode, 2)
        self.assertIn(b"long_memory_archive", run("--list").stdout)

    def test_the_hosted_model_is_not_the_bundled_one(self):
        result = run("-m", MODEL, "--cpu", "--case", "short_italian_fact")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"0 cases passed, 1 failed, 0 skipped", result.stdout)

    def test_a_case_that_is_known_to_disagree_is_skipped_unless_asked_for(self):
        text = case_text("long_memory_archive", self.dumps["sum"]["steps"], "japan.txt")
        self.write("official.vec", self.vec + text)
        result = self.check()
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout, rb"\nlong_memory_archive: skipped: [^\n]+\n3 cases passed, 0 failed, 1 skipped\n")
        self.fails(rb"\n0 cases passed, 1 failed, 0 skipped\n", "--case", "long_memory_archive")


if __name__ == "__main__":
    unittest.main()
