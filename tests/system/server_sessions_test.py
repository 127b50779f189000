"""Conversations over time: what stays warm, who waits, who leaves, and how the server ends."""
import json
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

from server_support import (ALL_DIALECTS, MODEL, PROGRAM, SHELL, Chat, Messages, Reply, Server, ServerTest, assistant,
                            block, call, main, parse_events, wait_until)

CALL = "Looking.</think>I look." + block(call("shell", command="ls"))
LONG = "word " * 3000  # some thousand tokens
ENDLESS = {"when": "endless", "text": "</think>" + "on and on ", "endless": True}


def in_background(function, *arguments, **options):
    """Runs a call; returns a function that waits for its result."""
    result = []
    thread = threading.Thread(target=lambda: result.append(function(*arguments, **options)), daemon=True)
    thread.start()

    def wait():
        thread.join(60)
        return result[0]
    wait.goes_on = thread.is_alive
    return wait


def leave(connection, reset):
    """Closes a socket, politely or not."""
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Warmth(ServerTest):
    rules = [("one call", CALL), ("<tool_result>", "I see.</think>Done."), ("title", "</think>A title"),
             ("greet", "A greeting.</think>Hello there!")]
    arguments = ("--ctx", "16384", "--sessions", "4")

    def test_second_turns_are_warm(self):
        for dialect in ALL_DIALECTS:
            question = [("system", "Be brief. " * 200), ("user", self.fresh() + "one call")]
            first = dialect.ask(self.server, question, tools=[SHELL])
            turn = question + [assistant(first), ("tool", first.calls[0][0], "a b c")]
            second = dialect.ask(self.server, turn, stream=True, tools=[SHELL])
            shared = first.prompt_tokens + first.completion_tokens
            self.assertGreaterEqual(second.cached_tokens, 0.95 * shared, dialect.name)
            self.assertLess(second.cached_tokens, second.prompt_tokens)
            third = dialect.ask(self.server, turn + [assistant(second), ("user", "one call")], tools=[SHELL])
            shared = second.prompt_tokens + second.completion_tokens
            self.assertGreaterEqual(third.cached_tokens, 0.95 * shared, dialect.name)

    def test_calls_that_clients_change_are_shown_as_they_show_them(self):
        question = [("user", self.fresh() + "one call")]
        for dialect in ALL_DIALECTS:
            first = dialect.ask(self.server, question, tools=[SHELL])
            (id, name, arguments), result = first.calls[0], ("tool", first.calls[0][0], "a b c")
            same = ("assistant", first.content, [(id, name, json.dumps(json.loads(arguments), indent=4))])
            changed = ("assistant", first.content, [(id, name, json.dumps({"command": "ls -a"}))])
            whole = first.prompt_tokens + first.completion_tokens
            self.assertGreaterEqual(dialect.ask(self.server, question + [same, result], tools=[SHELL]).cached_tokens,
                                    whole, dialect.name)
            reply = dialect.ask(self.server, question + [changed, result], tools=[SHELL])
            self.assertEqual(reply.content, "Done.")
            self.assertLess(reply.cached_tokens, whole)
        lines = self.server.logged("calls_changed=1", 3)
        self.assertEqual(len(lines), 3)

    def test_late_system_messages_cost_nothing(self):
        """As Claude Code sends them: lists behind the question, reminders behind results."""
        lists, reminder = ("The following skills are available:\n- a\n- b", "one call: the time is 10:00")
        for dialect in ALL_DIALECTS:
            with self.subTest(dialect=dialect.name):
                def turns(*messages):
                    """With ("late", text) as system messages in their place."""
                    body = dialect.body([("user" if role == "late" else role, *rest) for role, *rest in messages],
                                        tools=[SHELL])
                    for item in body["input" if dialect.name == "responses" else "messages"]:
                        if any(text in json.dumps(item) for text in map(json.dumps, (lists, reminder))):
                            item["role"] = "system"
                    answer, reply = self.server.post(dialect.path, body), Reply()
                    self.assertEqual(answer.status, 200, answer.text)
                    dialect.read_body(answer.json, reply)
                    return reply
                question = (("user", self.fresh() + "one call"), ("late", lists))
                first = turns(*question)
                second = turns(*question, assistant(first), ("tool", first.calls[0][0], "a b c"), ("late", reminder))
                self.assertEqual(second.cached_tokens, first.prompt_tokens + first.completion_tokens)

    def test_conversations_without_tools_go_on_behind_the_last_question(self):
        for dialect in ALL_DIALECTS:
            question = [("system", "Be brief. " * 200), ("user", self.fresh() + "greet")]
            first = dialect.ask(self.server, question)
            second = dialect.ask(self.server, question + [assistant(first), ("user", "greet again")])
            self.assertGreaterEqual(second.cached_tokens, 0.95 * first.prompt_tokens, dialect.name)

    def test_changed_reminders_cost_only_what_is_behind_them(self):
        base = [("system", "Be brief. " * 500), ("user", self.fresh() + "one call")]
        first = Chat().ask(self.server, base, tools=[SHELL])
        history = base + [assistant(first), ("tool", first.calls[0][0], "a b c")]
        reminded = Chat().ask(self.server, history + [("user", "<system-reminder>time 1</system-reminder>greet")],
                              tools=[SHELL])
        again = Chat().ask(self.server, history + [("user", "<system-reminder>time 2</system-reminder>greet")],
                           tools=[SHELL])
        self.assertGreaterEqual(again.cached_tokens, 0.95 * (reminded.prompt_tokens - 30))

    def test_side_requests_take_nothing_from_a_long_conversation(self):
        question = [("system", LONG * 2), ("user", self.fresh() + "greet")]
        first = Chat().ask(self.server, question)
        for i in range(12):
            Chat().ask(self.server, f"{self.fresh()} title of conversation {i}", max_tokens=10)
            self.server.post("/v1/completions", {"prompt": self.fresh() + "title", "max_tokens": 4})
            self.server.post("/v1/messages/count_tokens", Messages().body([("user", self.fresh() + "title")]))
        again = Chat().ask(self.server, question)
        self.assertEqual(again.cached_tokens, first.prompt_tokens)

    def test_misses_are_explained(self):
        Chat().ask(self.server, [("system", "Another start."), ("user", self.fresh() + "greet")])
        line = self.server.logged("answered")[-1]
        for field in ("prompt=", "cached=", "miss=", "generated=", "queue_s=", "prefill_s=", "decode_s="):
            self.assertIn(field, line)
        self.assertRegex("".join(self.server.log), 'miss="(other-start|no-session|diverged)"')


