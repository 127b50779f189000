#!/usr/bin/env python3
"""The conversation on a terminal: commands, memory, interrupts, history."""
import os
import pty
import stat
import tempfile
import time
import unittest

from cli_support import ENDLESS, LONG_TEXT, MODEL, PROGRAM, Terminal, main

PROMPT = r"ds4> "
SPEED = r"generation: [\d.]+ t/s"


class Conversation(unittest.TestCase):
    def open(self, *arguments, **options):
        terminal = Terminal("--temp", "0", *arguments, **options)
        self.addCleanup(terminal.kill)
        terminal.expect(PROMPT)
        return terminal

    def ask(self, terminal, message, answer):
        terminal.send(message + "\r")
        terminal.expect(answer)
        terminal.expect(SPEED)
        terminal.expect(PROMPT)

    def leave(self, terminal, keys="\x04"):
        terminal.send(keys)
        self.assertEqual(terminal.close(), 0)

    def test_commands_are_shown_at_the_start(self):
        terminal = Terminal("--nothink")
        terminal.expect(r"(?s)/help.*/think.*/nothink.*/ctx N.*/read FILE.*/quit")
        terminal.expect(PROMPT)
        self.leave(terminal)

    def test_remembers_the_turns_before(self):
        terminal = self.open("--nothink")
        self.ask(terminal, "My lucky number is 412.", r"remember|Noted|412|ok")
        self.ask(terminal, "What is my lucky number?", r"Your lucky number is 412")
        self.leave(terminal, "/quit\r")

    def test_second_turn_evaluates_only_what_is_new(self):
        terminal = self.open("--nothink")
        self.ask(terminal, "What is the capital of Japan?", "Tokyo")
        self.ask(terminal, "What is the capital of France?", "Paris")
        self.leave(terminal, "/exit\r")

    def test_modes(self):
        terminal = self.open()
        self.ask(terminal, "Calculate 12 + 13.", r"(?s)\x1b\[90m.*\x1b\[0m.*12 \+ 13 = 25")
        terminal.send("/nothink\r")
        terminal.expect(r"thinking: none")
        terminal.expect(PROMPT)
        before = len(terminal.output)
        self.ask(terminal, "Calculate 12 + 14.", r"12 \+ 14 = 26")
        self.assertNotIn("\x1b[90m", terminal.output[before:])
        terminal.send("/think-max\r")
        terminal.expect(r"thinking: max")
        terminal.expect(r"393216")
        terminal.expect(PROMPT)
        terminal.send("/think\r")
        terminal.expect(r"thinking: high")
        terminal.expect(PROMPT)
        self.leave(terminal)

    def test_context_can_be_changed(self):
        terminal = self.open("--nothink")
        self.ask(terminal, "My lucky number is 412.", r".")
        for wrong in ("/ctx 0", "/ctx", "/ctx x", "/ctx 10 20"):
            terminal.send(wrong + "\r")
            terminal.expect(r"/ctx needs a whole number")
            terminal.expect(PROMPT)
        terminal.send("/ctx 24\r")
        terminal.expect(r"context 24 tokens")
        terminal.expect(PROMPT)
        terminal.send("What is my lucky number?\r")
        terminal.expect(r"\x1b\[31mds4: [^\n]*24")
        terminal.expect(PROMPT)
        terminal.send("/ctx 4096\r")
        terminal.expect(r"context 4096 tokens")
        terminal.expect(PROMPT)
        self.ask(terminal, "What is my lucky number?", r"Your lucky number is 412")
        self.leave(terminal)

    def test_steer(self):
        terminal = Terminal("--temp", "0", "--nothink")
        terminal.expect("ds4> ")
        terminal.send("/steer 1\r")
        terminal.expect("there is no direction to steer by: start with --dir-steering-file")
        terminal.send("/quit\r")
        self.assertEqual(terminal.close(), 0)
        with tempfile.NamedTemporaryFile(suffix=".f32") as file:
            file.write(b"\0" * (6 * 256 * 4))
            file.flush()
            terminal = Terminal("--temp", "0", "--nothink", "--dir-steering-file", file.name)
            terminal.expect("steering by .*: feed-forward 1, attention 0")
            terminal.expect("ds4> ")
            terminal.send("/steer -2.5\r")
            terminal.expect("steering by .*: feed-forward -2.5, attention 0")
            terminal.send("/steer x\r")
            terminal.expect("/steer needs a number from -100 to 100, not 'x'")
            terminal.send("What is the capital of Japan?\r")
            terminal.expect("Tokyo")
            terminal.send("/quit\r")
            self.assertEqual(terminal.close(), 0)

    def test_steer_the_part_that_directions_were_made_from(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "a.f32"), "wb") as file:
                file.write(b"\0" * (6 * 256 * 4))
            with open(os.path.join(folder, "a.json"), "w", encoding="utf-8") as file:
                file.write('{"format": "ds4-directional-steering-v1", "component": "attn_out"}')
            terminal = Terminal("--temp", "0", "--dir-steering-file", os.path.join(folder, "a.f32"))
            terminal.expect("steering by .*: feed-forward 0, attention 1")
            terminal.expect("ds4> ")
            terminal.send("/steer -2.5\r")
            terminal.expect("steering by .*: feed-forward 0, attention -2.5")
            terminal.send("/quit\r")
            self.assertEqual(terminal.close(), 0)

    def test_read(self):
        terminal = self.open("--nothink")
        terminal.send("/read /no-such-file\r")
        terminal.expect(r"cannot open /no-such-file")
        terminal.expect(PROMPT)
        terminal.send("/read /\r")
        terminal.expect(r"cannot read /")
        terminal.expect(PROMPT)
        terminal.send("/read /dev/tty\r")
        terminal.settle(0.5)
        terminal.send("\x03")
        terminal.expect("reading /dev/tty was stopped|/dev/tty: Interrupted")
        terminal.expect(PROMPT)
        terminal.send("/read\r")
        terminal.expect(r"needs the name of a file")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("What is the capital of Japan?")
            file.flush()
            self.ask(terminal, f"/read {file.name}", "The capital of Japan is Tokyo")
        terminal.send("/nonsense\r")
        terminal.expect(r"unknown command /nonsense; /help")
        terminal.expect(PROMPT)
        terminal.send("/nothink What is the capital of Japan?\r")  # not dropped silently
        terminal.expect(r"/nothink takes no argument")
        terminal.expect(PROMPT)
        self.leave(terminal)

    def test_interrupted_answer_is_kept(self):
        terminal = self.open(*ENDLESS)
        terminal.send("Tell me a story.\r")
        terminal.expect(r"\?2004l[^\x00]*\w")
        terminal.send("\x03")
        terminal.expect(r"ds4: stopped")
        terminal.expect(PROMPT)
        self.leave(terminal)

    def test_interrupted_prompt_is_taken_back(self):
        terminal = self.open("--nothink")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(LONG_TEXT)
            file.flush()
            terminal.send(f"/read {file.name}\r")
            terminal.expect(r"processing \d+ input tokens")
            terminal.send("\x03")
            terminal.expect(r"the message was taken back")
            terminal.expect(PROMPT)
        self.ask(terminal, "What is the capital of Japan?", "The capital of Japan is Tokyo")
        self.leave(terminal)

    def test_interrupt_at_the_prompt_discards_the_line(self):
        terminal = self.open("--nothink")
        terminal.send("What is the capital of France?\x03")
        terminal.expect(PROMPT)
        self.ask(terminal, "What is the capital of Japan?", "Tokyo")
        self.assertNotIn("Paris", terminal.output)
        self.leave(terminal)

    def test_interrupt_while_loading(self):
        terminal = Terminal("--nothink", "--warm-weights")
        time.sleep(0.03)
        terminal.send("\x03")
        # Too early it is a signal without a handler; too late it discards an empty line.
        try:
            self.assertIn(terminal.close(timeout=2), (130, -2))
        except AssertionError:
            self.assertIn("ds4> ", terminal.output)

    def test_history(self):
        home = tempfile.mkdtemp(prefix="ds4-home-")
        terminal = self.open("--nothink", home=home)
        self.ask(terminal, "What is the capital of Japan?", "Tokyo")
        terminal.send("/think\r")
        terminal.expect("thinking: high")  # the prompt is also drawn before the message
        terminal.expect(PROMPT)
        self.leave(terminal)
        path = os.path.join(home, ".ds4_history")
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read(), "What is the capital of Japan?\n/think\n")
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        terminal = self.open("--nothink", home=home)
        terminal.send("\x1b[A\x1b[A\r")
        terminal.expect("The capital of Japan is Tokyo")
        terminal.expect(PROMPT)
        terminal.send("\x12capital\r")
        terminal.expect("The capital of Japan is Tokyo")
        terminal.expect(PROMPT)
        self.leave(terminal)

    def test_answers_alone_on_standard_output(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "answers")
            terminal = self.open("--nothink", stdout=path)
            terminal.send("What is the capital of Japan?\r")
            terminal.expect(SPEED)
            terminal.expect(PROMPT)
            self.leave(terminal)
            with open(path, encoding="utf-8") as file:
                self.assertEqual(file.read(), "The capital of Japan is Tokyo.\n")

    def test_full_disk_ends_the_conversation(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full here")
        terminal = self.open("--nothink", stdout="/dev/full")
        terminal.send("What is the capital of Japan?\r")
        self.assertEqual(terminal.close(), 1)
        self.assertIn("cannot write to standard output", terminal.output)

    def test_plain_reading_without_a_capable_terminal(self):
        terminal = self.open("--nothink", term="dumb")
        terminal.send("What is the capital of Japan?\n")
        terminal.expect("The capital of Japan is Tokyo")
        terminal.expect(PROMPT)
        self.assertNotIn("\x1b[?2004h", terminal.output)
        self.leave(terminal)

    def test_long_paste(self):
        terminal = self.open("--nothink")
        text = ("lorem ipsum è 中文 dolor\n" * 8000)[:190_000]
        begin = time.monotonic()
        terminal.send("\x1b[200~" + text + "\x1b[201~")
        terminal.settle()
        self.assertLess(time.monotonic() - begin, 10)
        begin = time.monotonic()
        terminal.send("x" * 50 + "\x7f" * 50)
        terminal.settle()
        self.assertLess(time.monotonic() - begin, 10)
        terminal.send("\r")
        terminal.expect(r"\x1b\[31mds4: [^\n]*32768")  # too long for the context; said, and survived
        terminal.expect(PROMPT)
        self.ask(terminal, "What is the capital of Japan?", "The capital of Japan is Tokyo")
        self.leave(terminal)

    def test_pasted_lines_are_one_message(self):
        terminal = self.open("--nothink")
        terminal.send("\x1b[200~My lucky number is 412.\nWhat is my lucky number?\x1b[201~")
        terminal.settle()
        self.assertNotIn("t/s", terminal.output)
        terminal.send("\r")
        terminal.expect(SPEED)
        terminal.expect(PROMPT)
        self.assertEqual(terminal.output.count("t/s, generation"), 1)
        self.leave(terminal)

    def test_terminal_settings_come_back(self):
        script = ("import os,subprocess,sys,termios\n"
                  "before=termios.tcgetattr(0)\n"
                  f"status=subprocess.call([{PROGRAM!r},'-m',{MODEL!r},'--nothink'])\n"
                  "print('SAME' if termios.tcgetattr(0)==before else 'CHANGED', status)\n")
        pid, master = pty.fork()
        if pid == 0:
            os.environ.update(TERM="xterm", HOME=tempfile.mkdtemp())
            os.execv("/usr/bin/env", ["env", "python3", "-c", script])
        output = b""
        sent = False
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:
                break
            if not data:
                break
            output += data
            if not sent and b"ds4> " in output:
                os.write(master, b"half a line\x15\x04")
                sent = True
        os.waitpid(pid, 0)
        os.close(master)
        self.assertIn(b"SAME 0", output)


if __name__ == "__main__":
    main()
