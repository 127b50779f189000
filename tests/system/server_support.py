"""Running `ds4-server` from tests, with a model or with a script, and talking to it in all dialects."""
import contextlib
import functools
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAM = os.environ.get("DS4_SERVER_PROGRAM", "ds4-server")
SCRIPTED = os.environ.get("DS4_SCRIPTED_SERVER", "ds4-scripted-server")
CLI = os.environ.get("DS4_PROGRAM", "ds4")
MODEL = os.environ.get("DS4_MODEL", "models/nano/nano.gguf")
TIMEOUT_S = 60

DSML = "｜DSML｜"


def parameter(name, value):
    kind, text = ("true", value) if isinstance(value, str) else ("false", json.dumps(value))
    return f'<{DSML}parameter name="{name}" string="{kind}">{text}</{DSML}parameter>\n'


def call(name, **parameters):
    """One call as the model writes it."""
    body = "".join(parameter(*item) for item in parameters.items())
    return f'<{DSML}invoke name="{name}">\n{body}</{DSML}invoke>\n'


def block(*calls):
    return f"\n\n<{DSML}tool_calls>\n{''.join(calls)}</{DSML}tool_calls>"


def function(name, **properties):
    """A tool in the neutral form: its name and the JSON schema of its arguments."""
    return {"name": name, "description": f"The tool {name}.",
            "parameters": {"type": "object", "properties": properties, "required": list(properties)}}


TEXT = {"type": "string"}
SHELL = function("shell", command=TEXT)


class Server:
    """A running server. Leaving the context asks it to stop and checks that it ends well."""

    def __init__(self, *arguments, rules=None, pass_us=0, prompt_token_us=0, breaks_at="", env=None):
        self.rules_file = None
        command = [PROGRAM]
        if rules is not None:
            rules = [dict(zip(("when", "text"), rule)) if isinstance(rule, tuple) else rule for rule in rules]
            script = {"replies": rules + [{"when": "", "text": "Well.</think>Fine."}], "pass_us": pass_us,
                      "prompt_token_us": prompt_token_us, "breaks_at": breaks_at}
            with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as self.rules_file:
                json.dump(script, self.rules_file)
            command = [SCRIPTED, self.rules_file.name]
        self.log = []
        self.process = subprocess.Popen(command + ["-m", MODEL, "--port", "0", *arguments], env=env,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        text=True)
        self.port = None
        self.trusted = None  # certificates (ssl.SSLContext), to speak HTTPS
        self.listening = threading.Event()
        self.reader = threading.Thread(target=self.read_log, daemon=True)
        self.reader.start()
        if not self.listening.wait(TIMEOUT_S) or self.port is None:
            self.kill()
            raise AssertionError("the server does not listen:\n" + "".join(self.log))

    def read_log(self):
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"listening on https?://\S+:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                self.listening.set()
        self.listening.set()

    def logged(self, pattern, count=1):
        """The lines of the log with a pattern, once there are enough of them."""
        lines = []

        def enough():
            lines[:] = [line for line in list(self.log) if re.search(pattern, line)]
            return len(lines) >= count
        wait_until(enough, f"{pattern!r} in the log")
        return lines

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None or self.process.poll() is not None:
            if kind is not None:
                sys.stderr.write("".join(self.log[-40:]))
            self.kill()
            return
        status = self.stop()
        if status != 0:
            raise AssertionError(f"the server ended with {status}:\n" + "".join(self.log[-40:]))

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.end()

    def end(self):
        status = self.process.wait(TIMEOUT_S)
        self.reader.join(5)
        self.clean()
        return status

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.clean()

    def clean(self):
        self.process.stderr.close()
        if self.rules_file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.rules_file.name)

    # Requests

    def connect(self):
        if self.trusted:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=TIMEOUT_S, context=self.trusted)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)

    def request(self, method, path, body=None, headers=None):
        """One request on a connection of its own: Answer."""
        connection = self.connect()
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            data = data.encode() if isinstance(data, str) else data
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read().decode())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.request("GET", path, headers=headers)

    def post(self, path, body, headers=None):
        return self.request("POST", path, body, headers)

    def open(self, path, body, headers=None, version="1.1"):
        """Sends a request and returns the raw socket, for clients that leave or read slowly."""
        data = json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S)
        lines = [f"POST {path} HTTP/{version}", "Host: localhost", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        return connection

    def metrics(self):
        """Samples by name with labels; metrics_format.py checks the format."""
        samples = {}
        for line in self.get("/metrics").text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                samples[name] = float(value)
        return samples

    def offers(self, path):
        return self.post(path, {}).status != 404


class Answer:
    def __init__(self, status, headers, text):
        self.status, self.headers, self.text = status, headers, text

    @property
    def json(self):
        return json.loads(self.text)

    @property
    def error(self):
        return self.json["error"]


def wait_until(condition, what, timeout=TIMEOUT_S):
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"this did not come: {what}")
        time.sleep(0.01)