class Reminders(ServerTest):
    """Long conversations with tools are reminded of them, and stay warm all the same."""
    rules = [("<tool_result>", CALL), ("one call", CALL), ("title", "</think>A title")]
    arguments = ("--ctx", "16384", "--tool-reminder-tokens", "1000")

    def reminders(self, line):
        found = re.search(r" reminders=(\d+)", line)
        return int(found.group(1)) if found else 0

    def test_prompts_go_on_as_they_began(self):
        for answered, dialect in enumerate(ALL_DIALECTS):
            messages, before = [("user", self.fresh() + "one call")], None
            for turn in range(12):
                reply = dialect.ask(self.server, messages, tools=[SHELL])
                if before is not None:
                    self.assertEqual(reply.cached_tokens, before.prompt_tokens + before.completion_tokens, turn)
                messages += [assistant(reply), ("tool", reply.calls[0][0], f"result {turn} " + "a line of it\n" * 30)]
                before = reply
            lines = self.server.logged("answered .*cached", 12 * (answered + 1))
            counts = [self.reminders(line) for line in lines[-12:]]
            self.assertEqual((counts[0], sorted(counts)), (0, counts))
            self.assertGreater(counts[-1], 3)
        self.assertGreater(self.server.metrics()["ds4_tool_reminders_total"], 10)

    def test_not_without_tools(self):
        with Server(*self.arguments, rules=self.rules) as server:
            Chat().ask(server, [("system", LONG), ("user", "title")])
            self.assertEqual(self.reminders(server.logged("answered")[-1]), 0)


