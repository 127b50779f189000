"""Many clients at once: streams, whole answers, tools, clients that leave or read slowly, side requests, bad requests, in
every dialect. Nothing may fail or get stuck, memory must not grow, and /health answers whatever is computed.

Without arguments: a short run for CI. `server_load_test.py --seconds 600 --clients 64 [--nano]` is the long one, which
also asserts times."""
import argparse
import contextlib
import http.client
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback

from server_support import (MODEL, SHELL, Chat, Messages, Responses, Server, assistant, block, call, wait_until)

DIALECTS = [Chat(), Messages(), Responses()]
CONVERSATIONS = 40  # different beginnings: more than are kept, few enough to come again
RULES = [
    ("greet", "A greeting.</think>Hello there!"),
    ("run it", "Looking.</think>I look." + block(call("shell", command="ls -la"), call("shell", command="pwd"))),
    ("<tool_result>", "I see.</think>Done."),
    ("long call", "Go.</think>" + block(call("shell", command="word " * 200))),
    {"when": "endless", "text": "</think>" + "on and on ", "endless": True},
]
HEALTH_P99_MS = 50


class Stopped(Exception):
    """The time of the test is over."""


class Client:
    """One client: does one thing after the other until the end, and remembers what went wrong."""

    def __init__(self, server, number, end, nano):
        self.server, self.end, self.nano = server, end, nano
        self.random = random.Random(number)
        self.done = {}
        self.doing, self.since = "", time.monotonic()
        self.error = None
        actions = {"whole": 6, "stream": 6, "tools": 4, "leave": 4, "leave_at_once": 2, "several": 2, "long_prompt": 3,
                   "side": 3, "count": 2, "plain_gets": 2, "bad": 2, "slow_reader": 1, "completion": 2}
        self.names, self.weights = list(actions), list(actions.values())
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        try:
            while time.monotonic() < self.end:
                self.doing = self.random.choices(self.names, self.weights)[0]
                self.since = time.monotonic()
                getattr(self, self.doing)()
                self.done[self.doing] = self.done.get(self.doing, 0) + 1
            self.doing = ""
        except Exception:  # whatever it is, the test reports it
            self.error = f"{self.doing}: {traceback.format_exc()}"

    def words(self, text, length=10):
        """A prompt that some other request began with."""
        number = self.random.randrange(CONVERSATIONS)
        return [("system", f"conversation {number} " + f"rule {number} " * length), ("user", text)]

    def ask(self, messages, stream=None, **options):
        dialect = self.random.choice(DIALECTS)
        stream = self.random.random() < 0.5 if stream is None else stream
        options.setdefault("max_tokens", 12 if self.nano else 400)
        reply = dialect.ask(self.server, messages, stream, **options)
        assert reply.status == 200 and reply.error is None, (dialect.name, stream, reply.status, reply.error)
        assert reply.finish in ("stop", "length", "tool_calls"), reply.finish
        return dialect, reply

    def expect(self, reply, content):
        if not self.nano:
            assert reply.content == content, (reply.content, content)

    def whole(self):
        self.expect(self.ask(self.words("greet"), False)[1], "Hello there!")

    def stream(self):
        self.expect(self.ask(self.words("greet"), True)[1], "Hello there!")

    def tools(self):
        messages = self.words("run it")
        dialect, reply = self.ask(messages, tools=[SHELL])
        if self.nano and not reply.calls:
            return
        assert len(reply.calls) == 2 or self.nano, reply.calls
        messages.append(assistant(reply))
        results = [("tool", id, f"output of {name}") for id, name, _ in reply.calls]
        self.random.shuffle(results)
        messages += results
        answer = dialect.ask(self.server, messages, self.random.random() < 0.5, tools=[SHELL], max_tokens=100)
        assert answer.status == 200, answer.error
        self.expect(answer, "Done.")

    def several(self):
        stream = self.random.random() < 0.5
        body = Chat().body(self.words("greet"), stream, max_tokens=12 if self.nano else 400,
                           extra={"n": self.random.choice([2, 3, 16])})
        if self.random.random() < 0.3:
            return self.abandon(Chat(), body)
        answer = self.server.post(Chat.path, body)
        assert answer.status == 200, answer.text
        if not self.nano:
            count = answer.text.count('"finish_reason":"stop"')
            assert count == body["n"], (count, body["n"])

    def abandon(self, dialect, body):
        """Leaves after a random part of the answer, with FIN or RST."""
        connection = self.server.open(dialect.path, body)
        with contextlib.closing(connection):
            connection.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                for _ in range(self.random.randrange(8)):
                    if not connection.recv(200):
                        break
            if self.random.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def leave(self):
        dialect = self.random.choice(DIALECTS)
        self.abandon(dialect, dialect.body(self.words("endless"), self.random.random() < 0.7, max_tokens=4000))

    def leave_at_once(self):
        dialect = self.random.choice(DIALECTS)
        self.server.open(dialect.path, dialect.body(self.words("endless", 300), True, max_tokens=4000)).close()

    def long_prompt(self):
        self.expect(self.ask(self.words("greet", self.random.choice([200, 500, 900])))[1], "Hello there!")

    def side(self):
        headers = {"x-session-id": f"s{self.random.randrange(20)}"}
        self.expect(self.ask(self.words("greet"), headers=headers, thinking=False, max_tokens=20)[1],
                    "A greeting.</think>Hello there!")

    def completion(self):
        body = {"model": "test", "prompt": "greet", "max_tokens": 8, "stream": self.random.random() < 0.5}
        assert self.server.post("/v1/completions", body).status == 200

    def count(self):
        messages = [message for message in Messages().body(self.words("greet"))["messages"]]
        answer = self.server.post("/v1/messages/count_tokens", {"model": "test", "messages": messages})
        assert answer.status == 200 and answer.json["input_tokens"] > 0, answer.text
        assert self.server.post("/tokenize", {"content": "some words " * 500}).status == 200

    def plain_gets(self):
        for path in ("/v1/models", "/metrics", "/props", "/health"):
            assert self.server.get(path).status == 200, path

    def bad(self):
        dialect = self.random.choice(DIALECTS)
        assert self.server.post(dialect.path, '{"messages": [}').status == 400
        assert self.server.post(dialect.path, dialect.body([("user", "word " * 20000)], True)).status == 400
        with contextlib.closing(socket.create_connection(("127.0.0.1", self.server.port), 20)) as connection:
            connection.sendall(self.random.choice([b"\0\0\0\0\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/messages HT"]))
            connection.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                connection.recv(1000)

    def slow_reader(self):
        connection = self.server.open(Chat.path, Chat().body(self.words("endless"), True, max_tokens=400))
        with contextlib.closing(connection):
            connection.settimeout(60)
            for _ in range(10):
                if not connection.recv(40):
                    break
                time.sleep(0.1)