def parse_events(text):
    """[(event or None, data)] of a stream of server-sent events; comments are dropped."""
    events = []
    for part in text.split("\n\n"):
        name, data = None, []
        for line in part.split("\n"):
            if line.startswith("event: "):
                name = line[len("event: "):]
            elif line.startswith("data: "):
                data.append(line[len("data: "):])
            elif line and not line.startswith(":"):
                raise AssertionError(f"a line that belongs to no event: {line!r}")
        if data:
            events.append((name, "\n".join(data)))
    return events


class Reply:
    """An answer in the neutral form, whatever the dialect."""

    def __init__(self):
        self.status = 200
        self.content = self.reasoning = ""
        self.calls = []  # (id, name, arguments as text)
        self.finish = None  # stop, length, tool_calls, error
        self.stop_sequence = None
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = self.reasoning_tokens = None
        self.error = None
        self.headers = {}
        self.raw = None
        self.id = None

    def arguments(self, index=0):
        return json.loads(self.calls[index][2])


class Dialect:
    """Neutral messages: ("system", text), ("user", text), ("assistant", text, calls, reasoning), ("tool", id, text)."""
    path = name = None

    def body(self, messages, stream=False, tools=(), **options):
        raise NotImplementedError

    def ask(self, server, messages, stream=False, headers=None, **options):
        if isinstance(messages, str):
            messages = [("user", messages)]
        answer = server.post(self.path, self.body(messages, stream, **options), headers)
        reply = Reply()
        reply.status, reply.headers, reply.raw = answer.status, answer.headers, answer.text
        if answer.status != 200:
            reply.error = answer.error
        elif stream:
            assert answer.headers["Content-Type"].startswith("text/event-stream"), answer.headers["Content-Type"]
            self.read_stream(parse_events(answer.text), reply)
        else:
            self.read_body(answer.json, reply)
        return reply


def assistant(reply):
    """What a client sends back of a reply."""
    return ("assistant", reply.content, list(reply.calls), reply.reasoning)


def turn_of(message):
    role, text = message[0], message[1]
    calls = message[2] if len(message) > 2 and role == "assistant" else []
    reasoning = message[3] if len(message) > 3 else None
    return role, text, calls, reasoning


