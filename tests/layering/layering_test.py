#!/usr/bin/env python3
"""Checks rules of the source tree that no compiler checks: includes go down the layers only, the public headers are
free of implementation libraries, files stay short, and no file names the machine it was written on.

usage: layering_test.py ROOT | --self-test
"""
import os
import re
import subprocess
import sys
import tempfile

# What a layer may include besides itself. docs/tour.md shows the same picture. A subfolder that is listed is a layer of
# its own.
ALLOWED = {
    "base": set(),
    "format": {"base"},
    "text": {"base", "format"},
    "grammar": {"base", "format", "text"},
    "model": {"base", "format"},
    "sampling": {"base"},
    "backend": {"base", "format", "model", "sampling"},
    "engine": {"base", "format", "text", "model", "sampling", "backend"},
    "store": {"base", "format", "text", "model", "sampling", "backend", "engine"},
    "server/http": {"base"},
    "server": {"base", "format", "text", "grammar", "model", "sampling", "backend", "engine", "store", "server/http"},
    "cluster": {"base", "format", "text", "model", "sampling", "backend", "engine", "store"},
}
# Programs use the public API and their own files. These tools work on files, not on a running model.
APP_EXTRA = {
    "common": {"base", "format"},  # the number format of a file's experts
    "ds4": {"base", "format", "model", "store"},  # --inspect describes a file that need not be loadable; saved sessions
    "bench": {"base", "store"},  # --kv-disk-dir measures the disk cache
    "eval": {"base"},
    "plot": {"base"},
    "quantize": {"base", "format", "text", "model"},
    "kv": {"base", "store"},  # works on folders, not on a running model
    "server": {"base", "server", "server/http", "store"},
    "steer": {"base"},
}
SOURCE_SUFFIXES = (".cpp", ".hpp", ".cu", ".cuh", ".h")
MAX_LINES = 600
NOT_IN_PUBLIC_HEADERS = re.compile(r"^(boost/|hwy/|fmt/|cuda|CLI/|utf8proc|xxhash|spdlog/)")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Paths of a private machine, and markers of unfinished work.
FORBIDDEN = [re.compile(p) for p in (
    r"\.\./shared\b", r"(?<![\w./-])/wo" r"rk/", r"(?<![\w./-])/home/[a-z]", r"\bTO" r"DO\b", r"\bFIX" r"ME\b", r"\bX" r"XX\b")]
TEXT_SUFFIXES = SOURCE_SUFFIXES + (".py", ".sh", ".md", ".cmake", ".txt", ".json", ".in", ".js", ".mjs", ".yml", "")
# Words of these files are data (corpora, recorded texts), not ours.
DATA_FOLDERS = ("tests/data/", "models/")


def tracked_files(root):
    try:
        listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                check=True, capture_output=True).stdout.decode()
        names = [name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):  # a source archive without git
        names = []
        for folder, folders, files in os.walk(root):
            folders[:] = [f for f in folders if f not in ("build", "node_modules", ".git")]
            names += [os.path.relpath(os.path.join(folder, f), root) for f in files]
    return sorted(name for name in names if os.path.isfile(os.path.join(root, name)))


def layer_of(path):
    """The layer that a file below src/ belongs to; None for a path without a folder."""
    parts = path.split("/")
    if len(parts) > 2 and "/".join(parts[:2]) in ALLOWED:
        return "/".join(parts[:2])
    return parts[0] if len(parts) > 1 else None


def check_include(path, target):
    """The complaint about `#include "target"` (or <target>) in `path`, or None."""
    parts = path.split("/")
    layer = layer_of(target)
    if path.startswith("include/ds4/"):
        if NOT_IN_PUBLIC_HEADERS.match(target):
            return f"a public header includes <{target}>"
        if layer in ALLOWED:
            return f"a public header includes the internal {target}"
    elif parts[0] == "src" and layer in ALLOWED:
        own = layer_of("/".join(parts[1:]))
        if layer != own and layer not in ALLOWED.get(own, set()):
            return f"layer {own} must not include {target}"
    elif parts[0] == "apps" and layer in ALLOWED:
        if not path.endswith("_test.cpp") and layer not in APP_EXTRA.get(parts[1], set()):
            return f"program {parts[1]} must not include {target}; use the public API"
    elif parts[0] == "examples" and layer in ALLOWED:
        return f"an example includes the internal {target}; use the public API"
    return None


