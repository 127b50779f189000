"""Conversations on disk: they come back after a restart, a kill, an eviction, damage; two servers share a folder; the
space is kept."""
import os
import random
import subprocess
import tempfile
import threading
import unittest

from server_support import MODEL, PROGRAM, Chat, Messages, Responses, SHELL, Server, block, call, main, wait_until

SYSTEM = "You are a helpful assistant. " + "The cat sat on the mat and looked at the moon. " * 60
TOPICS = ("salt", "rain", "iron", "glass", "bread", "paper", "wool", "stone")


def ask(server, messages, max_tokens=24):
    """A greedy answer: its text with exact scores, and how many tokens of the prompt were there already."""
    body = Chat().body(messages, False, thinking=False, max_tokens=max_tokens, extra={"logprobs": True})
    answer = server.post(Chat.path, body)
    assert answer.status == 200, answer.text
    choice, usage = answer.json["choices"][0], answer.json["usage"]
    scores = [(entry["token"], entry["logprob"]) for entry in choice["logprobs"]["content"]]
    return choice["message"]["content"], scores, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def conversation(topic):
    return [("system", SYSTEM), ("user", f"Tell me about {topic}.")]


def files_under(folder):
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            try:
                found.append((path, os.stat(path).st_size))
            except FileNotFoundError:
                pass
    return found


class DiskTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.join(folder.name, "kv")

    def server(self, *arguments, **options):
        return Server("--kv-disk-dir", self.folder, *arguments, **options)

    def written(self, server, entries=1):
        wait_until(lambda: server.metrics()["ds4_disk_cache_entries"] >= entries, "states on disk")

    def assert_warm(self, prompt, cached, shared=0.95):
        self.assertGreaterEqual(cached, shared * prompt - 128, (cached, prompt))


