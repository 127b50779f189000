"""The bundled model behind the server: the same answers as the command line's, and as a fresh process' whatever was
asked before."""
import json
import random
import subprocess
import threading
import time
import unittest

from server_support import ALL_DIALECTS, CLI, MODEL, Chat, Messages, Server, ServerTest, assistant, function, main

QUESTIONS = ["What is the capital of Japan?", "Calculate 108 + 913.", "Tell me about salt.", "Bonjour \u65e5\u672c <b>&amp;</b>"]
SYSTEM = "You are a helpful assistant"
WEATHER = function("get_weather", city={"type": "string"})

# Around the window of 128, the ratios of compression and the chunk of a prompt; all ways of arriving at them.
LENGTHS = (5, 31, 32, 33, 127, 128, 129, 130, 255, 256, 257, 511, 512, 513, 2047, 2048, 2049)
LONG_LENGTHS = (4095, 4096, 4097)


def command_line(question, *arguments):
    command = [CLI, "-m", MODEL, "--temp", "0", "-p", question, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def scored(server, messages, max_tokens=8, stream=False):
    """A greedy answer with the exact log-probability of every token."""
    body = Chat().body(messages, stream, thinking=False, max_tokens=max_tokens,
                       extra={"logprobs": True, "top_logprobs": 2})
    answer = server.post(Chat.path, body)
    assert answer.status == 200, answer.text
    if not stream:
        choice = answer.json["choices"][0]
        return choice["message"]["content"], choice["logprobs"]["content"]
    text, scores = "", []
    for line in answer.text.splitlines():
        for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else []:
            text += choice["delta"].get("content") or ""
            scores += (choice.get("logprobs") or {}).get("content", [])
    return text, scores


def fresh(messages, arguments=(), **options):
    with Server(*arguments, rules=None) as server:
        return scored(server, messages, **options)


class SameAsCommandLine(ServerTest):
    rules = None

    def test_answers(self):
        for question in QUESTIONS:
            expected = command_line(question, "--nothink")
            for dialect in ALL_DIALECTS:
                for stream in (False, True):
                    reply = dialect.ask(self.server, [("system", SYSTEM), ("user", question)], stream, thinking=False)
                    self.assertEqual(reply.content.strip(), expected.strip(), (dialect.name, stream))

    def test_answers_with_reasoning(self):
        expected = command_line("Calculate 108 + 913.")
        for dialect in ALL_DIALECTS:
            reply = dialect.ask(self.server, [("system", SYSTEM), ("user", "Calculate 108 + 913.")], True)
            self.assertIn("1021", reply.content)
            self.assertTrue(reply.reasoning)
            self.assertTrue(expected.strip().endswith(reply.content.strip()), (dialect.name, expected))

    def test_seeds_repeat(self):
        body = {"messages": [{"role": "user", "content": "Tell me something."}], "seed": 7, "max_tokens": 40,
                "temperature": 1.0, "thinking": {"type": "disabled"}}
        texts = [self.server.post(Chat.path, {**body, "seed": seed}).json["choices"][0]["message"]["content"]
                 for seed in (7, 7, 8, 9)]
        self.assertEqual(texts[0], texts[1])
        self.assertGreater(len(set(texts)), 1)

    def test_tools(self):
        for dialect in ALL_DIALECTS:
            question = ("user", "Weather in Lisbon?")
            reply = dialect.ask(self.server, [question], tools=[WEATHER], thinking=False, choice="required")
            self.assertEqual((reply.finish, reply.calls[0][1]), ("tool_calls", "get_weather"))
            self.assertEqual(set(reply.arguments()), {"city"})
            second = dialect.ask(self.server, [question, assistant(reply), ("tool", reply.calls[0][0], "sunny, 20")],
                                 stream=True, tools=[WEATHER], thinking=False, max_tokens=40)
            self.assertEqual(second.status, 200)
            self.assertGreaterEqual(second.cached_tokens, reply.prompt_tokens + reply.completion_tokens)

    def test_schemas_hold(self):
        schema = {"type": "object", "required": ["city", "population", "tags"], "additionalProperties": False,
                  "properties": {"city": {"type": "string", "maxLength": 20}, "population": {"type": "integer"},
                                 "tags": {"type": "array", "items": {"enum": ["big", "old"]}, "maxItems": 2}}}
        for dialect in ALL_DIALECTS:
            reply = dialect.ask(self.server, "Tell me about Tokyo.", schema=schema, thinking=False, max_tokens=300)
            value = json.loads(reply.content)
            self.assertEqual(set(value), {"city", "population", "tags"})
            self.assertIsInstance(value["population"], int)
            self.assertLessEqual(set(value["tags"]), {"big", "old"})


class Numbers(ServerTest):
    """Prompts of any number of tokens, and answers with their numbers."""
    rules = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        candidates = ("the quick brown fox jumps over a lazy dog and salt is white mineral water capital of Japan city "
                      "people number one two three red green blue sun moon tree house river").split()
        cls.words = [word for word in candidates
                     if len(cls.server.post("/tokenize", {"content": " " + word}).json["tokens"]) == 1]
        assert len(cls.words) > 15, cls.words

    def prompt(self, tokens, seed=0):
        """A message whose prompt has this many tokens, four of which are the template's."""
        choose = random.Random(1000 * seed + tokens).choice
        text = "".join(" " + choose(self.words) for _ in range(tokens - 4))
        count = self.server.post("/v1/messages/count_tokens", Messages().body([("user", text)], thinking=False))
        self.assertEqual(count.json["input_tokens"], tokens)
        return text

    def check(self, messages, what, **options):
        self.assertEqual(scored(self.server, messages, **options), fresh(messages, self.arguments, **options), what)


class LiveEqualsCold(Numbers):
    """Numbers, not only words, are the same: on the CPU all ways to a state give the same bits."""

    def test_repeated_appended_rewound_branched(self):
        for length in LENGTHS:
            with self.subTest(length=length):
                text = self.prompt(length)
                question = [("user", text)]
                cold = fresh(question)
                self.assertEqual(scored(self.server, question), cold, "first")
                self.assertEqual(scored(self.server, question, stream=True), cold, "repeated")
                longer = question + [("assistant", "I see."), ("user", "Tell me about salt.")]
                self.check(longer, "appended")
                self.assertEqual(scored(self.server, question), cold, "rewound")
                self.check(longer[:-1] + [("user", "What is the capital of Japan?")], "branched")
                self.check([("user", text.rsplit(" ", 1)[0])], "shortened")

    def test_long_prompts(self):
        for length in LONG_LENGTHS:
            with self.subTest(length=length):
                question = [("user", self.prompt(length))]
                cold = fresh(question)
                self.assertEqual(scored(self.server, question), cold, "first")
                self.assertEqual(scored(self.server, question), cold, "repeated")
                self.check(question + [("assistant", "I see."), ("user", "What is the capital of Japan?")], "appended")
                self.assertEqual(scored(self.server, question), cold, "rewound")

    def test_conversations_beside_each_other(self):
        questions = [[("user", self.prompt(length, seed=1))] for length in (126, 130, 257, 700)]
        results = [None] * len(questions)

        def converse(index):
            first = scored(self.server, questions[index], max_tokens=30, stream=index % 2 == 0)
            again = questions[index] + [("assistant", "I see."), ("user", "Calculate 2 + 3.")]
            results[index] = (first, scored(self.server, again, max_tokens=30))
        threads = [threading.Thread(target=converse, args=(index,)) for index in range(len(questions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        for question, (first, second) in zip(questions, results):
            self.assertEqual(first, fresh(question, max_tokens=30))
            again = question + [("assistant", "I see."), ("user", "Calculate 2 + 3.")]
            self.assertEqual(second, fresh(again, max_tokens=30))

    def test_answers_to_one_prompt_do_not_mix(self):
        question = [("user", self.prompt(200, seed=2))]
        body = Chat().body(question, thinking=False, max_tokens=20, extra={"n": 4})
        choices = self.server.post(Chat.path, body).json["choices"]
        expected = fresh(question, max_tokens=20)[0]
        self.assertEqual([choice["message"]["content"] for choice in choices], [expected] * 4)

    def test_cancelled_and_continued(self):
        for length in (129, 1500, 4200):
            question = [("user", self.prompt(length, seed=3))]
            cold = fresh(question, max_tokens=20)
            for delay in (0.01, 0.15, 0.6):
                connection = self.server.open(Chat.path, Chat().body(question, True, thinking=False))
                time.sleep(delay)
                connection.close()
                self.assertEqual(scored(self.server, question, max_tokens=20), cold, (length, delay))

    def test_real_conversations(self):
        """With the model's own replies in the history."""
        messages = [("system", SYSTEM)]
        for question in ("What is the capital of Japan?", "Tell me about salt.", "What is the capital of France?"):
            messages.append(("user", question))
            self.check(messages, question, max_tokens=60)
            messages.append(("assistant", scored(self.server, messages, max_tokens=60)[0]))


if __name__ == "__main__":
    main()
