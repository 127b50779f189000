"""What surrounds the answers: keys, hosts, web pages, bodies, limits, errors, model lists, metrics."""
import json
import os
import re
import socket
import subprocess
import tempfile
import unittest

from server_support import ALL_DIALECTS, MODEL, PROGRAM, Chat, Messages, Server, ServerTest, main

GREET = [("greet", "A greeting.</think>Hello there!")]


class Endpoints(ServerTest):
    rules = GREET
    arguments = ("--ctx", "4096", "-n", "1000", "--log-level", "debug")

    def test_health(self):
        answer = self.server.get("/health")
        self.assertEqual((answer.status, answer.json["status"]), (200, "ok"))
        self.assertEqual(self.server.request("HEAD", "/health").status, 200)

    def test_models_tell_sizes_in_every_spelling(self):
        body = self.server.get("/v1/models").json
        model = body["data"][0]
        self.assertEqual(body["object"], "list")
        for name in ("context_length", "context_window", "max_context_length", "max_model_len", "max_input_tokens"):
            self.assertEqual(model[name], 4096, name)
        for name in ("max_output_tokens", "max_completion_tokens", "max_tokens"):
            self.assertEqual(model[name], 1000, name)
        self.assertEqual(self.server.get(f"/v1/models/{model['id']}").json["id"], model["id"])
        answer = self.server.get("/v1/models/gpt-unknown")
        self.assertEqual((answer.status, answer.error["code"]), (404, "model_not_found"))

    def test_defaults_are_told(self):
        settings = self.server.get("/props").json["default_generation_settings"]
        self.assertEqual(settings["n_ctx"], 4096)
        self.assertEqual(settings["max_tokens"], 1000)
        logged = self.server.logged("defaults:")[0]
        self.assertIn(f"min_p {settings['min_p']}", logged)

    def test_unknown_endpoints_and_methods(self):
        self.assertEqual(self.server.get("/v1/nothing").status, 404)
        answer = self.server.get(Chat.path)
        self.assertEqual((answer.status, "POST" in answer.headers["Allow"]), (405, True))
        self.assertEqual(self.server.request("OPTIONS", Chat.path).status, 204)

    def test_bodies_that_are_not_json(self):
        for dialect in ALL_DIALECTS:
            for body in ("", "{", "[]", "null", '{"messages": [}', '{"messages": ' + "[" * 300 + "]" * 300 + "}",
                         b'{"messages": "\xff"}'):
                answer = self.server.post(dialect.path, body)
                self.assertEqual(answer.status, 400, (dialect.name, body))
                self.assertEqual(answer.error["type"], "invalid_request_error")
                self.assertEqual(answer.json.get("type"), "error" if dialect.name == "messages" else None)

    def test_overflow_is_typed_and_comes_before_a_stream(self):
        text = "word " * 5000
        for dialect in ALL_DIALECTS:
            for stream in (False, True):
                answer = self.server.post(dialect.path, dialect.body([("user", text)], stream))
                self.assertEqual(answer.status, 400)
                self.assertTrue(answer.headers["Content-Type"].startswith("application/json"))
                error = answer.error
                self.assertEqual(error["n_ctx"], 4096)
                self.assertGreater(error["n_prompt_tokens"], 4096)
                self.assertRegex(error["message"], r"^Prompt has \d+ tokens, but the configured context size is 4096")
                if dialect.name != "messages":
                    self.assertEqual(error["code"], "context_length_exceeded")
                    self.assertEqual(error["param"], "input" if dialect.name == "responses" else "messages")
        answer = self.server.post("/v1/completions", {"prompt": text})
        self.assertEqual((answer.status, answer.error["param"]), (400, "prompt"))

    def test_chunked_bodies(self):
        data = json.dumps(Chat().body([("user", "greet")])).encode()
        connection = self.server.connect()
        connection.request("POST", Chat.path, iter([data[:7], data[7:40], data[40:]]), encode_chunked=True,
                           headers={"Transfer-Encoding": "chunked"})
        response = connection.getresponse()
        self.assertEqual(response.status, 200)
        self.assertIn("Hello there!", response.read().decode())
        connection.close()

    def test_connections_are_kept_and_requests_may_be_sent_ahead(self):
        data = json.dumps(Chat().body([("user", "greet")])).encode()
        request = (f"POST {Chat.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n").encode() + data
        last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.server.port), 30) as connection:
            connection.sendall(request + request + last)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 3)
        self.assertEqual(answer.count(b"Hello there!"), 2)

    def test_expect_continue(self):
        data = json.dumps(Chat().body([("user", "greet")])).encode()
        head = (f"POST {Chat.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
                "Expect: 100-continue\r\nConnection: close\r\n\r\n").encode()
        with socket.create_connection(("127.0.0.1", self.server.port), 30) as connection:
            connection.sendall(head)
            self.assertIn(b" 100 ", connection.recv(1000))
            connection.sendall(data)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        self.assertIn(b"Hello there!", answer)

    def test_sizes_are_limited(self):
        with socket.create_connection(("127.0.0.1", self.server.port), 30) as connection:
            connection.sendall(f"POST {Chat.path} HTTP/1.1\r\nHost: localhost\r\n"
                               f"Content-Length: {1 << 40}\r\n\r\n".encode())
            self.assertIn(b" 413 ", connection.recv(1000))
        self.assertEqual(self.server.request("GET", "/health", headers={"x-long": "x" * 100000}).status, 431)
        self.assertEqual(self.server.get("/health?" + "x" * 20000).status, 414)

    def test_other_hosts_are_refused(self):
        for host in ("evil.example", "evil.example:80", f"localhost.evil.example:{self.server.port}"):
            self.assertEqual(self.server.get("/v1/models", Host=host).status, 403, host)
        for host in ("localhost", f"127.0.0.1:{self.server.port}", "[::1]", "LOCALHOST:1"):
            self.assertEqual(self.server.get("/v1/models", Host=host).status, 200, host)

    def test_web_pages_are_refused(self):
        answer = self.server.get("/v1/models", Origin="https://evil.example")
        self.assertEqual((answer.status, answer.headers["Access-Control-Allow-Origin"]), (403, None))

    def test_refusals_are_logged(self):
        self.server.get("/v1/not-there")
        self.assertIn("status=404", self.server.logged("/v1/not-there")[0])

    def test_metrics_have_the_text_format(self):
        Chat().ask(self.server, "greet")
        text = self.server.get("/metrics").text
        self.assertTrue(text.endswith("\n"))
        types, seen, buckets = {}, set(), {}
        name_pattern = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
        label = name_pattern + r'="(?:[^"\\\n]|\\["\\n])*"'
        for line in text.splitlines():
            if line.startswith("#"):
                kind, name, rest = re.fullmatch(rf"# (HELP|TYPE) ({name_pattern}) (.+)", line).groups()
                if kind == "TYPE":
                    self.assertNotIn(name, types, "two families of one name")
                    self.assertIn(rest, ("counter", "gauge", "histogram"))
                    types[name] = rest
                continue
            found = re.fullmatch(rf"({name_pattern})(?:\{{({label}(?:,{label})*)\}})? (\S+)", line)
            self.assertIsNotNone(found, line)
            name, labels, value = found.groups()
            self.assertNotIn((name, labels), seen, "a sample twice")
            seen.add((name, labels))
            float(value)
            family = name if name in types else re.sub("_(bucket|sum|count)$", "", name)
            self.assertIn(family, types, f"{name} has no TYPE")
            self.assertEqual(family, list(types)[-1], "samples stand behind their TYPE line")
            if types[family] == "counter":
                self.assertTrue(name.endswith("_total"), name)
                self.assertGreaterEqual(float(value), 0)
            if types[family] == "histogram" and name.endswith("_bucket"):
                buckets.setdefault(family, []).append((float(labels[4:-1].replace("+Inf", "inf")), float(value)))
            elif types[family] == "histogram" and name.endswith("_count"):
                self.assertEqual(buckets[family][-1], (float("inf"), float(value)))
        for family, rows in buckets.items():
            self.assertEqual(rows, sorted(rows), family)
            self.assertEqual([value for _, value in rows], sorted(value for _, value in rows), family)
        for name in ("ds4_requests_total", "ds4_prompt_tokens_total", "ds4_prompt_tokens_cached_total",
                     "ds4_generation_tokens_total", "ds4_time_to_first_token_seconds", "ds4_requests_waiting",
                     "ds4_prompt_cache_total"):
            self.assertIn(name, types)