class Chat(Dialect):
    path, name = "/v1/chat/completions", "chat"
    keepalive = '"delta":{}'

    def body(self, messages, stream=False, tools=(), thinking=True, max_tokens=None, stop=None, choice=None,
             schema=None, extra=None):
        body = {"model": "test", "messages": [self.message(message) for message in messages], "temperature": 0}
        if stream:
            body.update(stream=True, stream_options={"include_usage": True})
        if tools:
            body["tools"] = [{"type": "function", "function": tool} for tool in tools]
        if not thinking:
            body["thinking"] = {"type": "disabled"}
        if choice:
            body["tool_choice"] = choice if choice in ("none", "auto", "required") else {
                "type": "function", "function": {"name": choice}}
        if schema:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        if stop:
            body["stop"] = stop
        body.update(extra or {})
        return body

    @staticmethod
    def message(message):
        role, text, calls, reasoning = turn_of(message)
        if role == "tool":
            return {"role": "tool", "tool_call_id": message[1], "content": message[2]}
        result = {"role": role, "content": text}
        if reasoning:
            result["reasoning_content"] = reasoning
        if calls:
            result["tool_calls"] = [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
                                    for id, name, arguments in calls]
        return result

    def read_body(self, body, reply):
        choice = body["choices"][0]
        message = choice["message"]
        assert isinstance(message["content"], str), message
        reply.id = body["id"]
        reply.content, reply.reasoning = message["content"], message.get("reasoning_content", "")
        for tool_call in message.get("tool_calls", []):
            reply.calls.append((tool_call["id"], tool_call["function"]["name"], tool_call["function"]["arguments"]))
        reply.finish, reply.stop_sequence = choice["finish_reason"], choice.get("stop_reason")
        self.read_usage(body["usage"], reply)

    def read_stream(self, events, reply):
        assert events[-1] == (None, "[DONE]"), events[-1]
        calls = {}
        for name, data in events[:-1]:
            chunk = json.loads(data)
            if name == "error":
                reply.error, reply.finish = chunk["error"], "error"
                continue
            assert chunk["object"] == "chat.completion.chunk", chunk
            reply.id = chunk["id"]
            if not chunk["choices"]:
                self.read_usage(chunk["usage"], reply)
                continue
            choice = chunk["choices"][0]
            delta = choice["delta"]
            assert reply.finish is None, f"after the end: {chunk}"
            reply.content += delta.get("content") or ""
            reply.reasoning += delta.get("reasoning_content") or ""
            for piece in delta.get("tool_calls", []):
                index = piece["index"]
                if "id" in piece:
                    assert index not in calls and piece["type"] == "function", piece
                    calls[index] = [piece["id"], piece["function"]["name"], ""]
                calls[index][2] += piece["function"]["arguments"]
            if choice["finish_reason"]:
                reply.finish, reply.stop_sequence = choice["finish_reason"], choice.get("stop_reason")
        reply.calls = [tuple(calls[index]) for index in sorted(calls)]

    @staticmethod
    def read_usage(usage, reply):
        reply.prompt_tokens, reply.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        assert usage["total_tokens"] == reply.prompt_tokens + reply.completion_tokens, usage
        reply.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        reply.reasoning_tokens = usage["completion_tokens_details"]["reasoning_tokens"]