class Pace(ServerTest):
    """A server that takes its time: 0.3 ms a prompt token, and 5 ms a token of an answer."""
    rules = [ENDLESS, ("greet", "A greeting.</think>Hello there!"), ("one call", CALL)]
    pace = {"prompt_token_us": 300, "pass_us": 5000}
    arguments = ("--ctx", "32768")

    def outcomes(self, outcome):
        return sum(value for name, value in self.server.metrics().items()
                   if name.startswith("ds4_requests_total") and f'outcome="{outcome}"' in name)

    def test_clients_that_leave_while_their_prompt_is_computed(self):
        for dialect in ALL_DIALECTS:
            for stream, reset in ((True, False), (False, True)):
                with self.subTest(dialect=dialect.name, stream=stream, reset=reset):
                    messages = [("system", self.fresh() + LONG * 3), ("user", "greet")]
                    cancelled = self.outcomes("cancelled")
                    connection = self.server.open(dialect.path, dialect.body(messages, stream))
                    wait_until(lambda: self.server.metrics()["ds4_requests_running"] == 1, "running")
                    time.sleep(0.4)
                    leave(connection, reset)
                    wait_until(lambda: self.outcomes("cancelled") == cancelled + 1, "cancelled", 5)
                    wait_until(lambda: self.server.metrics()["ds4_requests_running"] == 0, "idle", 5)

    def test_what_was_computed_is_kept(self):
        # Prompts are computed in slices of about a second, on a machine that has time.
        for seconds in (2, 4, 8):
            messages = [("system", self.fresh() + LONG * 6), ("user", "greet")]
            cancelled = self.outcomes("cancelled")
            connection = self.server.open(Chat.path, Chat().body(messages, True))
            wait_until(lambda: self.server.metrics()["ds4_requests_running"] == 1, "running")
            time.sleep(seconds)
            leave(connection, False)
            wait_until(lambda: self.outcomes("cancelled") == cancelled + 1, "cancelled", 5)
            reply = Chat().ask(self.server, messages)
            self.assertEqual(reply.content, "Hello there!")
            if reply.cached_tokens > 0:
                return
        self.fail("nothing was kept")

    def test_clients_that_leave_while_they_are_answered(self):
        for dialect in ALL_DIALECTS:
            for stream, reset in ((True, True), (False, False)):
                with self.subTest(dialect=dialect.name, stream=stream, reset=reset):
                    question = [("user", self.fresh() + "endless")]
                    cancelled = self.outcomes("cancelled")
                    connection = self.server.open(dialect.path, dialect.body(question, stream))
                    wait_until(lambda: self.server.metrics()["ds4_requests_running"] == 1, "running")
                    time.sleep(0.1)
                    leave(connection, reset)
                    wait_until(lambda: self.outcomes("cancelled") == cancelled + 1, "cancelled", 5)
                    again = dialect.ask(self.server, question, max_tokens=2)
                    self.assertEqual(again.cached_tokens, again.prompt_tokens)

    def test_answers_go_on_while_a_prompt_is_computed(self):
        """Nobody waits for a long prompt, and /health answers at once."""
        wait = in_background(Chat().ask, self.server, [("system", LONG * 6), ("user", self.fresh() + "greet")])
        time.sleep(0.2)
        began = time.monotonic()
        reply = Chat().ask(self.server, self.fresh() + "greet")
        took = time.monotonic() - began
        slowest = 0
        for _ in range(10):
            began = time.monotonic()
            self.assertEqual(self.server.get("/health").status, 200)
            slowest = max(slowest, time.monotonic() - began)
        self.assertTrue(wait.goes_on(), "the long prompt is done already")
        self.assertEqual(reply.content, "Hello there!")
        self.assertLess(took, 10)
        self.assertLess(slowest, 1)
        self.assertEqual(wait().content, "Hello there!")

    def test_slow_readers_stop_nobody(self):
        connection = self.server.open(Chat.path, Chat().body([("user", self.fresh() + "endless")], True,
                                                             max_tokens=20000))
        replies = [in_background(Chat().ask, self.server, self.fresh() + "greet", True) for _ in range(4)]
        self.assertEqual({wait().content for wait in replies}, {"Hello there!"})
        leave(connection, True)


