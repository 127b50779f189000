"""Random choices that are the same in every version of Python: built on random() alone."""
import random


class Chance:
    def __init__(self, *seed):
        self._random = random.Random("/".join(str(part) for part in seed)).random

    def below(self, count):
        return int(self._random() * count)

    def between(self, low, high):
        return low + self.below(high - low + 1)

    def pick(self, items):
        return items[self.below(len(items))]

    def likely(self, probability):
        return self._random() < probability

    def shuffled(self, items):
        rest, out = list(items), []
        while rest:
            i = self.below(len(rest))
            rest[i], rest[-1] = rest[-1], rest[i]
            out.append(rest.pop())
        return out

    def some(self, items, count):
        return self.shuffled(items)[:count]
