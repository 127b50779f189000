"""The bundled model behind the server around the lengths at which chunks of a prompt and 32 Ki tokens end: the same
numbers as a fresh process', by whatever way the server got there."""
from server_nano_test import Numbers, fresh, scored
from server_support import main


class LongPrompts(Numbers):
    arguments = ("--ctx", "36864")

    def check_around(self, length):
        longest = self.prompt(length + 1).split(" ")
        questions = [[("user", " ".join(longest[:-left] if left else longest))] for left in (2, 1, 0)]
        # Streams, since clients do not wait for ever where nothing comes. The first one finds nothing like it.
        cold = [scored(self.server, questions[0], stream=True)]
        cold += [fresh(question, self.arguments, stream=True) for question in questions[1:]]
        # Upwards token by token, which branches off what is there, and back again.
        for place in (0, 1, 2, 1, 0):
            self.assertEqual(scored(self.server, questions[place], stream=True), cold[place], (length, place))
        usage = self.server.metrics()
        self.assertGreater(usage["ds4_prompt_tokens_cached_total"], 4 * (length - 4100))

    def test_8192(self):
        self.check_around(8192)

    def test_32768(self):
        self.check_around(32768)


if __name__ == "__main__":
    main()