class Prober:
    """Asks for /health every 10 ms, in a process of its own: the clients' interpreter has other things to do. Beside
    it, how late such a process wakes up anyway."""

    def __init__(self, port):
        self.process = subprocess.Popen([sys.executable, __file__, "--probe", str(port)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def stop(self):
        output, _ = self.process.communicate("stop\n")
        assert self.process.returncode == 0, "a GET /health failed"
        return json.loads(output)


def probe(port):
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    answers_ms, wakes_ms = [], []
    while not stop.is_set():
        begin = time.monotonic()
        time.sleep(0.01)
        awake = time.monotonic()
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        assert response.status == 200
        wakes_ms.append((awake - begin) * 1e3 - 10)
        answers_ms.append((time.monotonic() - awake) * 1e3)
    print(json.dumps({"answers_ms": answers_ms, "wakes_ms": wakes_ms}))


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def resident_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


def watch(server, clients, end):
    """Memory over time; fails on a request that gets nowhere."""
    begin, sizes = time.monotonic(), []
    states = [(begin, 0)]
    while any(client.thread.is_alive() for client in clients):
        time.sleep(0.5)
        now = time.monotonic()
        sizes.append((now - begin, resident_mib(server.process.pid)))
        if now - states[-1][0] > 5:
            states.append((now, server.metrics()["ds4_session_state_bytes"] / 2**20))
        stuck = [c.doing for c in clients if c.thread.is_alive() and now - c.since > 120]
        assert not stuck, f"stuck: {stuck}"
        assert server.process.poll() is None, "the server is gone"
    print("of it, states:", *(f"{size:.0f}" for _, size in states[1:]))
    return sizes


def run_load(options):
    arguments = ["--ctx", "8192", "--tool-memory-max-ids", "500"]
    pace = {} if options.nano else {"pass_us": 200, "prompt_token_us": 5}
    with Server(*arguments, rules=None if options.nano else RULES, **pace) as server:
        prober = Prober(server.port)
        end = time.monotonic() + options.seconds
        clients = [Client(server, number, end, options.nano) for number in range(options.clients)]
        for client in clients:
            client.thread.start()
        sizes = watch(server, clients, end)
        health = prober.stop()
        errors = [client.error for client in clients if client.error]
        wait_until(lambda: server.metrics()["ds4_requests_running"] == server.metrics()["ds4_requests_waiting"] == 0,
                   "the end of what was abandoned")
        metrics = server.metrics()
    done = {}
    for client in clients:
        for name, count in client.done.items():
            done[name] = done.get(name, 0) + count
    third = sizes[-1][0] / 3
    middle = [size for at, size in sizes if third <= at < 2 * third]
    last = [size for at, size in sizes if at >= 2 * third]
    growth = percentile(last, 0.9) - percentile(middle, 0.9) if middle else 0
    print(f"{options.clients} clients, {options.seconds} s, {'nano' if options.nano else 'script'}: {sum(done.values())} "
          f"actions {done}, {len(errors)} errors")
    parts = [[size for at, size in sizes if i * third / 2 <= at < (i + 1) * third / 2] for i in range(6)]
    print("memory by sixths of the time, at most:", *(f"{max(part):.0f}" for part in parts if part))
    print(f"memory: {sizes[0][1]:.0f} MiB at first, {max(s for _, s in sizes):.0f} at most, {sizes[-1][1]:.0f} at last; "
          f"from the middle third to the last {growth:+.1f}")
    for name, values in (("GET /health", health["answers_ms"]), ("waking up", health["wakes_ms"])):
        print(f"{name}: {len(values)} times, median {percentile(values, 0.5):.1f} ms, p99 {percentile(values, 0.99):.1f}, "
              f"worst {max(values):.1f}")
    assert not errors, "\n".join(errors[:5])
    assert metrics["ds4_sessions"] <= 8, metrics["ds4_sessions"]
    assert sum(done.values()) >= options.clients
    if options.seconds >= 60:
        assert growth < 0.05 * percentile(middle, 0.5) + 16, f"memory grows: {growth:.1f} MiB"
        assert percentile(health["answers_ms"], 0.99) < HEALTH_P99_MS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("DS4_LOAD_SECONDS", "8")))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--nano", action="store_true", help="the bundled model instead of a script")
    parser.add_argument("--probe", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        return probe(options.probe)
    if not os.path.exists(MODEL):
        print(f"skipped: there is no model {MODEL}")
        return sys.exit(77)
    return run_load(options)


if __name__ == "__main__":
    main()
