#!/usr/bin/env python3
"""A second, independent way to the keys of the core suite: integers by brute force or exact arithmetic instead of the
argument in the item's solution, and every number among the choices from its formula.

usage: recompute_answers.py CORE.JSONL
"""
import itertools
import json
import math
import re
import sys
from fractions import Fraction


# ---- competition problems: the integer itself -----------------------------------------------------------------------
def runs_of_equal_digits():
    return sum(not re.search("000|111", format(n, "010b")) for n in range(1024))


def power_sum_of_roots():
    # The trace of the fourth power of the companion matrix.
    m = [[0, 0, 3], [1, 0, -9], [0, 1, 6]]
    power = m
    for _ in range(3):
        power = [[sum(power[i][k] * m[k][j] for k in range(3)) for j in range(3)] for i in range(3)]
    return sum(power[i][i] for i in range(3))


def tilings(width=9):
    cells = [(x, y) for x in range(width) for y in range(2)]

    def count(covered):
        free = next((c for c in cells if c not in covered), None)
        if free is None:
            return 1
        x, y = free
        total = 0
        for shape in ([(0, 0), (0, 1)], [(0, 0), (1, 0)], [(0, 0), (0, 1), (1, 0), (1, 1)]):
            placed = [(x + dx, y + dy) for dx, dy in shape]
            if all(c in cells and c not in covered for c in placed):
                total += count(covered | set(placed))
        return total
    return count(frozenset())


def two_radii():
    a, b, c = 13, 14, 15
    # The triangle on a base of 14, by coordinates.
    x = Fraction(a * a + b * b - c * c, 2 * b)
    height = math.isqrt(int(a * a - x * x))
    assert height * height == a * a - x * x
    inner = Fraction(2 * Fraction(b * height, 2), a + b + c)
    # The centre of the outer circle is (b/2, y).
    y = (x * x + height * height - b * x) / (2 * Fraction(height))
    outer = math.sqrt(Fraction(b, 2) ** 2 + y * y)
    return round(2 * inner * outer)


def two_step_recurrence():
    values = [1, 3]
    while len(values) < 7:
        values.append(3 * values[-1] - values[-2])
    return values[6]


def subset_sums():
    return sum(sum(k for k in range(1, 13) if n >> (k - 1) & 1) % 7 == 0 for n in range(4096))


def factorial_power_of_two():
    product, n = 1, 0
    while product % 2 ** 100:
        n += 1
        product *= n
    return n


def two_logarithms():
    hits = [(x, y) for x in range(1, 200) for y in range(1, 200)
            if abs(math.log2(x) + math.log(y, 4) - 5) < 1e-9 and abs(math.log(x, 4) + math.log2(y) - 4) < 1e-9]
    (x, y), = hits
    return 10 * x + y


def folded_rectangle():
    # The perpendicular bisector of the diagonal from (0,0) to (15,8) meets y = 0 and y = 8.
    def x_at(y):
        return (Fraction(15 * 15 + 8 * 8, 2) - 8 * y) / 15
    squared = (x_at(0) - x_at(8)) ** 2 + 64
    length = Fraction(math.isqrt(squared.numerator), math.isqrt(squared.denominator))
    assert length ** 2 == squared
    return length.numerator + length.denominator


def no_neighbours_in_value():
    return sum(all(abs(a - b) != 1 for a, b in zip(p, p[1:])) for p in itertools.permutations(range(7)))


def interpolated_polynomial():
    # Fourth differences of a monic polynomial of degree 4 are 24; continue the table of differences both ways.
    def extended(p0):
        values = [p0, 10, 20, 30, 40]
        while True:
            row = values
            for _ in range(4):
                row = [b - a for a, b in zip(row, row[1:])]
            return row[0]
    p0 = next(v for v in range(-1000, 1000) if extended(v) == 24)
    values = [p0, 10, 20, 30, 40]

    def after(v):
        d3 = [v[-4], v[-3], v[-2], v[-1]]
        return 24 + 4 * d3[3] - 6 * d3[2] + 4 * d3[1] - d3[0]
    for _ in range(2):
        values.append(after(values))
    before = after(values[:4][::-1])
    return values[6] + before


