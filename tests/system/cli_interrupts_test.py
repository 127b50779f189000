#!/usr/bin/env python3
"""Ctrl+C outside of a conversation: while waiting, loading, evaluating the prompt, and answering."""
import fcntl
import os
import signal
import subprocess
import tempfile
import time
import unittest

from cli_support import ENDLESS, LONG_TEXT, MODEL, PROGRAM, Terminal, main, start, wait_for_line


def has_handler(process, number):
    with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
        caught = next(line for line in status if line.startswith("SigCgt:"))
    return int(caught.split()[1], 16) >> (number - 1) & 1 == 1


class Interrupts(unittest.TestCase):
    def finish(self, process, expected=130):
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()  # no effect on one that has ended
        self.assertEqual(process.returncode, expected, err)
        return out, err

    def test_waiting_for_standard_input(self):
        process = subprocess.Popen([PROGRAM, "-m", MODEL, "-p", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        self.finish(process)

    def test_any_time_from_the_start(self):
        for delay_ms in (15, 20, 25, 30, 40, 50, 70, 100, 150):
            process = start("--nothink", "--warm-weights", "-p", LONG_TEXT)
            time.sleep(delay_ms / 1000)
            while delay_ms >= 50 and not has_handler(process, signal.SIGINT):  # a busy machine takes its time
                time.sleep(0.005)
            handled = has_handler(process, signal.SIGINT)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            # In its first milliseconds a process has no handler yet.
            self.assertIn(process.returncode, (130,) if handled else (130, -signal.SIGINT), err)
            self.assertEqual(out, b"")

    def test_prompt_evaluation(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(LONG_TEXT * 20)  # minutes of work
            file.flush()
            process = start("--nothink", "-c", "1000000", "--prompt-file", file.name)
            wait_for_line(process.stderr, rb"context 1000000")
        time.sleep(0.3)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, _ = self.finish(process)
        self.assertEqual(out, b"")
        self.assertLess(time.monotonic() - begin, 20)

    def test_answering_keeps_what_was_said(self):
        process = start(*ENDLESS, "-p", "Tell me a story.")
        first = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        out, err = self.finish(process)
        self.assertTrue((first + out).endswith(b"\n"))
        self.assertNotIn(b"generation", err)

    def test_a_second_one_leaves_at_once(self):
        if not hasattr(fcntl, "F_SETPIPE_SZ"):
            self.skipTest("the size of a pipe cannot be set")
        # Standard output is a full pipe that nobody reads: the program hangs in its first write.
        reader, writer = os.pipe()
        os.write(writer, bytes(fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)))
        process = subprocess.Popen([PROGRAM, "-m", MODEL, *ENDLESS, "-p", "Tell me a story."],
                                   stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        wait_for_line(process.stderr, rb"context 32768")
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        try:
            self.assertEqual(process.wait(timeout=10), 130)
        finally:
            process.kill()
            process.communicate()
            os.close(reader)

    def test_on_a_terminal(self):
        terminal = Terminal(*ENDLESS, "-p", "Tell me a story.")
        terminal.expect(r"context 32768[^\n]*\n.*\w")
        terminal.send("\x03")
        self.assertEqual(terminal.close(), 130)
        self.assertTrue(terminal.output.endswith("\n"))


if __name__ == "__main__":
    main()
