#!/usr/bin/env python3
"""Conversations in files: --session, /save and /load."""
import os
import re
import tempfile
import unittest

from cli_support import ENDLESS, Terminal, main, run, start

PROMPT = r"ds4> "
GREEDY = ("--temp", "0", "--nothink")
NUMBER = "My lucky number is 412."
QUESTION = "What is my lucky number?"
ANSWER = b"Your lucky number is 412"


class Sessions(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.file = os.path.join(folder.name, "talk.session")

    def turn(self, message, *arguments):
        result = run(*GREEDY, *arguments, "--session", self.file, "-p", message)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def open(self, *arguments):
        terminal = Terminal("--temp", "0", "--nothink", *arguments)
        self.addCleanup(terminal.kill)
        terminal.expect(PROMPT)
        return terminal

    def say(self, terminal, message, answer):
        terminal.send(message + "\r")
        terminal.expect(answer)
        terminal.expect(PROMPT)

    def test_turns_of_several_runs(self):
        first = self.turn(NUMBER)
        self.assertEqual(os.stat(self.file).st_mode & 0o777, 0o600)
        second = self.turn(QUESTION)
        self.assertIn(ANSWER, second.stdout)
        self.assertRegex(second.stderr, rb"a conversation of \d+ tokens")
        self.assertNotIn(b"evaluated again", second.stderr)
        self.assertEqual(os.listdir(self.folder), ["talk.session"])

    def test_continued_on_a_terminal_and_back(self):
        self.turn(NUMBER)
        terminal = self.open("--session", self.file)
        self.say(terminal, QUESTION, "Your lucky number is 412")
        terminal.kill()  # what was said is in the file
        self.assertIn(ANSWER, self.turn(QUESTION).stdout)

    def test_save_and_load(self):
        terminal = self.open()
        self.say(terminal, "/save " + self.file, "there is no conversation to save yet")
        self.say(terminal, "/save", "needs the name of a file")
        self.say(terminal, NUMBER, r"generation: ")
        self.say(terminal, "/save " + self.file, r"saved \d+ tokens")
        self.say(terminal, "/save /no/such/folder/x", r"cannot write /no/such/folder/x")
        self.say(terminal, "/load /no/such/file", r"/no/such/file")
        self.say(terminal, QUESTION, "Your lucky number is 412")
        terminal.send("/quit\r")
        self.assertEqual(terminal.close(), 0)
        terminal = self.open()
        self.say(terminal, "/load " + self.file, r"a conversation of \d+ tokens")
        self.say(terminal, QUESTION, "Your lucky number is 412")
        terminal.send("/quit\r")
        self.assertEqual(terminal.close(), 0)

    def test_names_that_begin_at_home(self):
        terminal = self.open()
        self.say(terminal, NUMBER, r"generation: ")
        self.say(terminal, "/save ~/a talk", r"saved \d+ tokens")
        self.assertTrue(os.path.exists(os.path.join(terminal.home, "a talk")))
        self.say(terminal, "/load ~/a talk", r"a conversation of \d+ tokens")
        self.say(terminal, "/read ~/none", terminal.home + "/none")
        letter = os.path.join(self.folder, "letter")
        with open(letter, "w") as file:
            file.write("Dear reader")
        self.say(terminal, "/save " + letter, "not replaced")
        with open(letter) as file:
            self.assertEqual(file.read(), "Dear reader")

    def test_same_text_as_one_conversation(self):
        terminal = self.open()
        self.say(terminal, NUMBER, r"generation: ")
        before = len(terminal.output)
        self.say(terminal, QUESTION, r"generation: ")
        live = terminal.output[before:]
        terminal.send("/quit\r")
        terminal.close()
        self.turn(NUMBER)
        answer = self.turn(QUESTION).stdout.decode().strip()
        self.assertIn(answer, re.sub(r"\s+", " ", live))

    def test_a_damaged_state_is_evaluated_again(self):
        self.turn(NUMBER)
        with open(self.file, "r+b") as file:
            file.seek(-1000, os.SEEK_END)
            byte = file.read(1)
            file.seek(-1000, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
        result = self.turn(QUESTION)
        self.assertIn(ANSWER, result.stdout)
        self.assertRegex(result.stderr, rb"talk.session: .*damaged.*evaluated again")

    def test_no_such_session_file(self):
        with open(self.file, "wb") as file:
            file.write(b"hello")
        result = run(*GREEDY, "--session", self.file, "-p", QUESTION)
        self.assertEqual((result.returncode, result.stdout), (1, b""))
        self.assertRegex(result.stderr, rb"talk.session is not a saved session")
        with open(self.file, "rb") as file:
            self.assertEqual(file.read(), b"hello")

    def test_an_unanswered_message_leaves_the_file(self):
        self.turn(NUMBER)
        with open(self.file, "rb") as file:
            before = file.read()
        result = run(*GREEDY, "--session", self.file, "--ctx", "40", "-p", "word " * 100)
        self.assertEqual(result.returncode, 1)
        with open(self.file, "rb") as file:
            self.assertEqual(file.read(), before)

    def test_killed_while_it_answers(self):
        self.turn(NUMBER)
        process = start(*ENDLESS, "--session", self.file, "-p", "Tell me a story.")
        process.stdout.read(20)
        process.kill()
        process.communicate()
        self.assertIn(ANSWER, self.turn(QUESTION).stdout)

    def test_a_full_context_is_kept(self):
        result = run(*ENDLESS, "--session", self.file, "--ctx", "64", "-sys", "", "-p", "Tell me a story.")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr, rb"the context of 64 tokens is full")
        longer = run(*GREEDY, "--session", self.file, "-sys", "", "-p", QUESTION)
        self.assertEqual(longer.returncode, 0, longer.stderr)
        self.assertRegex(longer.stderr, rb"a conversation of 63 tokens")

    def test_wrong_combinations(self):
        for wrong in (("--raw-prompt", "-p", "x"), ("--dump-logits", "/dev/null", "-p", "x")):
            result = run("--session", self.file, *wrong)
            self.assertEqual(result.returncode, 2)
            self.assertRegex(result.stderr, rb"--session goes on with a conversation")


if __name__ == "__main__":
    main()