class Messages(Dialect):
    path, name = "/v1/messages", "messages"
    keepalive = "event: ping"
    FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}

    def body(self, messages, stream=False, tools=(), thinking=True, max_tokens=None, stop=None, choice=None,
             schema=None, extra=None):
        system = [message[1] for message in messages if message[0] == "system"]
        body = {"model": "test", "max_tokens": 4096 if max_tokens is None else max_tokens, "temperature": 0,
                "thinking": {"type": "enabled", "budget_tokens": 4096} if thinking else {"type": "disabled"},
                "messages": [self.message(message) for message in messages if message[0] != "system"]}
        if system:
            body["system"] = "\n\n".join(system)
        if stream:
            body["stream"] = True
        if tools:
            body["tools"] = [{"name": tool["name"], "description": tool["description"],
                              "input_schema": tool["parameters"]} for tool in tools]
        if choice:
            kinds = {"none": "none", "auto": "auto", "required": "any"}
            body["tool_choice"] = {"type": kinds[choice]} if choice in kinds else {"type": "tool", "name": choice}
        if schema:
            body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        if stop:
            body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        body.update(extra or {})
        return body

    @staticmethod
    def message(message):
        role, text, calls, reasoning = turn_of(message)
        if role == "tool":
            return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": message[1],
                                                 "content": message[2]}]}
        if role == "user":
            return {"role": "user", "content": text}
        parts = [{"type": "thinking", "thinking": reasoning, "signature": "x"}] if reasoning else []
        parts += [{"type": "text", "text": text}] if text else []
        parts += [{"type": "tool_use", "id": id, "name": name, "input": json.loads(arguments)}
                  for id, name, arguments in calls]
        return {"role": role, "content": parts}

    def read_body(self, body, reply):
        reply.id = body["id"]
        for part in body["content"]:
            if part["type"] == "text":
                reply.content += part["text"]
            elif part["type"] == "thinking":
                reply.reasoning += part["thinking"]
            else:
                reply.calls.append((part["id"], part["name"], json.dumps(part["input"], ensure_ascii=False,
                                                                         separators=(",", ":"))))
        reply.finish, reply.stop_sequence = self.FINISH[body["stop_reason"]], body["stop_sequence"]
        self.read_usage(body["usage"], reply)

    def read_stream(self, events, reply):
        kinds = [json.loads(data)["type"] for _, data in events]
        assert kinds == [name for name, _ in events], "event names and types differ"
        assert kinds[0] == "message_start", kinds[0]
        assert kinds[-1] in ("message_stop", "error"), kinds[-1]
        blocks, is_open = [], False
        for _, data in events:
            event = json.loads(data)
            kind = event["type"]
            if kind == "message_start":
                self.read_usage(event["message"]["usage"], reply)
                reply.id = event["message"]["id"]
            elif kind == "content_block_start":
                assert not is_open and event["index"] == len(blocks), event
                blocks.append([event["content_block"], ""])
                is_open = True
            elif kind == "content_block_delta":
                assert is_open and event["index"] == len(blocks) - 1, event
                delta = event["delta"]
                blocks[-1][1] += delta.get("text", delta.get("thinking", delta.get("partial_json", "")))
            elif kind == "content_block_stop":
                assert is_open and event["index"] == len(blocks) - 1, event
                is_open = False
            elif kind == "message_delta":
                assert not is_open, "a block is left open"
                reply.finish = self.FINISH[event["delta"]["stop_reason"]]
                reply.stop_sequence = event["delta"]["stop_sequence"]
                self.read_usage(event["usage"], reply)
            elif kind == "error":
                reply.error, reply.finish = event["error"], "error"
        for start, text in blocks:
            if start["type"] == "text":
                reply.content += text
            elif start["type"] == "thinking":
                reply.reasoning += text
            else:
                reply.calls.append((start["id"], start["name"], text))

    @staticmethod
    def read_usage(usage, reply):
        reply.cached_tokens = usage["cache_read_input_tokens"]
        reply.prompt_tokens = usage["input_tokens"] + reply.cached_tokens + usage["cache_creation_input_tokens"]
        reply.completion_tokens = usage["output_tokens"]
        reply.reasoning_tokens = usage.get("output_tokens_details", {}).get("reasoning_tokens")