def pairs_with_multiple():
    return sum(math.lcm(a, b) == 360 for a in range(1, 361) for b in range(1, 361))


def paths_under_the_diagonal():
    total = 0
    for ups in itertools.combinations(range(12), 6):
        height, touches = 0, 1
        for step in range(12):
            height += -1 if step in ups else 1
            if height < 0:
                break
            touches += height == 0
        else:
            total += touches == 3
    return total


def inside_a_tetrahedron():
    a = (0.0, 0.0, 0.0)
    b = (12.0, 0.0, 0.0)
    c = (6.0, 6 * math.sqrt(3), 0.0)
    d = (6.0, 2 * math.sqrt(3), 12 * math.sqrt(2 / 3))
    middle = [(p + q) / 2 for p, q in zip(a, b)]
    distances = []
    for face in ((a, c, d), (b, c, d)):
        centre = [sum(p) / 3 for p in zip(*face)]
        distances.append(sum((p - q) ** 2 for p, q in zip(middle, centre)))
    assert abs(distances[0] - distances[1]) < 1e-9
    return round(distances[0])


def telescoping_sum():
    value = sum(Fraction(1, k * (k + 2)) for k in range(1, 21))
    return value.numerator + value.denominator


def words_without_repeats():
    return sum(set(w) == set("ABC") and all(a != b for a, b in zip(w, w[1:]))
               for w in itertools.product("ABC", repeat=6))


def exactly_one_divisor():
    return sum(sum(n % d == 0 for d in (6, 10, 15)) == 1 for n in range(1, 1001))


def points_inside_a_triangle():
    corners = [(0, 0), (30, 12), (18, 42)]

    def side(p, q, r):
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])
    return sum(all(side(corners[i], corners[(i + 1) % 3], (x, y)) > 0 for i in range(3))
               for x in range(31) for y in range(43))


def floors_of_roots():
    return sum(math.isqrt(n) for n in range(1, 51))


def idempotent_maps():
    return sum(all(f[f[x]] == f[x] for x in range(5)) for f in itertools.product(range(5), repeat=5))


def three_circles():
    # A circle of radius r on the line touches a circle of radius R at the horizontal distance d where
    # d^2 + (R - r)^2 = (R + r)^2; solve for the sum of both distances by bisection.
    low, high = 0.0, 4.0
    for _ in range(200):
        r = (low + high) / 2
        distance = sum(math.sqrt((big + r) ** 2 - (big - r) ** 2) for big in (9, 4))
        low, high = (r, high) if distance < math.sqrt(13 ** 2 - 5 ** 2) else (low, r)
    value = Fraction(r).limit_denominator(1000)
    return value.numerator + value.denominator


def growing_powers():
    real, imaginary, n = 1, 0, 0
    while real * real + imaginary * imaginary < 1000 ** 2:
        real, imaginary, n = real - imaginary, real + imaginary, n + 1
    return n - 1


def largest_prime_factor():
    n, largest, d = 3 ** 12 - 1, 1, 2
    while n > 1:
        while n % d == 0:
            n, largest = n // d, d
        d += 1
    return largest


INTEGERS = {
    "contest-01": runs_of_equal_digits, "contest-02": power_sum_of_roots, "contest-03": lambda: pow(7, 2026, 1000),
    "contest-04": tilings, "contest-05": two_radii, "contest-06": two_step_recurrence, "contest-07": subset_sums,
    "contest-08": factorial_power_of_two, "contest-09": two_logarithms, "contest-10": folded_rectangle,
    "contest-11": no_neighbours_in_value, "contest-12": interpolated_polynomial, "contest-13": pairs_with_multiple,
    "contest-14": paths_under_the_diagonal, "contest-15": inside_a_tetrahedron, "contest-16": telescoping_sum,
    "contest-17": words_without_repeats, "contest-18": exactly_one_divisor, "contest-19": points_inside_a_triangle,
    "contest-20": floors_of_roots, "contest-21": idempotent_maps,
    "contest-22": lambda: sum(math.factorial(n) for n in range(1, 51)) % 1000, "contest-23": three_circles,
    "contest-24": growing_powers, "contest-25": largest_prime_factor,
}