class Keepalive(unittest.TestCase):
    def test_while_a_request_waits(self):
        with Server(rules=[ENDLESS, ("greet", "A greeting.</think>Hello there!")], pass_us=5000) as server:
            busy = server.open(Chat.path, Chat().body([("user", "endless")], True, extra={"n": 16}))
            wait_until(lambda: server.metrics()["ds4_requests_running"] == 1, "running")
            waits = [(dialect, in_background(self.listen, server, dialect, [("user", "greet")]))
                     for dialect in ALL_DIALECTS]
            wait_until(lambda: server.metrics()["ds4_requests_waiting"] == len(waits), "waiting")
            time.sleep(8)
            leave(busy, True)
            for dialect, wait in waits:
                text, gap = wait()
                self.assertIn(dialect.keepalive, text, dialect.name)
                self.assertLess(gap, 9, dialect.name)
                reply = Reply()
                dialect.read_stream(parse_events(text[text.index("\r\n\r\n") + 4:]), reply)
                self.assertEqual((reply.content, reply.finish), ("Hello there!", "stop"))
                self.assertGreater(reply.prompt_tokens, 0)
                self.assertLessEqual(reply.cached_tokens, reply.prompt_tokens)

    def test_in_prompts_and_answers(self):
        """Every kind of client hears something it understands at least every ten seconds."""
        with Server(rules=[("greet", "A greeting.</think>Hello there!")], prompt_token_us=2500, pass_us=1000) as server:
            messages = [("system", "word " * 1500), ("user", "greet")]
            waits = [(dialect, in_background(self.listen, server, dialect, messages)) for dialect in ALL_DIALECTS]
            for dialect, wait in waits:
                text, gap = wait()
                self.assertIn(dialect.keepalive, text, dialect.name)
                self.assertLess(gap, 9, dialect.name)
                self.assertIn("there", text)
                found = re.findall(r'"prefill":\{"done":(\d+),"total":(\d+)\}', text)
                done, totals = [int(progress[0]) for progress in found], {progress[1] for progress in found}
                self.assertGreater(len(done), 1, dialect.name)
                self.assertEqual((done, len(totals)), (sorted(done), 1), dialect.name)
                self.assertLessEqual(done[-1], int(totals.pop()))

    @staticmethod
    def listen(server, dialect, messages):
        """What came, and the longest silence."""
        gap, last, text = 0, time.monotonic(), b""
        with server.open(dialect.path, dialect.body(messages, True), {"Connection": "close"}, "1.0") as connection:
            while piece := connection.recv(65536):
                gap, last = max(gap, time.monotonic() - last), time.monotonic()
                text += piece
        return text.decode(), gap


class Queue(unittest.TestCase):
    def test_full_queues_refuse(self):
        with Server("--queue", "2", rules=[ENDLESS], pass_us=2000) as server:
            endless = Chat().body([("user", "endless")], True)
            several = {**endless, "n": 16}
            busy = server.open(Chat.path, several)
            wait_until(lambda: server.metrics()["ds4_requests_running"] == 1, "running")
            waiting = [server.open(Chat.path, endless) for _ in range(2)]
            wait_until(lambda: server.metrics()["ds4_requests_waiting"] == 2, "waiting")
            for dialect in ALL_DIALECTS:
                for stream in (False, True):
                    answer = server.post(dialect.path, dialect.body([("user", "endless")], stream))
                    self.assertEqual(answer.status, 429, dialect.name)
                    self.assertGreater(int(answer.headers["Retry-After"]), 0)
                    self.assertEqual(answer.error["type"], "rate_limit_error")
            # Whoever leaves the queue makes room in it.
            leave(waiting[0], True)
            wait_until(lambda: server.metrics()["ds4_requests_waiting"] == 1, "one waits", 5)
            for connection in [busy, waiting[1]]:
                leave(connection, False)
            wait_until(lambda: server.metrics()["ds4_requests_running"] == 0, "idle", 5)