class Keys(ServerTest):
    rules = GREET

    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile("w", suffix=".keys", delete=False) as cls.file:
            cls.file.write("first-key\nsecond-key  \n\n")
        cls.server = Server("--api-key", "given-key", "--api-key-file", cls.file.name, "--allowed-host", "box.local",
                            "--cors-origin", "https://app.example", rules=cls.rules)

    @classmethod
    def tearDownClass(cls):
        os.unlink(cls.file.name)
        super().tearDownClass()

    def test_keys(self):
        for key in ("given-key", "first-key", "second-key"):
            for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
                self.assertEqual(self.server.get("/v1/models", **headers).status, 200, headers)
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": ""}, {"Authorization": "given-key"}):
            answer = self.server.get("/v1/models", **headers)
            self.assertEqual(answer.status, 401, headers)
        answer = self.server.post(Messages.path, {})
        self.assertEqual((answer.status, answer.error["type"]), (401, "authentication_error"))
        self.assertEqual(self.server.get("/health").status, 200)
        self.assertEqual(self.server.get("/metrics").status, 401)

    def test_keys_are_not_logged(self):
        self.server.get("/v1/models", Authorization="Bearer given-key")
        self.assertNotIn("given-key", "".join(self.server.log))

    def test_named_host(self):
        key = {"x-api-key": "given-key"}
        self.assertEqual(self.server.get("/v1/models", Host="box.local:8000", **key).status, 200)
        self.assertEqual(self.server.get("/v1/models", Host="other.local", **key).status, 403)

    def test_named_origin(self):
        key = {"x-api-key": "given-key"}
        answer = self.server.get("/v1/models", Origin="https://app.example", **key)
        self.assertEqual((answer.status, answer.headers["Access-Control-Allow-Origin"]), (200, "https://app.example"))
        self.assertEqual(self.server.get("/v1/models", Origin="https://evil.example", **key).status, 403)
        preflight = self.server.request("OPTIONS", Chat.path, headers={
            "Origin": "https://app.example", "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type"})
        self.assertEqual(preflight.status, 204)
        self.assertIn("POST", preflight.headers["Access-Control-Allow-Methods"])