# ---- choices with numbers: the value that the right choice must be nearest to ---------------------------------------
C, E_CHARGE, H_PLANCK, K_BOLTZMANN, R_GAS, FARADAY = 2.99792458e8, 1.602176634e-19, 6.62607015e-34, 1.380649e-23, 8.314463, 96485.33
MU0, G, M_PROTON, SIGMA_THOMSON, M_SUN = 4e-7 * math.pi, 6.6743e-11, 1.67262192e-27, 6.6524587e-29, 1.98847e30


def triangle_degeneracy():
    """States of lowest energy of three spins 1/2: by the rank of (H - lowest) on the 8 states, in exact numbers."""
    # S_i . S_j = (swap of i and j)/2 - 1/4.
    def matrix(energy):
        rows = [[Fraction(0)] * 8 for _ in range(8)]
        for state in range(8):
            for i, j in ((0, 1), (1, 2), (0, 2)):
                bits = [(state >> k) & 1 for k in range(3)]
                bits[i], bits[j] = bits[j], bits[i]
                rows[sum(b << k for k, b in enumerate(bits))][state] += Fraction(1, 2)
                rows[state][state] -= Fraction(1, 4)
            rows[state][state] -= energy
        return rows

    def nullity(rows):
        rank = 0
        for column in range(8):
            pivot = next((r for r in range(rank, 8) if rows[r][column] != 0), None)
            if pivot is None:
                continue
            rows[rank], rows[pivot] = rows[pivot], rows[rank]
            for r in range(8):
                if r != rank and rows[r][column] != 0:
                    factor = rows[r][column] / rows[rank][column]
                    rows[r] = [a - factor * b for a, b in zip(rows[r], rows[rank])]
            rank += 1
        return 8 - rank
    # Total spin 3/2 and 1/2 are the only levels: 3/4 and -3/4.
    assert nullity(matrix(Fraction(3, 4))) + nullity(matrix(Fraction(-3, 4))) == 8
    return nullity(matrix(Fraction(-3, 4)))


def gaussian_fourth_moment():
    """<x^4> in units of (hbar/(m w))^2, to compare with 3/4."""
    step, total, norm = 1e-3, 0.0, 0.0
    for i in range(-12000, 12001):
        x = i * step
        density = math.exp(-x * x)
        total += x ** 4 * density * step
        norm += density * step
    return total / norm


def cournot_price():
    q1 = q2 = 0.0
    for _ in range(200):
        q1, q2 = (90 - q2) / 2, (90 - q1) / 2
    return 120 - q1 - q2


def border_of_stability():
    # s = i w is a root of s^3 + 4 s^2 + 5 s + K: the imaginary part gives w^2 = 5, the real part K = 4 w^2.
    w = math.sqrt(5)
    gain = 4 * w * w
    s = complex(0, w)
    assert abs(s ** 3 + 4 * s ** 2 + 5 * s + gain) < 1e-9
    return gain


def alias_khz():
    for tenths in range(0, 51):
        f = tenths / 10
        if all(abs(math.cos(2 * math.pi * 23 * n / 10) - math.cos(2 * math.pi * f * n / 10)) < 1e-9 for n in range(50)):
            return f
    return None


def most_populated_level():
    return max(range(50), key=lambda j: (2 * j + 1) * math.exp(-1.931 * j * (j + 1) / 207.2))