class Ends(unittest.TestCase):
    def open_stream(self, server, dialect, text, max_tokens):
        connection = server.open(dialect.path, dialect.body([("user", text)], True, max_tokens=max_tokens))
        self.addCleanup(connection.close)
        self.assertIn(b"200 OK", connection.recv(15))
        return connection

    @staticmethod
    def rest(connection):
        text = b""
        with connection:
            while piece := connection.recv(65536):
                text += piece
        return text.decode()

    def test_running_streams_come_to_their_end(self):
        for dialect, last in ((Chat(), "[DONE]"), (Messages(), "message_stop")):
            server = Server(rules=[ENDLESS], pass_us=5000)
            connection = self.open_stream(server, dialect, "endless", 100)
            server.process.send_signal(signal.SIGTERM)
            server.logged("no new requests")
            text = self.rest(connection)
            self.assertIn(last, text.strip().splitlines()[-3] + text.strip().splitlines()[-1] + text[-200:])
            self.assertEqual(server.end(), 0)

    def test_new_requests_are_refused_while_draining(self):
        server = Server(rules=[ENDLESS], pass_us=5000)
        connection = self.open_stream(server, Chat(), "endless", 200)
        server.process.send_signal(signal.SIGTERM)
        server.logged("no new requests")
        with self.assertRaises((ConnectionError, OSError)):
            server.get("/health")
        self.rest(connection)
        self.assertEqual(server.end(), 0)

    def test_endless_answers_end_with_an_error_when_time_is_up(self):
        server = Server("--drain-seconds", "1", rules=[ENDLESS], pass_us=5000)
        connection = self.open_stream(server, Chat(), "endless", 20000)
        server.process.send_signal(signal.SIGINT)
        text = self.rest(connection)
        self.assertIn("event: error", text)
        self.assertIn("shutting down", text)
        self.assertEqual(server.end(), 0)

    def test_second_signal_ends_at_once(self):
        server = Server(rules=[ENDLESS], pass_us=5000)
        connection = self.open_stream(server, Chat(), "endless", 20000)
        server.process.send_signal(signal.SIGTERM)
        server.logged("no new requests")
        began = time.monotonic()
        self.assertEqual(server.stop(), 130)
        self.assertLess(time.monotonic() - began, 2)
        connection.close()

    def test_a_server_whose_engine_fails_ends(self):
        server = Server(rules=[ENDLESS], pass_us=1000, breaks_at="BREAK")
        running = self.open_stream(server, Chat(), "endless", 20000)
        answer = server.post(Chat.path, Chat().body([("user", "BREAK")]))
        self.assertEqual((answer.status, answer.error["code"]), (503, "engine_failed"))
        self.assertIn("does not work any more", self.rest(running))
        self.assertEqual(server.end(), 1)
        self.assertTrue(any("error: the engine does not work any more" in line for line in server.log), server.log)

    def test_signals_end_a_server_that_does_not_answer_yet(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys")
            os.mkfifo(keys)  # its other end is never opened
            process = subprocess.Popen([PROGRAM, "-m", MODEL, "--port", "0", "--api-key-file", keys],
                                       stderr=subprocess.DEVNULL)
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            try:
                self.assertEqual(process.wait(5), 130)
            finally:
                process.kill()
                process.wait()


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Trace(unittest.TestCase):
    def test_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace")
            with Server("--trace", path, "--log-json", rules=[("one call", CALL)]) as server:
                Chat().ask(server, "one call", tools=[SHELL])
                Messages().ask(server, [("user", "one call")], stream=True, tools=[SHELL])
                lines = server.logged('"message":"answered"', 2)
                for line in lines:
                    record = json.loads(line)
                    self.assertEqual((record["outcome"], record["level"]), ("tool_calls", "info"))
                    self.assertGreater(record["prompt"], 0)
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            text = read(path)
            for kind in ("request", "answer"):
                self.assertEqual(re.findall(rf"^===== {kind} (\d+) ", text, re.M), ["1", "2"])
                self.assertEqual(re.findall(rf"^===== end {kind} (\d+) ", text, re.M), ["1", "2"])
            for part in ("--- raw request json ---", "--- rendered prompt ---", "one call", "I look.", "cached_tokens: ",
                         "outcome: tool_calls", "stream: 0\n", "stream: 1\n", "thinking: high\n", "temperature: 0\n",
                         "tools: shell\n", "tool_choice: auto\n", "format: text\n", "disk: unused\n",
                         "--- generated text 0: tool_calls ---"):
                self.assertIn(part, text)

    def test_all_answers_are_traced(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace")
            with Server("--trace", path, rules=[("greet", "A greeting.</think>Hello there!")]) as server:
                for word in ("early", "later"):
                    body = Chat().body([("user", f"\u65e5 {word}: greet")], max_tokens=90,
                                       extra={"n": 2, "seed": 77, "top_k": 9, "top_p": 0.5, "min_p": 0.25})
                    self.assertEqual(server.post(Chat.path, body).status, 200)
                wait_until(lambda: "end answer 2" in read(path), "traced")
            text = read(path)
        for part in ("max_tokens: 90\n", "seed: 77\n", "top_k: 9\n", "top_p: 0.5\n", "min_p: 0.25\n", "answers: 2\n",
                     "miss: diverged\n"):
            self.assertIn(part, text)
        for choice in (0, 1):
            self.assertEqual(text.count(f"--- generated text {choice}: stop ---\nA greeting.</think>Hello there!"), 2)
        kept = re.search(r"--- nearest conversation where it differs ---\n(.*)", text)[1]
        asked = re.search(r"--- this prompt there ---\n(.*)", text)[1]
        self.assertIn("\u65e5 early: greet", kept)
        self.assertIn("\u65e5 later: greet", asked)

    def test_unfinished_requests_are_traced(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace")
            with Server("--trace", path, rules=[ENDLESS], pass_us=5000) as server:
                connection = server.open(Chat.path, Chat().body([("user", "endless")], True))
                wait_until(lambda: "end request 1" in read(path), "traced")
                self.assertNotIn("answer 1", read(path))
                leave(connection, False)
                wait_until(lambda: "outcome: cancelled" in read(path), "traced")
                self.assertIn("--- generated text 0: unfinished ---", read(path))


if __name__ == "__main__":
    main()