def check_file(root, path):
    with open(os.path.join(root, path), "rb") as file:
        raw = file.read()
    problems = []
    is_source = path.endswith(SOURCE_SUFFIXES)
    if os.path.splitext(path)[1] not in TEXT_SUFFIXES or b"\0" in raw:
        return problems
    lines = raw.decode("utf-8", "replace").split("\n")
    if is_source and len(lines) > MAX_LINES + 1:
        problems.append(f"{path}: {len(lines) - 1} lines, at most {MAX_LINES} are allowed")
    for number, line in enumerate(lines, 1):
        include = INCLUDE.match(line) if is_source else None
        complaint = check_include(path, include.group(2)) if include else None
        if complaint:
            problems.append(f"{path}:{number}: {complaint}")
        if not path.startswith(DATA_FOLDERS):
            for pattern in FORBIDDEN:
                if pattern.search(line):
                    problems.append(f"{path}:{number}: must not contain {pattern.pattern!r}")
    return problems


def check_tree(root):
    files = tracked_files(root)
    problems = [p for path in files for p in check_file(root, path)]
    return len(files), problems


def self_test():
    """Each rule must complain about a file that breaks it, and none about a good file."""
    work_path = "/wo" "rk/x"
    cases = [
        ("src/base/a.cpp", '#include "format/gguf.hpp"\n', 1),
        ("src/model/a.cpp", '#include "text/utf8.hpp"\n', 1),
        ("src/engine/a.cpp", '#include "backend/backend.hpp"\n#include "ds4/error.hpp"\n#include <vector>\n', 0),
        ("src/backend/cpu/a.cpp", '#include "backend/cpu/matmul.hpp"\n#include "engine/x.hpp"\n', 1),
        ("src/server/http/a.cpp", '#include "server/generator.hpp"\n#include "engine/x.hpp"\n', 2),
        ("src/server/http/b.cpp", '#include "server/http/a.hpp"\n#include "base/error.hpp"\n', 0),
        ("src/server/b.cpp", '#include "server/http/a.hpp"\n#include "server/b.hpp"\n', 0),
        ("include/ds4/a.hpp", "#include <boost/json.hpp>\n", 1),
        ("include/ds4/b.hpp", '#include "base/error.hpp"\n', 1),
        ("apps/ds4/a.cpp", '#include "engine/session.hpp"\n', 1),
        ("apps/quantize/a.cpp", '#include "format/gguf_writer.hpp"\n', 0),
        ("examples/a.cpp", '#include "base/error.hpp"\n', 1),
        ("src/base/long.cpp", "\n" * (MAX_LINES + 1), 1),
        ("src/base/full.cpp", "\n" * MAX_LINES, 0),
        ("docs/a.md", f"see {work_path}\n", 1),
        ("tests/data/a.txt", f"see {work_path}\n", 0),
        ("src/base/b.cpp", "// TO" "DO later\n", 1),
    ]
    failures = []
    with tempfile.TemporaryDirectory() as root:
        for path, text, expected in cases:
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w") as file:
                file.write(text)
            found = check_file(root, path)
            if len(found) != expected:
                failures.append(f"{path}: expected {expected} complaints, got {found}")
    return len(cases), failures


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    checked, problems = self_test() if sys.argv[1] == "--self-test" else check_tree(os.path.abspath(sys.argv[1]))
    for problem in problems:
        print(problem)
    print(f"{checked} checked, {len(problems)} problems")
    sys.exit(1 if problems or not checked else 0)


if __name__ == "__main__":
    main()
