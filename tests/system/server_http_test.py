"""What surrounds the answers: keys, hosts, web pages, bodies, limits, errors, model lists, metrics."""
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import unittest
import warnings

import metrics_format
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
                # How Claude Code, opencode and Pi recognise that they have to compact the conversation.
                self.assertRegex(error["message"], r"prompt is too long[^0-9]*(\d+) tokens > 4096")
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
        for dialect in ALL_DIALECTS:
            dialect.ask(self.server, self.fresh() + "greet", stream=dialect.name == "chat")
        self.server.post(Chat.path, Chat().body([("user", "greet")], max_tokens=1))
        answer = self.server.get("/metrics")
        self.assertTrue(answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), answer.headers)
        metrics_format.check(answer.text)
        for name in ("ds4_requests_total", "ds4_request_queue_seconds_bucket", "ds4_sessions"):
            self.assertIn(name, answer.text)

    def test_promtool_finds_nothing(self):
        promtool = shutil.which("promtool")
        if not promtool:
            self.skipTest("there is no promtool (package prometheus)")
        self.server.post(Chat.path, Chat().body([("user", "greet")]))
        result = subprocess.run([promtool, "check", "metrics"], input=self.server.get("/metrics").text, text=True,
                                capture_output=True, timeout=60)
        self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))

    def test_the_check_of_metrics_finds_faults(self):
        good = ("# HELP a_total Things.\n# TYPE a_total counter\n" 'a_total{x="1"} 2\na_total{x="a\\"b"} 3\n'
                "# HELP s_seconds Time.\n# TYPE s_seconds histogram\n" 's_seconds_bucket{le="1"} 1\n'
                's_seconds_bucket{le="+Inf"} 2\ns_seconds_sum 3.5\ns_seconds_count 2\n')
        metrics_format.check(good)
        for old, new in ((" counter", " gauge"), ('"1"} 2', '"1"} x'), ('x="a\\"b"', 'x="1"'), ('a\\"b', 'a"b'),
                         ("# HELP a_total Things.\n", ""), ("# TYPE a_total counter\n", ""),
                         ("s_seconds_count 2", "s_seconds_count 3"), ('le="1"} 1', 'le="1"} 5'),
                         ('le="+Inf"', 'le="2"'), ("s_seconds_sum 3.5\n", ""), ("s_seconds_count 2\n", "s_seconds_count 2"),
                         ("s_seconds", "s_milliseconds"), ("# TYPE s", 'a_total{x="9"} 1\n# TYPE s'),
                         ('x="1"', 'x="1",x="2"'), ("a_total{", "b_total{"), ("{x", "{0x")):
            with self.assertRaises(ValueError, msg=(old, new)):
                metrics_format.check(good.replace(old, new))


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
        for method in ("GET", "POST", "DELETE"):  # responses can be deleted
            self.assertIn(method, preflight.headers["Access-Control-Allow-Methods"])
        self.assertEqual(answer.headers["Access-Control-Expose-Headers"], "*")  # what was applied is told there


@unittest.skipUnless(shutil.which("openssl"), "there is no openssl to make a certificate with")
class Tls(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.certificate, self.key = (os.path.join(self.folder.name, name) for name in ("cert.pem", "key.pem"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", self.key, "-out",
                        self.certificate], check=True, capture_output=True, timeout=60)

    def test_all_apis(self):
        with Server("--tls-cert", self.certificate, "--tls-key", self.key, rules=GREET) as server:
            server.trusted = ssl.create_default_context(cafile=self.certificate)
            self.assertIn("listening on https://", "".join(server.log))
            for dialect in ALL_DIALECTS:
                for stream in (False, True):
                    reply = dialect.ask(server, "greet", stream)
                    self.assertEqual((reply.content, reply.finish), ("Hello there!", "stop"))
            self.assertEqual(server.get("/health").status, 200)
            server.trusted = ssl.create_default_context()  # which does not know the certificate
            with self.assertRaises(ssl.SSLCertVerificationError):
                server.get("/health")
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.load_verify_locations(self.certificate)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                old.maximum_version = ssl.TLSVersion.TLSv1_1
            server.trusted = old
            with self.assertRaises((ssl.SSLError, ConnectionError)):
                server.get("/health")
            server.trusted = None
            with self.assertRaises((http.client.HTTPException, ConnectionError)):
                server.get("/health")  # plain text
            server.trusted = ssl.create_default_context(cafile=self.certificate)
            self.assertEqual(server.get("/health").status, 200, "the server does not mind")

    def test_files_that_do_not_fit_are_refused(self):
        for certificate, key in ((self.key, self.key), (self.certificate, self.certificate),
                                 (self.certificate, os.path.join(self.folder.name, "missing"))):
            result = subprocess.run([PROGRAM, "-m", MODEL, "--port", "0", "--tls-cert", certificate, "--tls-key", key],
                                    capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn(key if "missing" in key else "", result.stderr)


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
        for arguments in (["--no-such-option"], ["--port", "x"], ["--port"], ["--tls-cert", "x"],
                          ["--cors-origin", "example.com"], ["--cors-origin", "https://example.com/"],
                          ["--allowed-host", "https://example.com"], ["--allowed-host", "a b"], ["--api-key", ""]):
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
            self.assertNotIn("context", error)  # said before the model is loaded

    def test_mistakes_are_told_before_the_model_is_loaded(self):
        for arguments in (["--host", "localhost.example", "--api-key", "x"], ["--api-key", "two words"],
                          ["--tls-cert", MODEL, "--tls-key", MODEL], ["--api-key-file", "/no/such/file"]):
            status, _, error = self.refused("-m", MODEL, "--port", "0", *arguments)
            self.assertEqual(status, 1, arguments)
            self.assertNotIn("context", error, arguments)

    def test_effort_profile(self):
        for profile, high in (("preview", "high"), ("0731", "max")):
            with Server("--effort-profile", profile, rules=GREET) as server:
                answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}],
                                                              "reasoning_effort": "high"})
                self.assertEqual(answer.headers["x-ds4-thinking"], high)
                self.assertEqual(server.get("/props").json["default_generation_settings"]["effort_profile"], profile)


if __name__ == "__main__":
    main()
