#!/usr/bin/env python3
"""`ds4-quantize` on bad days: killed and continued, damaged sources, full disks. Its results must be the same or absent."""
import os
import signal
import struct
import subprocess
import sys
import time
import unittest

from quantize_support import DS4, MODEL, QUANTIZE, TIMEOUT_S, Gguf, QuantizeTest

DRAFTER = os.path.join(os.path.dirname(MODEL), "nano-mtp.gguf")


class Quantize(QuantizeTest):
    def start(self, *arguments):
        return subprocess.Popen([QUANTIZE, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def stop_at(self, running, path, size, number):
        """Sends the signal when the file has grown to `size`; False if the program was faster."""
        while running.poll() is None and not (os.path.exists(path) and os.path.getsize(path) >= size):
            time.sleep(0.002)
        running.send_signal(number)
        running.communicate(timeout=TIMEOUT_S)
        return running.returncode == (-number if number == signal.SIGKILL else 128 + number)

    def test_killed_anywhere_and_continued_it_is_the_same_file(self):
        expected = self.path("expected.gguf")
        self.good("--gguf", MODEL, "--recipe", "q2", "--resume", "-o", expected)
        whole, killed = os.path.getsize(expected), 0
        for share in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9):
            out = self.path(f"out{share}.gguf")
            running = self.start("--gguf", MODEL, "--recipe", "q2", "--resume", "-o", out)
            killed += self.stop_at(running, out + ".tmp", share * whole, signal.SIGKILL)
            if not os.path.exists(out):
                self.assertEqual([n for n in self.names() if n.startswith(f"out{share}") and n != os.path.basename(out) + ".tmp"], [])
            self.good("--gguf", MODEL, "--recipe", "q2", "--resume", "--overwrite", "-o", out)
            self.assertEqual(self.read(os.path.basename(out)), self.read("expected.gguf"), share)
            os.remove(out)
        self.assertGreaterEqual(killed, 2, "the program was always faster than the test")

    def test_signals_leave_nothing(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            out = self.path("out.gguf")
            running = self.start("--gguf", MODEL, "--recipe", "q2", "-o", out)
            if self.stop_at(running, out + ".tmp", 1_000_000, number):
                self.assertEqual(self.names(), [])

    def test_a_cut_source_is_refused(self):
        with open(MODEL, "rb") as file:
            content = file.read()
        first = min(begin for _, _, begin, _ in Gguf(MODEL).tensors.values())
        for length in (0, 3, 4, 20, 100, first // 2, first - 1, first, first + 5000, len(content) // 2, len(content) - 40):
            cut = self.write("cut.gguf", content[:length])
            said = self.bad(1, "^ds4-quantize: .*cut.gguf", "--gguf", cut, "--recipe", "q4", "-o", self.path("out.gguf"))
            self.assertEqual(said.count("\n"), 1)
            self.bad(1, "cut.gguf", "splice", cut, MODEL, self.path("out.gguf"), "--layers", "1")
            self.bad(1, "cut.gguf", "splice", MODEL, cut, self.path("out.gguf"), "--layers", "1")
            self.assertEqual(self.names(), ["cut.gguf"])

    def damaged(self, name, offset, value, source=MODEL):
        """A copy of the model with other bytes in a tensor."""
        gguf = Gguf(source)
        at = gguf.tensors[name][2] + offset
        return self.write("damaged.gguf", gguf.bytes[:at] + value + gguf.bytes[at + len(value):])

    def test_weights_that_are_no_numbers_are_named(self):
        f32, f16 = struct.pack("<f", float("nan")), b"\x00\x7c"
        expert = "blk.3.ffn_down_exps.weight"
        row = Gguf(MODEL).tensors[expert][1][0] // 32 * 34
        for name, offset, value, where in (("blk.2.attn_norm.weight", 8, f32, "row 0: column 2"),
                                           ("token_embd.weight", 512 * 3 + 2, f16, "row 3: column 1"),
                                           (expert, 5 * row, f16, "row 5")):
            for recipe in ("q2", "q8", "f32"):
                path = self.damaged(name, offset, value)
                self.bad(1, f"tensor {name}, {where}", "--gguf", path, "--recipe", recipe, "-o", self.path("out.gguf"))
                self.assertEqual(self.names(), ["damaged.gguf"])
        path = self.damaged("mtp.0.enorm.weight", 0, f32, DRAFTER)
        self.bad(1, "tensor mtp.0.enorm.weight, row 0", "--gguf", path, "--recipe", "q4", "-o", self.path("out.gguf"))

    def test_tables_that_name_no_expert_are_refused(self):
        path = self.damaged("blk.0.ffn_gate_tid2eid.weight", 4, struct.pack("<i", 8))
        self.bad(1, "blk.0.ffn_gate_tid2eid.weight names expert 8", "--gguf", path, "--recipe", "q4", "-o", self.path("out.gguf"))

    def test_missing_tensors_are_named(self):
        with open(MODEL, "rb") as file:
            content = file.read()
        for name in ("blk.4.attn_kv.weight", "output_norm.weight", "blk.1.ffn_up_exps.weight"):
            other = name[:-6] + "wEight"
            path = self.write("missing.gguf", content.replace(name.encode(), other.encode()))
            self.bad(1, f"tensor {name} is missing", "--gguf", path, "--recipe", "q4", "-o", self.path("out.gguf"))
            self.bad(1, f"tensor {name} is missing", "splice", MODEL, path, self.path("out.gguf"), "--layers", "1")

    def test_a_file_that_cannot_grow(self):
        q4 = self.make("q4")
        for arguments in (("--gguf", MODEL, "--recipe", "q8", "-o"), ("splice", MODEL, q4, "--layers", "1", "-o")):
            for largest in (1, 4096, 3_000_000):
                self.bad(1, "out.gguf.tmp: cannot be written: File too large", *arguments, self.path("out.gguf"),
                         largest_file=largest)
                self.assertEqual(self.names(), ["q4.gguf"])

    def test_a_disk_without_room_is_said_before_anything_is_written(self):
        disk = self.path("disk")
        os.mkdir(disk)
        inside = 'mount -t tmpfs -o size=4m none "$1" || exit 77; shift; "$@"; status=$?; ls "$0"; exit $status'
        result = subprocess.run(["unshare", "-m", "sh", "-c", inside, disk, disk, QUANTIZE, "--gguf", MODEL, "--recipe", "q4",
                                 "-o", os.path.join(disk, "out.gguf")], capture_output=True, text=True, timeout=TIMEOUT_S)
        if result.returncode == 77 or "unshare" in result.stderr:
            self.skipTest("this machine lets nobody mount a small disk: " + result.stderr.strip())
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, r"out.gguf: 18\d{6} more bytes are needed on its disk, but \d+ are free")
        self.assertEqual(result.stdout, "", "nothing is there")

    def test_the_drafter_made_again_still_drafts(self):
        drafter = self.path("drafter.gguf")
        self.good("--gguf", DRAFTER, "--recipe", "q4", "-o", drafter)
        texts = [subprocess.run([DS4, "-m", MODEL, "--cpu", "--temp", "0", "--nothink", "-n", "24", "-p", "Count from 4 to 11.",
                                 *more], capture_output=True, text=True, timeout=TIMEOUT_S) for more in ([], ["--mtp", drafter])]
        self.assertEqual([t.returncode for t in texts], [0, 0], texts[1].stderr)
        self.assertEqual(texts[0].stdout, texts[1].stdout)
        self.assertIn("drafts accepted", texts[1].stderr)

    def test_a_spliced_model_runs(self):
        q2, q4 = self.make("q2"), self.make("q4")
        self.good("splice", q2, q4, "--layers", "4-5", self.path("mixed.gguf"))
        result = subprocess.run([DS4, "-m", self.path("mixed.gguf"), "--cpu", "--temp", "0", "--nothink", "-n", "12", "-p",
                                 "What is the capital of Japan?"], capture_output=True, text=True, timeout=TIMEOUT_S)
        self.assertEqual((result.returncode, result.stdout.strip()), (0, "The capital of Japan is Tokyo."), result.stderr)


if __name__ == "__main__":
    if not hasattr(os, "fork"):
        sys.exit(77)
    unittest.main()
