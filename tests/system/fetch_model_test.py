#!/usr/bin/env python3
"""`scripts/fetch-model` against a server on this machine: resuming, checksums, disk space, tokens, pieces, refusals."""
import hashlib
import http.server
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "fetch-model")
NAME = "DeepSeek-V4-Flash-IQ2XXS-w2Q2K-AProjQ8-SExpQ8-OutQ8-chat-v2-imatrix.gguf"
MTP = "DeepSeek-V4-Flash-MTP-Q4K-Q8_0-F32.gguf"
CONTENT = b"GGUF" + bytes((i * 7 + i // 251) % 256 for i in range(299_996))
TOKEN = "hf_" + "a" * 20 + "Z9"
REPO = "antirez/deepseek-v4-gguf"


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; the flags make it behave as servers do on bad days."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.requests = {}, []
        self.wants_token = None
        self.ranges = True
        self.linked = False  # a redirect to another address, as for large files on Hugging Face
        self.cuts = 0  # downloads to break off after a third of what was asked for
        self.slow = False
        self.pretended_bytes = None
        self.pretended_head = {}  # headers of the answer to HEAD
        self.unsatisfiable = None  # headers of the answer 416 to every request for a range
        self.tag = '"one"'
        self.status = None
        self.ended = threading.Event()  # ends downloads that are slow
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def refuse(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def answer(self, with_body):
        server = self.server
        server.requests.append((self.command, self.path, dict(self.headers)))
        prefix = f"/{REPO}/resolve/main/"
        stored = self.path.startswith("/store/")
        name = self.path[len("/store/"):] if stored else self.path[len(prefix):]
        if not stored and not self.path.startswith(prefix) or name not in server.files:
            return self.refuse(404)
        if server.status:
            return self.refuse(server.status)
        if server.wants_token and not stored and self.headers.get("Authorization") != f"Bearer {server.wants_token}":
            return self.refuse(401)
        content = server.files[name]
        if server.linked and not stored:
            self.send_response(302)
            self.send_header("Location", f"/store/{name}")
            self.send_header("X-Linked-Size", str(server.pretended_bytes or len(content)))
            self.send_header("X-Linked-ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if stored and not with_body:
            return self.refuse(403)
        if self.command == "HEAD" and server.pretended_head:
            self.send_response(200)
            for header, value in server.pretended_head.items():
                self.send_header(header, value)
            return self.end_headers()
        if server.unsatisfiable is not None and self.headers.get("Range"):
            self.send_response(416)
            for header, value in {"Content-Length": "0", **server.unsatisfiable}.items():
                self.send_header(header, value)
            return self.end_headers()
        begin = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and server.ranges:
            begin = int(asked.group(1))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[begin:]
        self.send_header("Content-Length", str(server.pretended_bytes or len(body)))
        self.send_header("ETag", server.tag)
        self.end_headers()
        if not with_body:
            return
        if server.slow and name != "SHA256SUMS":
            self.wfile.write(body[:len(body) // 3])
            self.wfile.flush()
            server.ended.wait(60)
            return
        if server.cuts > 0 and name != "SHA256SUMS":
            server.cuts -= 1
            body = body[:len(body) // 3]
            self.close_connection = True
        try:
            self.wfile.write(body)
        except OSError:
            pass


class FetchModel(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.dir, self.link = self.path("gguf"), self.path("ds4flash.gguf")
        self.server = Server()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.addCleanup(self.server.ended.set)
        self.server.files[NAME] = CONTENT

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def read(self, name):
        with open(os.path.join(self.dir, name), "rb") as file:
            return file.read()

    def names(self):
        return sorted(n for n in os.listdir(self.dir) if n != ".fetch-model.lock") if os.path.isdir(self.dir) else []

    def arguments(self, *arguments):
        return ["sh", SCRIPT, *arguments, "--endpoint", self.server.url, "--dir", self.dir, "--link", self.link]

    def environment(self, **more):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and k not in ("XDG_CACHE_HOME",)}
        return {**kept, "HOME": self.folder.name, **more}

    def fetch(self, *arguments, limit=None, ends=False, **environment):
        command = ["sh", SCRIPT, *arguments] if ends else self.arguments(*arguments)
        if limit:
            command = ["sh", "-c", f'ulimit -f {limit}; exec "$@"', "sh", *command]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=self.folder.name,
                                env=self.environment(**environment))
        self.assertEqual(result.stdout, "")
        self.assertNotIn(TOKEN, result.stderr)
        return result

    def good(self, *arguments, **environment):
        result = self.fetch(*arguments, **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stderr

    def bad(self, status, pattern, *arguments, **environment):
        result = self.fetch(*arguments, **environment)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertRegex(result.stderr, pattern)
        return result.stderr

    def put_sums(self, *names):
        self.server.files["SHA256SUMS"] = "".join(
            f"{hashlib.sha256(self.server.files[n]).hexdigest()}  {n}\n" for n in names).encode()

    def test_a_model_is_fetched_checked_and_linked(self):
        self.put_sums(NAME)
        said = self.good("q2-imatrix")
        self.assertIn("checking SHA-256", said)
        self.assertEqual(self.names(), [NAME])
        self.assertEqual(self.read(NAME), CONTENT)
        self.assertEqual(os.readlink(self.link), os.path.join(os.path.realpath(self.dir), NAME))
        requests = len(self.server.requests)
        self.assertIn("is there already", self.good("q2-imatrix"))
        self.assertFalse([r for r in self.server.requests[requests:] if r[0] == "GET" and r[1].endswith(".gguf")])

    def test_the_drafter_is_not_linked(self):
        self.server.files[MTP] = CONTENT[:1000]
        self.assertIn("only the size was checked", self.good("mtp"))
        self.assertFalse(os.path.lexists(self.link))

    def test_a_file_of_its_own_is_not_replaced_by_a_link(self):
        with open(self.link, "w") as file:
            file.write("mine")
        self.assertIn("stays as it is", self.good("q2-imatrix"))
        with open(self.link) as file:
            self.assertEqual(file.read(), "mine")

    def test_goes_on_where_it_stopped(self):
        os.makedirs(self.dir)
        with open(os.path.join(self.dir, NAME + ".partial"), "wb") as file:
            file.write(CONTENT[:100_000])
        self.put_sums(NAME)
        self.assertIn("going on at 100.0 kB", self.good("q2-imatrix"))
        self.assertEqual(self.read(NAME), CONTENT)
        self.assertIn("bytes=100000-", [r[2].get("Range") for r in self.server.requests])

    def test_a_connection_that_breaks_is_made_again(self):
        self.server.cuts = 3
        self.put_sums(NAME)
        self.good("q2-imatrix")
        self.assertEqual(self.read(NAME), CONTENT)
        self.assertEqual(self.server.cuts, 0)

    def test_an_interrupt_keeps_what_is_there(self):
        self.server.slow = True
        running = subprocess.Popen(self.arguments("q2-imatrix"), stderr=subprocess.PIPE, text=True, cwd=self.folder.name,
                                   env=self.environment(), start_new_session=True)
        partial = os.path.join(self.dir, NAME + ".partial")
        deadline = time.time() + 30
        while time.time() < deadline and not (os.path.exists(partial) and os.path.getsize(partial) >= 90_000):
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)
        said = running.communicate(timeout=30)[1]
        self.assertEqual(running.returncode, 130, said)
        self.assertIn("kept", said)
        self.assertGreaterEqual(os.path.getsize(partial), 90_000)
        self.server.slow = False
        self.assertIn("going on", self.good("q2-imatrix"))
        self.assertEqual(self.read(NAME), CONTENT)

    def test_a_server_without_ranges_begins_anew(self):
        self.server.ranges = False
        os.makedirs(self.dir)
        with open(os.path.join(self.dir, NAME + ".partial"), "wb") as file:
            file.write(CONTENT[:5000])
        self.assertIn("beginning anew", self.good("q2-imatrix"))
        self.assertEqual(self.read(NAME), CONTENT)

    def test_a_server_that_refuses_every_range_begins_anew(self):
        for headers in ({}, {"Content-Range": f"bytes */{len(CONTENT)}"}):
            self.server.unsatisfiable = headers
            os.makedirs(self.dir, exist_ok=True)
            with open(os.path.join(self.dir, NAME + ".partial"), "wb") as file:
                file.write(CONTENT[:5000])
            self.assertIn("beginning anew", self.good("q2-imatrix"))
            self.assertEqual(self.read(NAME), CONTENT)
            os.remove(os.path.join(self.dir, NAME))

    def test_no_server_is_asked_for_ever(self):
        # It says less than it sends; it breaks off and cannot go on in the middle.
        self.server.pretended_head = {"Content-Length": "1000"}
        self.bad(1, "larger than the server's file, again and again", "q2-imatrix")
        self.server.pretended_head = {}
        self.server.ranges, self.server.cuts = False, 1000
        self.bad(1, "cannot go on in the middle, again and again", "q2-imatrix")
        self.assertLess(len(self.server.requests), 50)
        self.assertFalse([name for name in self.names() if not name.endswith(".tag")])

    def test_a_size_that_nothing_can_have_is_none(self):
        self.server.pretended_head = {"X-Linked-Size": "9" * 25}
        self.good("q2-imatrix")
        self.assertEqual(self.read(NAME), CONTENT)

    def test_the_page_of_a_network_is_no_model(self):
        self.server.files[NAME] = b"<html>please log in</html>"
        self.bad(1, "is no GGUF file; it was removed", "q2-imatrix")
        self.put_pieces("other.gguf", "aa", "ab", "ac")
        self.server.files["other.gguf.part-aa"] = b"<html>"
        self.bad(1, "are no GGUF file; they were removed", "--file", "other.gguf")
        self.assertEqual(self.names(), [])
        self.assertFalse(os.path.lexists(self.link))

    def test_a_file_that_changed_on_the_server_begins_anew(self):
        os.makedirs(self.dir)
        for suffix, content in ((".partial", b"x" * 5000), (".partial.tag", b'"older"\n')):
            with open(os.path.join(self.dir, NAME + suffix), "wb") as file:
                file.write(content)
        self.assertIn("has changed", self.good("q2-imatrix"))
        self.assertEqual(self.read(NAME), CONTENT)

    def test_a_wrong_checksum_is_no_model(self):
        self.put_sums(NAME)
        self.server.files[NAME] = CONTENT[:-1] + b"!"
        self.bad(1, "SHA-256 is not [0-9a-f]{64}; the damaged download was removed", "q2-imatrix")
        self.assertEqual(self.names(), [])
        self.assertFalse(os.path.lexists(self.link))

    def test_checksums_of_a_file(self):
        sums = self.path("sums")
        with open(sums, "w") as file:
            file.write(f"{hashlib.sha256(CONTENT).hexdigest()} *some/folder/{NAME}\r\n")
        self.assertIn("checking", self.good("q2-imatrix", "--checksums", sums))
        self.server.files[MTP] = CONTENT
        self.bad(1, "has no checksum of", "mtp", "--checksums", sums)
        self.bad(1, "cannot be read", "mtp", "--checksums", self.path("nowhere"))

    def test_a_damaged_file_that_is_there_is_named(self):
        self.put_sums(NAME)
        os.makedirs(self.dir)
        for content, pattern in ((CONTENT[:-1] + b"!", "SHA-256 is not"), (b"short", "another size")):
            with open(os.path.join(self.dir, NAME), "wb") as file:
                file.write(content)
            self.bad(1, pattern, "q2-imatrix")
            self.assertEqual(self.read(NAME), content)

    def test_large_files_behind_a_redirect(self):
        self.server.linked = True
        self.assertIn("checking SHA-256", self.good("q2-imatrix"))
        self.assertEqual(self.read(NAME), CONTENT)

    def test_no_space_is_said_before_anything_is_fetched(self):
        self.server.linked = True
        self.server.pretended_bytes = 10 ** 15
        self.bad(1, "1000.0 TB more are needed in .*, but .* are free", "q2-imatrix")
        self.assertEqual(self.names(), [])

    def test_a_disk_that_fills_keeps_what_is_there(self):
        self.bad(1, "cannot be written|File size limit|broke off", "q2-imatrix", limit=200)
        self.assertIn(NAME + ".partial", self.names())
        self.good("q2-imatrix")
        self.assertEqual(self.read(NAME), CONTENT)

    def test_tokens(self):
        self.server.wants_token = TOKEN
        self.bad(1, "wants a token", "q2-imatrix")
        self.bad(1, "refuses .* to this token", "q2-imatrix", "--token", "hf_wrong")
        self.good("q2-imatrix", "--token", TOKEN)
        os.remove(os.path.join(self.dir, NAME))
        self.good("q2-imatrix", HF_TOKEN=TOKEN)
        os.remove(os.path.join(self.dir, NAME))
        cache = self.path(".cache/huggingface")
        os.makedirs(cache)
        with open(os.path.join(cache, "token"), "w") as file:
            file.write(TOKEN + "\n")
        self.assertIn("token    yes", self.good("q2-imatrix", "--dry-run"))
        self.good("q2-imatrix")
        self.bad(1, "characters that no token has", "q2-imatrix", "--token", 'a"\nurl = "http://elsewhere')

    def test_the_token_is_in_no_list_of_processes(self):
        self.server.slow = True
        running = subprocess.Popen(self.arguments("q2-imatrix"), stderr=subprocess.DEVNULL, cwd=self.folder.name,
                                   env=self.environment(HF_TOKEN=TOKEN), start_new_session=True)
        deadline = time.time() + 30
        while time.time() < deadline and not any(r[0] == "GET" and r[1].endswith(".gguf") for r in self.server.requests):
            time.sleep(0.05)
        shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout if shutil.which("ps") else ""
        for process in os.listdir("/proc") if os.path.isdir("/proc") else []:
            try:
                with open(f"/proc/{process}/cmdline", "rb") as file:
                    shown += file.read().decode("utf-8", "replace")
            except OSError:
                pass
        os.killpg(running.pid, signal.SIGTERM)
        running.wait(timeout=30)
        self.assertIn("deepseek-v4-gguf", shown)
        self.assertNotIn(TOKEN, shown)

    def test_pieces_are_joined(self):
        del self.server.files[NAME]
        for i, suffix in enumerate(("aa", "ab", "ac")):
            self.server.files[f"{NAME}.part-{suffix}"] = CONTENT[i * 110_000:(i + 1) * 110_000]
        self.server.files["SHA256SUMS"] = f"{hashlib.sha256(CONTENT).hexdigest()}  {NAME}\n".encode()
        # An earlier run that was ended while it appended the second piece.
        os.makedirs(self.dir)
        with open(os.path.join(self.dir, NAME + ".joining"), "wb") as file:
            file.write(CONTENT[:150_000])
        self.assertIn("joined from 3 pieces", self.good("q2-imatrix"))
        self.assertEqual(self.names(), [NAME])
        self.assertEqual(self.read(NAME), CONTENT)
        fetched = {r[1].rsplit("/", 1)[1] for r in self.server.requests if r[0] == "GET"}
        self.assertNotIn(f"{NAME}.part-aa", fetched)
        os.remove(os.path.join(self.dir, NAME))
        self.server.files[f"{NAME}.part-ab"] = b"?" * 110_000
        self.bad(1, "SHA-256 of the joined pieces", "q2-imatrix")
        self.assertEqual(self.names(), [])

    def put_pieces(self, name, *suffixes):
        self.server.files.pop(name, None)
        for i, suffix in enumerate(suffixes):
            self.server.files[f"{name}.part-{suffix}"] = CONTENT[i * 100_000:(i + 1) * 100_000]

    def fetched(self):
        return [r for r in self.server.requests if r[0] == "GET" and "SHA256SUMS" not in r[1]]

    def test_a_piece_that_is_missing_is_no_end(self):
        self.put_pieces("other.gguf", "aa", "ab", "ad")
        self.bad(1, "has other.gguf.part-ad, but not other.gguf.part-ac", "--file", "other.gguf")
        self.put_pieces(NAME, "aa", "ab", "ac")
        self.bad(1, "have 300000 bytes, but 86720111488 are expected", "q2-imatrix")
        self.assertEqual((self.names(), self.fetched()), ([], []))

    def test_checksums_of_pieces_or_of_their_whole(self):
        self.put_pieces(NAME, "aa", "ab", "ac")
        sums = self.path("sums")
        pieces = {f"{NAME}.part-a{c}": self.server.files[f"{NAME}.part-a{c}"] for c in "abc"}

        def list_sums(contents):
            with open(sums, "w") as file:
                file.writelines(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents.items())

        list_sums({NAME: CONTENT})
        self.good("q2-imatrix", "--checksums", sums)
        self.assertEqual(self.read(NAME), CONTENT)
        os.remove(os.path.join(self.dir, NAME))
        self.put_pieces("other.gguf", "aa", "ab", "ac")
        list_sums({name.replace(NAME, "other.gguf"): content for name, content in pieces.items()})
        self.good("--file", "other.gguf", "--checksums", sums)
        self.assertEqual(self.read("other.gguf"), CONTENT)
        os.remove(os.path.join(self.dir, "other.gguf"))
        list_sums({"other.gguf.part-aa": pieces[NAME + ".part-aa"]})
        self.bad(1, "has no checksum of other.gguf", "--file", "other.gguf", "--checksums", sums)

    def test_a_hash_that_fails_keeps_the_download(self):
        self.put_sums(NAME)
        programs = self.path("bin")
        os.makedirs(programs)
        with open(os.path.join(programs, "sha256sum"), "w") as file:
            file.write("#!/bin/sh\nexit 1\n")
        os.chmod(os.path.join(programs, "sha256sum"), 0o755)
        self.bad(1, "cannot be read; what was fetched is kept", "q2-imatrix", PATH=f"{programs}:{os.environ['PATH']}")
        self.assertEqual(self.read(NAME + ".partial"), CONTENT)
        self.good("q2-imatrix")
        self.assertEqual(self.read(NAME), CONTENT)

    def test_only_models_are_linked(self):
        for name in ("README.md", "DeepSeek-V4-Pro-MTP-Q4K.gguf"):
            self.server.files[name] = CONTENT[:1000]
            self.good("--file", name)
            self.assertFalse(os.path.lexists(self.link), name)
        self.server.files["other.gguf"] = CONTENT[:1000]
        self.good("--file", "other.gguf")
        self.assertTrue(os.readlink(self.link).endswith("other.gguf"))

    def test_the_space_of_all_files_is_looked_at_first(self):
        free = shutil.disk_usage(self.folder.name).free
        self.server.pretended_bytes = free * 2 // 5  # one fits, three do not
        for i in (1, 2, 3):
            self.server.files[f"model-0000{i}-of-00003.gguf"] = CONTENT[:1000]
        self.put_pieces("other.gguf", "aa", "ab", "ac")
        for name, total in (("model-00001-of-00003.gguf", 3), ("other.gguf", 3)):
            self.bad(1, "more are needed in", "--file", name)
            said = self.good("--file", name, "--dry-run")
            self.assertIn("more are needed in", said)
            self.assertIn(f"size     {total * self.server.pretended_bytes} bytes", said)
        self.assertEqual((self.names(), self.fetched()), ([], []))

    def test_a_token_goes_to_this_machine_only(self):
        for endpoint, kept in (("http://localhost.evil.invalid", False), ("http://127.0.0.1.evil.invalid:80", False),
                               ("http://localhost:1", True), ("http://127.0.0.1:1/hub", True), ("http://[::1]:1", True)):
            said = self.fetch("q2", "--dry-run", "--token", TOKEN, "--endpoint", endpoint, ends=True).stderr
            self.assertIn("token    yes" if kept else "token    none", said)
        self.bad(2, "without a user name", "q2", "--endpoint", "http://localhost:1@evil.invalid", ends=True)

    def test_all_files_of_a_split_model(self):
        names = [f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
        for i, name in enumerate(names):
            self.server.files[name] = CONTENT[:1000 + i]
        self.good("--file", names[1])
        self.assertEqual(self.names(), names)
        self.assertTrue(os.readlink(self.link).endswith(names[0]))

    def test_a_dry_run_writes_nothing(self):
        self.put_sums(NAME)
        said = self.good("q2-imatrix", "--dry-run", "--token", TOKEN)
        for text in (f"{self.server.url}/{REPO}/resolve/main/{NAME}", "size     300000 bytes (300.0 kB)", "free ",
                     hashlib.sha256(CONTENT).hexdigest(), "token    yes", f"link     {self.link}"):
            self.assertIn(text, said)
        self.assertEqual(sorted(os.listdir(self.folder.name)), [])
        said = self.bad(1, "answers with status 404", "q4-imatrix", "--dry-run")
        self.assertIn("164633502592 bytes", said)

    def test_failures_are_said(self):
        self.bad(1, "has no file .* \\(status 404\\)", "q4")
        self.server.status = 418
        self.bad(1, "answers .* with status 418", "q2-imatrix")
        self.server.shutdown()
        self.server.server_close()
        self.bad(1, "cannot be reached", "q2-imatrix")

    def test_wrong_usage(self):
        for pattern, arguments in (("no target 'q3'", ["q3"]), ("one target at a time", ["q2", "q4"]),
                                   ("unknown option '--fast'", ["q2", "--fast"]), ("--dir needs a value", ["q2", "--dir", ""]),
                                   ("not both", ["q2", "--file", "x.gguf"]), ("is no name of a file", ["--file", "../x"]),
                                   ("is no name of a file", ["--file", "a b"]), ("usage:", [])):
            self.bad(2, pattern, *arguments)
        result = subprocess.run(["sh", SCRIPT, "--help"], capture_output=True, text=True, timeout=60)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for target in ("q2-imatrix", "q2-q4-imatrix", "q4-imatrix", "pro-imatrix", "mtp"):
            self.assertIn(target, result.stdout)


if __name__ == "__main__":
    if not shutil.which("curl"):
        print("skipped: there is no curl")
        sys.exit(77)
    unittest.main()
