#!/usr/bin/env python3
"""The line editor, judged by what a terminal's screen shows."""
import random
import time
import unittest

from cli_support import Terminal, main


class LineEditing(unittest.TestCase):
    def open(self, rows=12, columns=30, **options):
        terminal = Terminal("--temp", "0", "--nothink", rows=rows, columns=columns, **options)
        self.addCleanup(terminal.kill)
        terminal.expect("ds4> ")
        terminal.settle()
        terminal.send("\x0c")  # Ctrl+L: begin with an empty screen
        terminal.settle()
        return terminal

    def type(self, terminal, keys):
        terminal.send(keys)
        terminal.pump(5)  # every key redraws
        terminal.settle()

    def check(self, terminal, lines, row, column):
        expected = ("\n".join(lines), row, column)
        deadline = time.monotonic() + 10
        while True:
            screen = terminal.screen
            shown = ("\n".join(screen.lines()).rstrip("\n"), screen.row, screen.column)
            if shown == expected or time.monotonic() > deadline:
                break
            terminal.pump(0.1)  # a busy machine is slow to draw
        self.assertEqual(shown, expected)

    def test_typing_and_moving(self):
        terminal = self.open()
        self.type(terminal, "hello world")
        self.check(terminal, ["ds4> hello world"], 0, 16)
        self.type(terminal, "\x1b[D" * 5 + "big ")
        self.check(terminal, ["ds4> hello big world"], 0, 15)
        self.type(terminal, "\x01\x1b[3~H\x05!")
        self.check(terminal, ["ds4> Hello big world!"], 0, 21)
        self.type(terminal, "\x1b[1;5D\x0b")
        self.check(terminal, ["ds4> Hello big"], 0, 15)
        self.type(terminal, "\x17\x19\x19")
        self.check(terminal, ["ds4> Hello big big"], 0, 19)
        self.type(terminal, "\x15")
        self.check(terminal, ["ds4>"], 0, 5)

    def test_wide_and_combining_characters(self):
        terminal = self.open()
        self.type(terminal, "中文e\u0301x")
        self.check(terminal, ["ds4> 中文e\u0301x"], 0, 11)
        self.type(terminal, "\x1b[D\x7f")
        self.check(terminal, ["ds4> 中文x"], 0, 9)
        self.type(terminal, "\x7f")
        self.check(terminal, ["ds4> 中x"], 0, 7)

    def test_wrapping(self):
        terminal = self.open(columns=10)
        self.type(terminal, "abcde")
        self.check(terminal, ["ds4> abcde"], 1, 0)
        self.type(terminal, "f")
        self.check(terminal, ["ds4> abcde", "f"], 1, 1)
        self.type(terminal, "\x01")
        self.check(terminal, ["ds4> abcde", "f"], 0, 5)
        self.type(terminal, "\x1b[3~")
        self.check(terminal, ["ds4> bcdef"], 0, 5)
        self.type(terminal, "\x05中文中文中")
        self.check(terminal, ["ds4> bcdef", "中文中文中"], 2, 0)

    def test_several_lines(self):
        terminal = self.open()
        self.type(terminal, "one\x1b\rtwo\\\rthree")
        self.check(terminal, ["ds4> one", "     two", "     three"], 2, 10)
        self.type(terminal, "\x1b[A\x1b[A")
        self.check(terminal, ["ds4> one", "     two", "     three"], 0, 8)
        self.type(terminal, "\x03")
        self.check(terminal, ["ds4> one", "     two", "     three", "ds4>"], 3, 5)

    def test_more_rows_than_the_screen(self):
        terminal = self.open(rows=5, columns=20)
        self.type(terminal, "\x1b[200~" + "\n".join(f"line {i}" for i in range(40)) + "\x1b[201~")
        self.check(terminal, [f"     line {i}" for i in range(35, 40)], 4, 12)
        self.type(terminal, "\x1b[A" * 10)
        self.check(terminal, [f"     line {i}" for i in range(29, 34)], 0, 12)

    def test_resize(self):
        terminal = self.open(columns=30)
        self.type(terminal, "abcdefghijklmnopqrstuvwxyz")
        terminal.screen.__init__(12, 40)
        terminal.resize(12, 40)
        terminal.settle()
        self.assertIn("ds4> abcdefghijklmnopqrstuvwxyz", terminal.screen.lines())

    def test_reverse_search(self):
        terminal = self.open(columns=60)
        for message in ("/nothink", "/think", "/help"):
            terminal.send(message + "\r")
            terminal.settle(0.3)
        self.type(terminal, "\x0c\x12think")
        self.check(terminal, ['(search "think") /think'], 0, 18)
        self.type(terminal, "\x12")
        self.check(terminal, ['(search "think") /nothink'], 0, 20)
        self.type(terminal, "\x1b")
        self.check(terminal, ["ds4>"], 0, 5)
        self.type(terminal, "\x12noth\x05!")
        self.check(terminal, ["ds4> /nothink!"], 0, 14)

    def test_random_edits_show_what_is_in_the_buffer(self):
        """After any keys, the screen must equal one drawn from nothing (Ctrl+L)."""
        choices = ["a", "bc ", "中", "e\u0301", "\x1b[D", "\x1b[C", "\x7f", "\x1b[3~", "\x01", "\x05", "\x1b\r",
                   "\x1bb", "\x1bf", "\x0b", "\x19", "\x1b[A", "\x1b[B", "word word word"]
        for seed in range(6):
            generator = random.Random(seed)
            terminal = self.open(rows=8, columns=generator.choice([11, 17, 24]))
            for _ in range(12):
                self.type(terminal, "".join(generator.choice(choices) for _ in range(5)))
                incremental = (terminal.screen.lines(), terminal.screen.row, terminal.screen.column)
                cursor_line = incremental[0][incremental[1]]
                self.type(terminal, "\x0c")
                fresh = (terminal.screen.lines(), terminal.screen.row, terminal.screen.column)
                self.assertEqual(fresh[2], incremental[2], seed)
                self.assertEqual(fresh[0][fresh[1]], cursor_line, seed)
                shown = [line for line in fresh[0] if line]
                if len(shown) < 8:
                    self.assertEqual([line for line in incremental[0] if line], shown, seed)
            terminal.kill()


if __name__ == "__main__":
    main()