class Nano(DiskTest):
    def test_after_a_restart(self):
        first = conversation("salt")
        with self.server() as server:
            answer, _, _, cached = ask(server, first)
            self.assertEqual(cached, 0)
            second = first + [("assistant", answer), ("user", "And about rain?")]
            live = ask(server, second)
        self.assertGreater(live[3], 500)
        for path, _ in files_under(self.folder):
            self.assertEqual(os.stat(path).st_mode & 0o077, 0, path)
        self.assertEqual(os.stat(self.folder).st_mode & 0o777, 0o700)
        with self.server() as server:
            restored = ask(server, second)
            self.assertEqual(restored[:2], live[:2])
            self.assert_warm(restored[2], restored[3])
            again = ask(server, second)
            self.assertEqual(again[:2], live[:2])
            other = ask(server, conversation("iron"))
            self.assertGreater(other[3], 500)  # the common beginning
            self.assertTrue(server.logged(r'disk="?hit'))
            self.assertGreaterEqual(server.metrics()["ds4_disk_cache_hits_total"], 1)
        with Server() as server:
            self.assertEqual(ask(server, second)[:2], live[:2])
            self.assertEqual(ask(server, conversation("iron"))[:2], other[:2])

    def test_after_a_kill(self):
        first = conversation("salt")
        server = self.server()
        answer = ask(server, first)[0]
        self.written(server)
        second = first + [("assistant", answer), ("user", "And about rain?")]
        live = ask(server, second)
        server.kill()
        with self.server() as server:
            restored = ask(server, second)
            self.assertEqual(restored[:2], live[:2])
            self.assertGreater(restored[3], 500)

    def test_thinking_conversations_after_restarts(self):
        # What was reasoned is left out of the next prompt, so that is no continuation of the whole state.
        talk, before = [("system", SYSTEM)], 0
        for _ in range(4):
            talk.append(("user", "And what about the moon over the hills? " * 20))
            with self.server(rules=[]) as server:
                reply = Chat().ask(server, talk)
                self.assertEqual((reply.content, reply.reasoning), ("Fine.", "Well."))
                if before > 0:
                    self.assertEqual(reply.cached_tokens, before - 1)
                before = reply.prompt_tokens
                talk.append(("assistant", reply.content))
        # The first is before the first question; none has a reply at its end.
        self.assertEqual(len([name for name, _ in files_under(self.folder) if name.endswith(".fr")]), 5)

    def test_more_conversations_than_memory_holds(self):
        with self.server("--sessions", "1") as server:
            answers = {}
            for topic in TOPICS[:3]:
                own = [("system", topic + " " + SYSTEM), ("user", f"Tell me about {topic}.")]
                answers[topic] = (own, ask(server, own))
            for topic in TOPICS[:3]:
                own, live = answers[topic]
                again = ask(server, own)
                self.assertEqual(again[:2], live[:2])
                self.assert_warm(again[2], again[3])

    def test_damage_costs_time_only(self):
        first = conversation("salt")
        with self.server() as server:
            live = ask(server, first)
        rng = random.Random(5)
        for path, size in files_under(self.folder):
            if path.endswith((".seg", ".fr", ".sqlite")):
                with self.subTest(path[-12:]):
                    self.damage_and_ask(first, live, path, rng.randrange(size), 1 << rng.randrange(8))

    def damage_and_ask(self, first, live, path, at, bits):
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ bits]))
        with self.server() as server:
            self.assertEqual(ask(server, first)[:2], live[:2])
        with self.server() as server:
            again = ask(server, first)
            self.assertEqual(again[:2], live[:2])
            self.assert_warm(again[2], again[3])

    def test_another_model_finds_nothing(self):
        first = conversation("salt")
        with self.server() as server:
            live = ask(server, first)
        with self.server("--quality") as server:
            self.assertEqual(ask(server, first)[3], 0)
        with self.server() as server:
            self.assertEqual(ask(server, first)[:2], live[:2])

    def test_two_servers_share_a_folder(self):
        expected = {}
        with Server() as plain:
            for topic in TOPICS:
                expected[topic] = ask(plain, conversation(topic))[:2]
        wrong = []

        def talk(server, seed):
            rng = random.Random(seed)
            for _ in range(12):
                topic = rng.choice(TOPICS)
                if ask(server, conversation(topic))[:2] != expected[topic]:
                    wrong.append(topic)

        with self.server("--sessions", "1", "--kv-disk-space-mb", "16") as one, \
                self.server("--sessions", "1", "--kv-disk-space-mb", "16") as two:
            threads = [threading.Thread(target=talk, args=(server, seed)) for seed, server in enumerate((one, two))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(wrong, [])

    def test_space_is_kept(self):
        most = 0
        done = threading.Event()

        def watch():
            nonlocal most
            while not done.wait(0.1):
                most = max(most, sum(size for _, size in files_under(self.folder)))

        watcher = threading.Thread(target=watch)
        with self.server("--sessions", "1", "--kv-disk-space-mb", "8") as server:
            watcher.start()
            for number in range(20):
                ask(server, [("system", f"{number} {SYSTEM}"), ("user", "Hello.")], max_tokens=2)
            metrics = server.metrics()
        done.set()
        watcher.join()
        self.assertGreater(metrics["ds4_disk_cache_evictions"], 0)
        self.assertLessEqual(most, (8 + 2) << 20)  # and one state at most
        self.assertGreater(most, 4 << 20)

    def test_a_folder_that_cannot_be_used(self):
        with open(self.folder, "w") as file:
            file.write("x")
        result = subprocess.run([PROGRAM, "-m", MODEL, "--port", "0", "--kv-disk-dir", self.folder],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn(self.folder, result.stderr)

    def test_a_place_where_nothing_can_be_written(self):
        self.folder = "/proc/self/kv"
        with self.server() as server:
            server.logged("not kept on disk: .*/proc/self/kv")
            self.assertEqual(ask(server, conversation("salt"))[3], 0)

    def test_a_folder_that_goes_while_it_is_used(self):
        with self.server() as server:
            ask(server, conversation("salt"))
            self.written(server)
            os.rename(self.folder, self.folder + "-gone")
            talk = conversation("iron")
            talk += [("assistant", ask(server, talk)[0]), ("user", "And about rain?")]
            wait_until(lambda: any(name.endswith(".fr") for name, _ in files_under(self.folder)), "states on disk")
        with self.server() as server:
            self.assertGreater(ask(server, talk)[3], 500)

    def test_wrong_numbers(self):
        result = subprocess.run([PROGRAM, "--kv-cache-cold-max-tokens", "100"], capture_output=True, text=True,
                                timeout=60)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--kv-cache-cold-max-tokens", result.stderr)


class Calls(DiskTest):
    RULES = [("<tool_result>", "I see.</think>It is sunny."),
             ("weather", "Looking it up.</think>One moment." + block(call("shell", command="curl <wttr> & exit"),
                                                                      call("shell", command="date")))]

    def test_calls_are_replayed_after_a_restart(self):
        for dialect in (Chat(), Messages(), Responses()):
            question = [("system", SYSTEM), ("user", f"What is the weather, {dialect.name}?")]
            with self.server(rules=self.RULES) as server:
                reply = dialect.ask(server, question, tools=[SHELL])
                self.assertEqual((reply.finish, len(reply.calls)), ("tool_calls", 2))
                sampled = reply.prompt_tokens + reply.completion_tokens
            with self.server(rules=self.RULES) as server:
                # The client lost the reasoning.
                back = question + [("assistant", reply.content, list(reply.calls), "")]
                back += [("tool", name, "sunny") for name, *_ in reply.calls]
                answer = dialect.ask(server, back, tools=[SHELL])
                self.assertEqual(answer.content, "It is sunny.")
                self.assertTrue(server.logged(r'disk="?hit'))
                self.assertGreaterEqual(answer.prompt_tokens, sampled)
                self.assertEqual(answer.cached_tokens, sampled)


if __name__ == "__main__":
    main()