class Responses(Dialect):
    path, name = "/v1/responses", "responses"
    keepalive = "response.in_progress"

    def body(self, messages, stream=False, tools=(), thinking=True, max_tokens=None, stop=None, choice=None,
             schema=None, extra=None):
        body = {"model": "test", "temperature": 0, "input": [item for message in messages
                                                            for item in self.items(message)],
                "reasoning": {"summary": "auto"} if thinking else {"effort": "none"}}
        if stream:
            body["stream"] = True
        if tools:
            body["tools"] = [{"type": "function", **tool} for tool in tools]
        if choice:
            body["tool_choice"] = choice if choice in ("none", "auto", "required") else {
                "type": "function", "name": choice}
        if schema:
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema}}
        if max_tokens is not None:
            body["max_output_tokens"] = max_tokens
        if stop:
            body["stop"] = stop
        body.update(extra or {})
        return body

    @staticmethod
    def items(message):
        role, text, calls, reasoning = turn_of(message)
        if role == "tool":
            return [{"type": "function_call_output", "call_id": message[1], "output": message[2]}]
        items = []
        if reasoning:
            items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": reasoning}]})
        if text or not calls:
            kind = "output_text" if role == "assistant" else "input_text"
            items.append({"type": "message", "role": role, "content": [{"type": kind, "text": text}]})
        items += [{"type": "function_call", "call_id": id, "name": name, "arguments": arguments}
                  for id, name, arguments in calls]
        return items

    def read_body(self, body, reply):
        reply.id = body["id"]
        for item in body["output"]:
            if item["type"] == "message":
                reply.content += "".join(part["text"] for part in item["content"])
            elif item["type"] == "reasoning":
                reply.reasoning += "".join(part["text"] for part in item["summary"])
            elif item["type"] == "function_call":
                reply.calls.append((item["call_id"], item["name"], item["arguments"]))
        status = body["status"]
        reply.finish = {"completed": "tool_calls" if reply.calls else "stop", "incomplete": "length",
                        "failed": "error"}[status]
        reply.error = body.get("error")
        usage = body["usage"]
        reply.prompt_tokens, reply.completion_tokens = usage["input_tokens"], usage["output_tokens"]
        assert usage["total_tokens"] == reply.prompt_tokens + reply.completion_tokens, usage
        reply.cached_tokens = usage["input_tokens_details"]["cached_tokens"]
        reply.reasoning_tokens = usage["output_tokens_details"]["reasoning_tokens"]

    def read_stream(self, events, reply):
        parsed = [json.loads(data) for _, data in events]
        assert [event["sequence_number"] for event in parsed] == list(range(len(parsed))), "sequence numbers"
        assert parsed[0]["type"] == "response.created", parsed[0]
        last = parsed[-1]
        assert last["type"] in ("response.completed", "response.incomplete", "response.failed"), last
        opened = [event for event in parsed if event["type"] == "response.output_item.added"]
        done = [event for event in parsed if event["type"] == "response.output_item.done"]
        assert [e["output_index"] for e in opened] == list(range(len(opened))), "output indices"
        # A call that is dropped is never done, and so never acted on.
        left = {e["output_index"] for e in opened if e["item"]["type"] == "function_call"}
        left -= {e["output_index"] for e in done}
        assert sorted([e["output_index"] for e in done] + list(left)) == list(range(len(opened))), "items not closed"
        self.read_body(last["response"], reply)
        text = "".join(e["delta"] for e in parsed if e["type"] == "response.output_text.delta")
        assert text == reply.content, "the pieces are not the whole text"
        pieces = {}
        for event in parsed:
            if event["type"] == "response.function_call_arguments.delta":
                pieces[event["item_id"]] = pieces.get(event["item_id"], "") + event["delta"]
        for item in last["response"]["output"]:
            if item["type"] == "function_call":
                assert pieces.get(item["id"], "") == item["arguments"], "the pieces are not the whole arguments"


ALL_DIALECTS = [Chat(), Responses(), Messages()]


def in_all_dialects(test):
    """Runs a test(self, dialect, stream) in every dialect, whole and streamed."""
    @functools.wraps(test)
    def run(self):
        for dialect in ALL_DIALECTS:
            for stream in (False, True):
                with self.subTest(dialect=dialect.name, stream=stream):
                    test(self, dialect, stream)
    return run


class ServerTest(unittest.TestCase):
    """One server for all tests of a class. Subclasses set `rules`, or None for the bundled model."""
    rules = []
    arguments = ()
    pace = {}
    maxDiff = None
    conversations = 0

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.arguments, rules=cls.rules, **cls.pace)

    @classmethod
    def tearDownClass(cls):
        with cls.server:
            pass

    @staticmethod
    def fresh():
        """Words that make the next prompt a new conversation."""
        ServerTest.conversations += 1
        return f"(conversation {ServerTest.conversations}) "


def main():
    if not os.path.exists(MODEL):
        print(f"skipped: there is no model {MODEL}")
        sys.exit(77)
    unittest.main(verbosity=1)