NUMBERS = {
    "sci-01": lambda: 3000 / 105.66 * C * 2.197e-6 / 1000,
    "sci-02": lambda: 4.76 + math.log10(0.040 / 0.060),
    "sci-03": lambda: 0.02 ** 2 + 0.10 * 0.02 * 0.98,
    "sci-04": triangle_degeneracy,
    "sci-06": lambda: 1 / (1 + 1 * (1 + 3)),
    "sci-08": lambda: math.sqrt(4 * 6),
    "sci-09": lambda: R_GAS * 310.15 / FARADAY * math.log(4.0 / 140) * 1000,
    "sci-11": lambda: R_GAS * math.log(3) / (1 / 300 - 1 / 315) / 1000,
    "sci-12": lambda: 0.10 * 0.20 * 0.5 * 1000,
    "sci-13": lambda: (math.sqrt(2 / (MU0 * 5.8e7 * 2 * math.pi * 1e6)), {"micrometres": 1e-6, "millimetres": 1e-3}),
    "sci-16": lambda: (C / 0.02 / (math.pi * math.sqrt(0.95) / 0.05), {"MHz": 1e6, "GHz": 1e9}),
    "sci-17": lambda: R_GAS * 298 / FARADAY * math.log(100),
    "sci-19": lambda: 4 * math.pi * G * 10 * M_SUN * M_PROTON * C / SIGMA_THOMSON,
    "sci-21": lambda: 3.0e15 * H_PLANCK / E_CHARGE / 6.2,
    "sci-25": most_populated_level,
    "spec-01": lambda: 8.0 * 6.0 ** 2 / 8,
    "spec-02": lambda: 1.5 * 12 + 8,
    "spec-03": lambda: math.pi ** 2 * 200e9 * 4.0e-6 / 1.5 ** 2 / 1000,
    "spec-04": cournot_price,
    "spec-05": border_of_stability,
    "spec-07": lambda: math.sqrt(3) * 400 * 20 * 0.8 / 1000,
    "spec-08": lambda: math.log(2) * 40 / 5,
    "spec-10": lambda: 64 / 1600,
    "spec-12": lambda: (10 / 1.1 + 2 * 110 / 1.21) / (10 / 1.1 + 110 / 1.21),
    "spec-13": lambda: 100 * (1 - 9 ** -0.4),
    "spec-15": lambda: 100 * 0.009 / (0.009 + 0.99 * 0.05),
    "spec-16": alias_khz,
    "spec-18": lambda: 2.0 / (5 * 4.0 - 2.0),
    "spec-20": lambda: 1.2 / 0.3,
    "spec-22": lambda: (40 - 10) / (60 - 10),
    "spec-25": lambda: math.ceil(3 * 10 / 2) - 2,
}


def number_of(choice, units):
    value = float(re.search(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", choice).group())
    scale = next((s for unit, s in units.items() if unit in choice), 1)
    return value * scale


def check_number(item, value):
    value, units = value if isinstance(value, tuple) else (value, {})
    distances = [abs(number_of(c, units) - value) for c in item["choices"]]
    key = ord(item["answer"]) - ord("A")
    if min(distances) != distances[key]:
        return f"{item['id']}: {value:g} is nearest to {item['choices'][distances.index(min(distances))]}"
    # The next choice must be clearly another number, and the key must be this one to the digits it shows.
    if distances[key] > 0.02 * abs(value) or any(d <= 4 * distances[key] for i, d in enumerate(distances) if i != key):
        return f"{item['id']}: {value:g} is not clearly {item['choices'][key]}"
    return None


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        items = {item["id"]: item for item in map(json.loads, file)}
    problems = []
    for name, compute in INTEGERS.items():
        value = compute()
        if str(value) != items[name]["answer"] or not 0 <= value <= 999:
            problems.append(f"{name}: the key is {items[name]['answer']}, recomputed {value}")
    for name, compute in NUMBERS.items():
        complaint = check_number(items[name], compute())
        if complaint:
            problems.append(complaint)
    if abs(gaussian_fourth_moment() - 0.75) > 1e-6:
        problems.append("sci-07: the fourth moment is not 3/4")
    hueckel = sorted(2 * math.cos(k * math.pi / 5) for k in range(1, 5))
    if not items["sci-20"]["choices"][ord(items["sci-20"]["answer"]) - 65].startswith(f"alpha + {hueckel[2]:.3f}"):
        problems.append("sci-20: the second level of butadiene")
    for item in items.values():
        if not item["solution"] or not item["check"]:
            problems.append(f"{item['id']}: needs a solution and a check")
        if item["source"] == "Contest" and item["id"] not in INTEGERS:
            problems.append(f"{item['id']}: nothing recomputes it")
    for problem in problems:
        print(problem)
    print(f"{len(INTEGERS)} integers and {len(NUMBERS) + 2} other keys recomputed, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
