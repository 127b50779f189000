"""Running `ds4` from tests: plainly, and on a pseudo terminal whose screen can be looked at."""
import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unicodedata
import unittest

PROGRAM = os.environ.get("DS4_PROGRAM", "ds4")
MODEL = os.environ.get("DS4_MODEL", "models/nano/nano.gguf")
TIMEOUT_S = 120

# A prompt that takes long to evaluate (some ten thousand tokens) and fits the default context.
LONG_TEXT = "The quick brown fox jumps over the lazy dog. " * 1500

# An answer of more than 6,000 tokens. At this temperature a token's place among the random numbers hardly depends on
# the logits, and none of this seed's first 6,271 numbers is below 0.0012 or between 0.998 and 0.9996, where the tokens
# that end a reply have their places (ids 0, 1 and 4091 of 4096).
ENDLESS = ("--temp", "100", "--min-p", "0", "--seed", "4312972", "--nothink")


def run(*arguments, stdin=None, model=True, cwd=None, env=None, timeout=TIMEOUT_S):
    """Runs ds4 to its end; stdin None = nothing to read. Output is bytes."""
    command = [PROGRAM] + (["-m", MODEL] if model else []) + list(arguments)
    source = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run(command, capture_output=True, cwd=cwd, env=env, timeout=timeout, **source)


def start(*arguments, **options):
    return subprocess.Popen([PROGRAM, "-m", MODEL] + list(arguments), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def wait_for_line(stream, pattern):
    """Reads lines of a pipe until one matches."""
    while True:
        line = stream.readline()
        if not line:
            raise AssertionError(f"the program ended before {pattern!r}")
        if re.search(pattern, line):
            return line


def vocabulary_entry(text):
    """A string as it stands in the token list of a model file."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def tensor_bytes(data, first_tensor, wanted):
    """Where the data of a tensor begins in a model file."""
    position = data.index(vocabulary_entry(first_tensor))
    offset = None
    for _ in range(struct.unpack_from("<Q", data, 8)[0]):
        length = struct.unpack_from("<Q", data, position)[0]
        name = data[position + 8:position + 8 + length].decode()
        position += 8 + length
        position += 4 + 8 * struct.unpack_from("<I", data, position)[0]
        _, this_offset = struct.unpack_from("<IQ", data, position)
        position += 12
        if name == wanted:
            offset = this_offset
    return (position + 31) // 32 * 32 + offset


class Screen:
    """The part of a terminal that ds4 uses; anything else is an error."""

    SEQUENCE = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])")

    def __init__(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.cells = [[" "] * columns for _ in range(rows)]
        self.row = self.column = 0
        self.wrap_pending = False
        self.rest = ""

    def feed(self, text):
        text, self.rest = self.rest + text, ""
        i = 0
        while i < len(text):
            c = text[i]
            if c == "\x1b":
                match = self.SEQUENCE.match(text, i)
                if not match:
                    if len(text) - i > 20:
                        raise AssertionError(f"unknown sequence {text[i:i + 20]!r}")
                    self.rest = text[i:]
                    return
                self.sequence(match.group(1), match.group(2))
                i = match.end()
                continue
            i += 1
            if c == "\r":
                self.column, self.wrap_pending = 0, False
            elif c == "\n":
                self.line_feed()
            elif c == "\b":
                self.column = max(0, self.column - 1)
            elif c >= " ":
                self.put(c)

    def put(self, c):
        if unicodedata.combining(c):
            column = self.column if self.wrap_pending else self.column - 1
            while column > 0 and self.cells[self.row][column] == "":
                column -= 1
            self.cells[self.row][column] += c
            return
        width = 2 if unicodedata.east_asian_width(c) in "WF" else 1
        if self.wrap_pending or self.column + width > self.columns:
            self.column, self.wrap_pending = 0, False
            self.line_feed()
        self.cells[self.row][self.column] = c
        if width == 2:
            self.cells[self.row][self.column + 1] = ""
        self.column += width
        if self.column >= self.columns:
            self.column, self.wrap_pending = self.columns - 1, True

    def line_feed(self):
        self.wrap_pending = False
        if self.row + 1 < self.rows:
            self.row += 1
        else:
            self.cells = self.cells[1:] + [[" "] * self.columns]

    def sequence(self, parameters, final):
        count = int(parameters) if parameters.isdigit() else 1
        if final in "mhl":
            return
        self.wrap_pending = False
        if final == "A":
            self.row = max(0, self.row - count)
        elif final == "C":
            self.column = min(self.columns - 1, self.column + count)
        elif final == "H":
            self.row = self.column = 0
        elif final == "K":
            self.cells[self.row][self.column:] = [" "] * (self.columns - self.column)
        elif final == "J":
            first = 0 if parameters == "2" else self.row + 1
            if parameters != "2":
                self.sequence("", "K")
            for row in range(first, self.rows):
                self.cells[row] = [" "] * self.columns
        else:
            raise AssertionError(f"unknown sequence ESC[{parameters}{final}")

    def lines(self):
        return ["".join(row).rstrip() for row in self.cells]


class Terminal:
    """ds4 as the foreground program of a pseudo terminal."""

    def __init__(self, *arguments, rows=24, columns=80, home=None, term="xterm", model=True, stdout=None):
        self.home = home or tempfile.mkdtemp(prefix="ds4-home-")
        self.output = ""
        self.seen = 0
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.screen = Screen(rows, columns)
        self.status = None
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.environ.update(HOME=self.home, TERM=term)
            if stdout is not None:
                os.dup2(os.open(stdout, os.O_WRONLY | os.O_CREAT, 0o600), 1)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execv(PROGRAM, [PROGRAM] + (["-m", MODEL] if model else []) + list(arguments))

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, text):
        data = text.encode() if isinstance(text, str) else text
        while data:
            readable, writable, _ = select.select([self.master], [self.master], [], TIMEOUT_S)
            if readable:
                self.pump(0)
            if writable:
                data = data[os.write(self.master, data[:1024]):]

    def pump(self, timeout):
        """Takes what the program wrote; False at its end or after `timeout` seconds of silence."""
        if not select.select([self.master], [], [], timeout)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the program is gone
            return False
        text = self.decoder.decode(data)
        self.output += text
        self.screen.feed(text)
        return bool(data)

    def expect(self, pattern, timeout=TIMEOUT_S):
        """Waits for a pattern after what was matched before; returns the match."""
        deadline = time.monotonic() + timeout
        while True:
            match = re.compile(pattern).search(self.output, self.seen)
            if match:
                self.seen = match.end()
                return match
            left = deadline - time.monotonic()
            if left <= 0 or not self.pump(left):
                if self.pump(0.1):
                    continue
                raise AssertionError(f"{pattern!r} did not come; output: {self.output[self.seen:][-2000:]!r}")

    def settle(self, quiet=0.15):
        while self.pump(quiet):
            pass

    def close(self, timeout=TIMEOUT_S):
        """Waits for the end of the program; returns its exit status."""
        deadline = time.monotonic() + timeout
        while self.status is None:
            self.pump(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the program did not end; output: {self.output[-2000:]!r}")
        while self.pump(0.2):  # the last bytes of a process that ended may still be on their way
            pass
        os.close(self.master)
        return self.status

    def kill(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.master)
            self.status = -9


def main():
    if not os.path.exists(MODEL):
        print(f"skipped: there is no model {MODEL}")
        sys.exit(77)
    unittest.main(verbosity=1)
