#!/usr/bin/env python3
"""The split screen of `ds4-eval` in a terminal of tmux: what it shows, its keys, and how it leaves the terminal."""
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from cli_support import ENDLESS, MODEL, PROGRAM, main

TIMEOUT_S = 60


class Screen(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.starts = 0

    def tmux(self, *arguments):
        return subprocess.run(["tmux", "-S", self.socket, "-f", "/dev/null", *arguments], check=True,
                              capture_output=True, timeout=TIMEOUT_S).stdout.decode()

    def start(self, *arguments, rows=30, columns=120):
        command = [PROGRAM, "-m", MODEL, "--cpu", "--suite", "nano", "--seed", "1",
                   "--trace", os.path.join(self.folder, "trace"), *arguments]
        self.starts += 1
        self.socket = os.path.join(self.folder, f"tmux{self.starts}")
        self.addCleanup(subprocess.run, ["tmux", "-S", self.socket, "kill-server"], capture_output=True)
        # The shell stays, so that the screen after the program can be looked at.
        script = (f"trap : INT; stty -a > {self.folder}/before; {shlex.join(command)} 2> {self.folder}/err; status=$?; "
                  f"stty -a > {self.folder}/after; echo status=$status; exec sleep 600")
        self.tmux("new-session", "-d", "-x", str(columns), "-y", str(rows), f"sh -c {shlex.quote(script)}")

    def screen(self):
        return self.tmux("capture-pane", "-p").split("\n")

    def wait(self, condition, what):
        """Waits until the screen meets a condition; returns it."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            lines = self.screen()
            if condition(lines):
                return lines
            if time.monotonic() > deadline:
                self.fail(f"{what} did not come; the screen:\n" + "\n".join(lines))
            time.sleep(0.05)

    def wait_for(self, text):
        return self.wait(lambda lines: any(text in line for line in lines), text)

    def keys(self, *names):
        for name in names:
            self.tmux("send-keys", name)

    def file(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as file:
            return file.read()

    def test_layout_pause_and_report(self):
        self.start("--case-sequence", "1,2,40,19", "--pause-ms", "1500")
        lines = self.wait_for("1 PASS Nano: 47 + 85")
        self.assertRegex(lines[0], r"^ds4-eval  \(p\)ause \(q\)uit  00h:00m +\| Speed \d+\.\d\d t/s  \w+ \d+/")
        self.assertRegex(lines[1], r"^score \d/4  failed 0")
        self.assertTrue(all(line[60] == "|" for line in lines[:29]), lines)
        self.assertTrue(all(len(line) < 120 for line in lines), "the last column is written")
        self.keys("p")
        self.wait_for("PAUSED")
        stopped = self.screen()
        time.sleep(1.5)
        self.assertEqual(self.screen(), stopped)
        self.keys("p")
        # The report comes on the ordinary screen.
        lines = self.wait_for("status=1")
        self.assertTrue(any(line.startswith("ds4-eval: 3/4 passed, 1 failed, runtime") for line in lines), lines)
        self.assertTrue(any(line.startswith("  3 FAILED") for line in lines), lines)
        self.assertEqual(self.file("before"), self.file("after"), "the settings of the terminal")

    def test_selection_and_quit(self):
        self.start("--pause-ms", "1500")
        self.wait_for("1 PASS")
        self.keys("p")
        self.wait_for("PAUSED")
        self.keys("Down", "Down", "Down", "Down", "Up")
        self.wait_for("> 4 PEND")
        self.keys("Enter")  # also goes on
        self.wait_for("> 4 PASS")
        lines = self.wait(lambda screen: any("> 5 PASS" in line for line in screen), "the case after the chosen one")
        self.assertTrue(any(" 2 PEND" in line for line in lines), lines)
        self.keys("q")
        self.wait_for("status=0")
        self.assertEqual(self.file("before"), self.file("after"))

    def test_leaving_a_case_that_runs(self):
        self.start(*ENDLESS, "-n", "200000", "--case-sequence", "1,2,3")
        self.wait_for("1 RUN")
        self.keys("Down", "Down", "Enter")
        self.wait_for("3 RUN")
        self.wait_for(" 1 PEND")
        self.keys("q")
        lines = self.wait_for("status=0")
        self.assertTrue(any(line.startswith("  3 STOPPED") for line in lines), lines)
        trace = self.file("trace")
        self.assertIn("status: SWITCHED", trace)
        self.assertIn("status: STOPPED", trace)

    def test_signals_give_the_terminal_back(self):
        for signal, status in (("INT", 130), ("TERM", 143)):
            with self.subTest(signal):
                self.start("--pause-ms", "60000")
                self.wait_for("1 PASS")
                if signal == "INT":
                    self.keys("C-c")
                else:
                    pid = self.tmux("display-message", "-p", "#{pane_pid}").strip()
                    child = subprocess.run(["ps", "-o", "pid=", "--ppid", pid], capture_output=True, check=True)
                    os.kill(int(child.stdout.split()[0]), 15)
                lines = self.wait_for(f"status={status}")
                self.assertFalse(any("(p)ause" in line for line in lines), lines)
                self.assertEqual(self.file("before"), self.file("after"))
                self.assertEqual(self.tmux("display-message", "-p", "#{cursor_flag}").strip(), "1")

    def test_follows_the_size(self):
        self.start("--pause-ms", "60000")
        self.wait_for("1 PASS")
        self.tmux("resize-window", "-x", "100", "-y", "20")
        self.wait(lambda lines: all(line[50:51] == "|" for line in lines[:20]), "the smaller screen")

    def test_small_terminals_get_text(self):
        self.start("--questions", "1", columns=80)
        self.wait_for("status=0")
        self.assertTrue(any("PASSED got 132 expected 132" in line for line in self.screen()))


if __name__ == "__main__":
    if shutil.which("tmux") is None:
        print("skipped: there is no tmux")
        sys.exit(77)
    main()
