#!/usr/bin/env python3
"""`ds4-bench` with the bundled model: what it writes, what stays after a failure, its exit codes; its charts."""
import json
import os
import re
import signal
import subprocess
import tempfile
import unittest
import xml.dom.minidom

from cli_support import LONG_TEXT, TIMEOUT_S, main, run, start

PLOT_PROGRAM = os.environ.get("DS4_PLOT_PROGRAM", "ds4-bench-plot")
HEADER = "ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes"
SHORT = ("--ctx-start", "64", "--ctx-max", "200", "--step-incr", "64", "-n", "4")


def rows_of(text):
    return [line.split(",") for line in text.splitlines()[1:]]


class Bench(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def good(self, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def bad(self, status, pattern, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, status, (arguments, result.stderr))
        self.assertRegex(result.stderr.decode(), pattern)
        return result

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def test_rows(self):
        result = self.good(*SHORT)
        lines = result.stdout.decode().splitlines()
        self.assertEqual(lines[0], HEADER)
        for line in lines[1:]:
            self.assertRegex(line, r"^\d+,\d+,\d+\.\d\d,\d+,\d+\.\d\d,\d+$")
        rows = rows_of(result.stdout.decode())
        self.assertEqual([row[0] for row in rows], ["64", "128", "192", "200"])
        self.assertEqual([row[1] for row in rows], ["64", "64", "64", "8"])
        for row in rows:
            self.assertEqual(row[3], "4")
            self.assertGreater(float(row[2]), 0)
            self.assertGreater(float(row[4]), 0)
            self.assertGreater(int(row[5]), 0)
        for what in ("machine: ", "backend: cpu", "build: ds4 ", "model: ", "context 205 tokens.*prefill chunk"):
            self.assertRegex(result.stderr.decode(), f"(?m)^ds4-bench: .*{what}")

    def test_prefill_alone(self):
        rows = rows_of(self.good(*SHORT, "--gen-tokens", "0").stdout.decode())
        self.assertEqual([row[3:] for row in rows], [["0", "0.00", "0"]] * 4)

    def test_factor(self):
        result = self.good("--ctx-start", "50", "--ctx-max", "300", "--step-mul", "1.5", "-n", "0")
        self.assertEqual([row[0] for row in rows_of(result.stdout.decode())], ["50", "75", "113", "170", "255", "300"])

    def test_more_columns_and_comments(self):
        lines = self.good(*SHORT, "--bandwidth", "--describe").stdout.decode().splitlines()
        self.assertEqual([line.split(":")[0] for line in lines[:4]], ["# machine", "# backend", "# build", "# model"])
        self.assertIn("GB/s", lines[1])
        self.assertEqual(lines[4], HEADER + ",gen_bytes_per_token,gen_bandwidth_percent")
        for line in lines[5:]:
            row = line.split(",")
            # The bundled model has 23 MB of weights and uses some of its experts.
            self.assertTrue(5e6 < int(row[6]) < 23e6, row)
            self.assertGreaterEqual(float(row[7]), 0)  # how much depends on what else the machine does

    def test_files(self):
        with open(self.path("rows.csv"), "w", encoding="utf-8") as file:
            file.write("an old file\n" * 1000)
        result = self.good(*SHORT, "--csv", self.path("rows.csv"), "--json", self.path("run.json"))
        self.assertEqual(result.stdout, b"")
        rows = rows_of(self.read("rows.csv"))
        self.assertEqual([row[0] for row in rows], ["64", "128", "192", "200"])
        self.assertRegex(result.stderr.decode(), r"ds4-bench: 200: prefill .* MB per token = .* GB/s \(.* % of .*\)")
        report = json.loads(self.read("run.json"))
        self.assertEqual((report["source"], report["complete"]), ("ds4-bench", True))
        self.assertEqual(report["settings"]["ctx_alloc"], 205)
        self.assertEqual(report["settings"]["prompt"], "built-in")
        self.assertEqual(report["model"]["variant"], "Nano")
        self.assertGreater(report["read_bytes_per_second"], 0)
        for row, entry in zip(rows, report["rows"], strict=True):
            self.assertEqual(int(row[0]), entry["ctx_tokens"])
            self.assertAlmostEqual(float(row[4]), entry["gen_tps"], delta=0.006)
            self.assertEqual(int(row[5]), entry["kvcache_bytes"])
            self.assertGreater(entry["gen_bytes_per_token"], 5e6)

    def test_disk(self):
        columns = ["kv_write_bytes", "kv_write_seconds", "kv_write_gb_per_second",
                   "kv_read_bytes", "kv_read_seconds", "kv_read_gb_per_second"]
        folder = self.path("new/cache")
        for attempt in range(2):  # what one run wrote, the next one does not find
            result = self.good(*SHORT, "--kv-disk-dir", folder, "--csv", self.path("rows.csv"), "--json", self.path("run.json"))
            self.assertEqual(self.read("rows.csv").splitlines()[0], ",".join([HEADER, *columns]))
            rows = rows_of(self.read("rows.csv"))
            self.assertEqual([row[0] for row in rows], ["64", "128", "192", "200"])
            report = json.loads(self.read("run.json"))
            self.assertEqual(report["settings"]["kv_disk_dir"], folder)
            for row, entry in zip(rows, report["rows"], strict=True):
                self.assertEqual(len(row), 12)
                values = dict(zip(columns, map(float, row[6:]), strict=True))
                for way in ("write", "read"):
                    size, seconds, rate = (values[f"kv_{way}_{what}"] for what in ("bytes", "seconds", "gb_per_second"))
                    self.assertTrue(100_000 < size < 10_000_000, row)
                    self.assertTrue(0 < seconds < 60, row)
                    self.assertAlmostEqual(rate, size / seconds / 1e9, delta=0.001 + 0.01 * rate)
                    self.assertEqual(entry[f"kv_{way}_bytes"], size)
                    self.assertAlmostEqual(entry[f"kv_{way}_seconds"], seconds, delta=1e-6)
                    self.assertAlmostEqual(entry[f"kv_{way}_gb_per_second"], rate, delta=0.001)
            # At 192 tokens the block that was written at 128 is there.
            self.assertLess(int(rows[2][6]), int(rows[2][9]))
            self.assertRegex(result.stderr.decode(), r"(?m)200: .*; state written: .* MB in .* ms \(.* GB/s\), read: .* GB/s\)$")
            left = [name for _, _, names in os.walk(folder) for name in names if not name.startswith(("index", "lock"))]
            self.assertEqual(left, [])

    def test_disk_changes_nothing_else(self):
        plain = rows_of(self.good(*SHORT, "--json", self.path("plain.json")).stdout.decode())
        measured = rows_of(self.good(*SHORT, "--kv-disk-dir", self.path("cache")).stdout.decode())
        for a, b in zip(plain, measured, strict=True):
            self.assertEqual((len(a), len(b)), (6, 12))
            self.assertEqual([a[i] for i in (0, 1, 3, 5)], [b[i] for i in (0, 1, 3, 5)])
        self.assertNotIn("kv_", self.read("plain.json"))
        alone = rows_of(self.good(*SHORT, "-n", "0", "--kv-disk-dir", self.path("cache")).stdout.decode())
        self.assertEqual([row[3:6] for row in alone], [["0", "0.00", "0"]] * 4)
        self.assertGreater(int(alone[0][6]), 0)

    def test_disk_that_cannot_be_used(self):
        file = self.write("file", "")
        for folder in (file, file + "/cache"):
            result = self.bad(1, f"^ds4-bench: the disk cache in {re.escape(folder)} failed: [^\n]*\n$",
                              *SHORT, "--kv-disk-dir", folder)
            self.assertEqual(result.stdout, b"")

    def logits(self, folder, *arguments):
        os.mkdir(self.path(folder))
        self.good(*SHORT, *arguments, "--dump-frontier-logits-dir", self.path(folder))
        names = sorted(os.listdir(self.path(folder)))
        self.assertEqual(names, [f"frontier_{n:06}.logits.json" for n in (64, 128, 192, 200)])
        return [json.loads(self.read(os.path.join(folder, name))) for name in names]

    def test_logits_do_not_depend_on_the_probe(self):
        """The state after a probe is the one before it, whatever the probe decoded."""
        greedy = self.logits("greedy")
        for dump, frontier, new in zip(greedy, (64, 128, 192, 200), (64, 64, 64, 8)):
            self.assertEqual(dump["source"], "ds4-bench")
            self.assertEqual((dump["prompt_tokens"], dump["frontier_tokens"], dump["prefill_tokens"], dump["ctx"]),
                             (frontier, frontier, new, 205))
            self.assertEqual((dump["backend"], dump["quality"], dump["quant_bits"]), ("cpu", False, 8))
            self.assertEqual(len(dump["logits"]), dump["vocab"])
            self.assertEqual(dump["argmax_logit"], max(dump["logits"]))
            self.assertEqual(dump["logits"].index(dump["argmax_logit"]), dump["argmax_id"])
        none = self.logits("none", "-n", "0", "--ctx-alloc", "205")
        forced = self.logits("forced", "--teacher-forced-decode")
        for a, b, c in zip(greedy, none, forced):
            self.assertEqual(a["logits"], b["logits"])
            self.assertEqual(a["logits"], c["logits"])

    def test_prompt_files(self):
        text = self.write("text", LONG_TEXT[:4000])
        raw = self.good(*SHORT, "--prompt-file", text)
        self.assertEqual(len(rows_of(raw.stdout.decode())), 4)
        self.good(*SHORT, "--chat-prompt-file", text, "--system", "")
        self.assertNotEqual(self.logits("raw", "--prompt-file", text)[0]["logits"],
                            self.logits("chat", "--chat-prompt-file", text)[0]["logits"])
        few = self.write("few", "Only a few words.")
        result = self.bad(1, r"few gives \d+ tokens, but 200 are needed", *SHORT, "--prompt-file", few)
        self.assertEqual(result.stdout, b"")
        exact = re.search(rb"gives (\d+) tokens", run("--prompt-file", text).stderr).group(1).decode()
        last = ("--ctx-start", exact, "--ctx-max", exact, "-n", "2", "--prompt-file", text)
        self.good(*last)
        self.bad(1, f"{int(exact) + 2} are needed", *last, "--teacher-forced-decode")

    def test_failures(self):
        self.bad(1, "no-such-file", *SHORT, "--prompt-file", "/no-such-file")
        self.bad(1, "no-such-file", *SHORT, "--chat-prompt-file", "/no-such-file")
        self.bad(1, "no-such-folder", *SHORT, "--csv", "/no-such-folder/rows.csv")
        self.bad(1, "no-such-folder", *SHORT, "--json", "/no-such-folder/run.json")
        self.bad(1, "no-such-folder", *SHORT, "--dump-frontier-logits-dir", "/no-such-folder")
        self.bad(1, "not a folder", *SHORT, "--dump-frontier-logits-dir", self.write("file", ""))
        self.bad(1, "no-such-model", "-m", "/no-such-model", *SHORT)
        self.bad(1, "context 300000101 is outside", "--ctx-start", "100", "--ctx-max", "100", "--ctx-alloc", "300000101")

    def test_rows_before_a_failure_stay(self):
        os.mkdir(self.path("dump"))
        os.mkdir(self.path("dump/frontier_000192.logits.json"))  # in the way of the third dump
        result = self.bad(1, "frontier_000192", *SHORT, "--dump-frontier-logits-dir", self.path("dump"),
                          "--csv", self.path("rows.csv"), "--json", self.path("run.json"))
        self.assertEqual(result.stdout, b"")
        self.assertEqual([row[0] for row in rows_of(self.read("rows.csv"))], ["64", "128"])
        report = json.loads(self.read("run.json"))
        self.assertEqual((report["complete"], len(report["rows"])), (False, 2))

    def test_ctrl_c(self):
        process = start("--ctx-start", "32", "--ctx-max", "100000", "--step-incr", "32", "-n", "4",
                        "--json", self.path("run.json"))
        try:
            lines = [process.stdout.readline() for _ in range(3)]
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()  # no effect on one that has ended
        self.assertEqual(process.returncode, 130, err)
        self.assertEqual(lines[0].decode().strip(), HEADER)
        rows = rows_of((b"".join(lines) + out).decode())
        self.assertTrue(all(len(row) == 6 for row in rows))
        report = json.loads(self.read("run.json"))
        self.assertEqual((report["complete"], len(report["rows"])), (False, len(rows)))

    def plot(self, *arguments):
        return subprocess.run([PLOT_PROGRAM, *arguments], capture_output=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)

    def test_charts(self):
        self.good(*SHORT, "--csv", self.path("m7_fast.csv"), "--describe", "--bandwidth")
        result = self.plot(self.path("m7_fast.csv"))
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, b"", b""))
        chart = xml.dom.minidom.parse(self.path("m7_fast_ts.svg"))
        self.assertEqual(chart.getElementsByTagName("text")[0].firstChild.data, "M7 Fast t/s")
        lines = [line.getAttribute("points").split() for line in chart.getElementsByTagName("polyline")]
        self.assertEqual([len(points) for points in lines], [4, 4])

        self.write("b.csv", self.read("m7_fast.csv"))
        result = self.plot(self.path("m7_fast.csv"), self.path("b.csv"), "-o", self.path("both.svg"), "--title", "a<b",
                           "--width", "1200", "--height", "600")
        self.assertEqual(result.returncode, 0, result.stderr)
        chart = xml.dom.minidom.parse(self.path("both.svg"))
        self.assertEqual(chart.documentElement.getAttribute("width"), "1200")
        texts = [text.firstChild.data for text in chart.getElementsByTagName("text")]
        self.assertEqual((texts[0], texts[-2:]), ("a<b", ["m7_fast", "b"]))
        self.assertEqual(len(chart.getElementsByTagName("polyline")), 4)

    def test_charts_that_cannot_be_drawn(self):
        few = self.write("few.csv", HEADER + "\n1,1,1.00,1,1.00,1\n")
        for status, pattern, arguments in (
                (1, "few.csv has 1 row", (few,)), (1, "no-such-file", ("/no-such-file",)),
                (1, "lacks the columns", (self.write("other.csv", "a,b\n1,2\n"),)),
                (2, "name a CSV", ()), (2, "with -o", (few, few)), (2, "unknown option", ("--color", few)),
                (2, "whole number", (few, "--width", "x"))):
            result = self.plot(*arguments)
            self.assertEqual((result.returncode, result.stdout), (status, b""), arguments)
            self.assertRegex(result.stderr.decode(), f"^ds4-bench-plot: .*{pattern}")
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["few.csv", "other.csv"])
        self.assertIn(b"--title", self.plot("--help").stdout)

    def test_usage(self):
        for arguments in (("--ctx-start", "9", "--ctx-max", "8"), ("--step-mul", "0.5"), ("--step-incr", "0"),
                          ("--ctx-max", "2147483600"), ("--ctx-max", "4096", "--ctx-alloc", "4224"), ("-n", "-1"),
                          ("--prompt-file", "a", "--chat-prompt-file", "b"), ("--power", "50"), ("--csv",), ("stray",)):
            result = self.bad(2, "usage: ds4-bench", *arguments)
            self.assertEqual(result.stdout, b"")
        for arguments in (("--role", "worker"), ("--role", "coordinator"), ("--listen", "0.0.0.0:1"),
                          ("--ssd-streaming",), ("--ssd-streaming-cache-experts", "5")):
            result = self.bad(2, "^ds4-bench: this build [^\n]*\n$", *arguments)
            self.assertEqual(result.stdout, b"")

    def test_help_and_version(self):
        self.assertIn(b"--step-mul", run("--help", model=False).stdout)
        self.assertIn(b"--prefill-chunk", run("-h", "runtime", model=False).stdout)
        self.assertRegex(run("--version", model=False).stdout, rb"^ds4-bench \d+\.\d+\.\d+\n$")


if __name__ == "__main__":
    main()