class Start(unittest.TestCase):
    def refused(self, *arguments):
        result = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)
        return result.returncode, result.stdout, result.stderr

    def test_usage(self):
        status, out, _ = self.refused("--help")
        self.assertEqual(status, 0)
        for option in ("--host", "--api-key-file", "--cors", "--trace", "--sessions", "--drain-seconds"):
            self.assertIn(option, out)
        with open(os.path.join(os.path.dirname(__file__), "../../docs/server.md"), encoding="utf-8") as file:
            documented = set(re.findall(r"--[a-z-]+", file.read()))
        self.assertEqual(set(re.findall(r"(?<!\w)--[a-z-]+", out)) - documented, set())
        for arguments in (["--no-such-option"], ["--port", "x"], ["--port"], ["--tls-cert", "x"]):
            status, out, error = self.refused(*arguments)
            self.assertEqual((status, out), (2, ""), arguments)
            self.assertIn("usage", error)

    def test_other_addresses_need_a_key(self):
        status, _, error = self.refused("-m", MODEL, "--host", "0.0.0.0", "--port", "0")
        self.assertEqual(status, 1)
        self.assertIn("API key", error)
        self.assertIn("--allow-unauthenticated", error)
        self.assertNotIn("context", error)  # said before the model is loaded
        with Server("--host", "0.0.0.0", "--allow-unauthenticated", rules=GREET) as server:
            self.assertEqual(server.get("/health").status, 200)

    def test_ports_in_use_are_told(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            status, _, error = self.refused("-m", MODEL, "--port", port)
            self.assertEqual(status, 1)
            self.assertIn(port, error)


if __name__ == "__main__":
    main()
