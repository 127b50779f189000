"""Checks the text format of Prometheus (version 0.0.4) and the customs of names that `promtool check metrics` knows."""
import math
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL}(?:,{LABEL})*)?)\}})? (\S+)")
TYPES = ("counter", "gauge", "histogram", "summary", "untyped")
OTHER_UNITS = ("milliseconds", "microseconds", "ms", "minutes", "hours", "kilobytes", "megabytes", "kib", "mib", "mb",
               "percent")


class Family:
    def __init__(self):
        self.help = self.type = None
        self.samples = {}  # (name, labels) to value


def value_of(text):
    if text in ("+Inf", "-Inf", "NaN"):
        return float(text)
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        raise ValueError(f"no number: {text!r}")
    return float(text)


def family_of(name, families):
    for suffix in ("_bucket", "_sum", "_count"):
        base = name[:-len(suffix)]
        if name.endswith(suffix) and base in families and families[base].type in ("histogram", "summary"):
            return base
    return name


def read(text):
    """Families by name; ValueError for what is no exposition."""
    if text and not text.endswith("\n"):
        raise ValueError("the last line has no end")
    families, current = {}, None
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP ") or line.startswith("# TYPE "):
            _, kind, name, value = line.split(" ", 3)
            if not re.fullmatch(NAME, name):
                raise ValueError(f"no name: {line}")
            family = families.setdefault(name, Family())
            attribute = kind.lower()
            if getattr(family, attribute) is not None:
                raise ValueError(f"twice: {line}")
            if family.samples:
                raise ValueError(f"behind its samples: {line}")
            if kind == "TYPE" and value not in TYPES:
                raise ValueError(f"no type: {line}")
            if kind == "HELP" and re.search(r"\\(?![\\n])", value):
                raise ValueError(f"escapes: {line}")
            setattr(family, attribute, value)
            current = name
            continue
        found = SAMPLE.fullmatch(line)
        if not found:
            raise ValueError(f"no sample: {line!r}")
        name, labels = found.group(1), re.findall(LABEL, found.group(2) or "")
        base = family_of(name, families)
        if base != current:
            raise ValueError(f"apart from its family: {line}")
        if len({label for label, _ in labels}) != len(labels):
            raise ValueError(f"a label twice: {line}")
        key = (name, tuple(sorted(labels)))
        if key in families[base].samples:
            raise ValueError(f"a series twice: {line}")
        families[base].samples[key] = value_of(found.group(found.re.groups))
    return families


def check_histogram(name, family):
    series = {}
    for (sample, labels), value in family.samples.items():
        rest = tuple(label for label in labels if label[0] != "le")
        parts = series.setdefault(rest, {"buckets": []})
        if sample == name + "_bucket":
            parts["buckets"].append((value_of(dict(labels)["le"]), value))
        elif sample in (name + "_sum", name + "_count"):
            parts[sample[len(name):]] = value
        else:
            raise ValueError(f"{sample} in a histogram")
    for parts in series.values():
        bounds, counts = zip(*parts["buckets"])
        if list(bounds) != sorted(set(bounds)) or bounds[-1] != math.inf:
            raise ValueError(f"{name}: bounds {bounds}")
        if list(counts) != sorted(counts):
            raise ValueError(f"{name}: buckets are not cumulative: {counts}")
        if "_sum" not in parts or counts[-1] != parts.get("_count"):
            raise ValueError(f"{name}: +Inf, count and sum do not agree")


def check(text):
    """ValueError, with the reason, if a scraper could stumble over the text or a custom is broken."""
    for name, family in read(text).items():
        if not family.samples:
            raise ValueError(f"{name} has no samples")
        if not family.help or not family.type:
            raise ValueError(f"{name} has no help or no type")
        if (family.type == "counter") != name.endswith("_total"):
            raise ValueError(f"{name}: counters, and only they, end in _total")
        if name.split("_")[-1] in ("bucket", "sum", "count") or re.search(r"[A-Z:]", name):
            raise ValueError(f"{name}: a name for something else")
        for unit in OTHER_UNITS:
            if unit in name.split("_"):
                raise ValueError(f"{name}: not in base units")
        for (_, labels), value in family.samples.items():
            if family.type == "counter" and not 0 <= value < math.inf:
                raise ValueError(f"{name}: {value}")
            if family.type != "histogram" and "le" in dict(labels):
                raise ValueError(f"{name}: the label of histograms")
        if family.type == "histogram":
            check_histogram(name, family)
