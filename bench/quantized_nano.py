#!/usr/bin/env python3
"""The bundled model in every recipe, without and with importance: size, likelihood and divergence on held-out text, questions.

usage: bench/quantized_nano.py [--build DIR] [--folder DIR] [--threads N] [--json FILE] [--skip-eval] [--check]

Needs a build with tests, and `ctest -R nano_checkpoint` run once, which unpacks the checkpoint. Prints the table of
docs/quantize.md §4. --check fails if a bound of that page does not hold. Needs Python's standard library only.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DATA = os.path.join(ROOT, "tests", "data", "nano")
# Recipes that search scales are made twice.
PLAIN, SEARCHED = ("f16", "q8"), ("mxfp4", "q4", "q2-q4", "q2")


def run(*command, statuses=(0,)):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode not in statuses:
        sys.exit(f"{' '.join(command)}: status {result.returncode}\n{result.stderr}")
    return result.stdout + result.stderr


def make_files(programs, checkpoint, folder):
    quantize, path = programs["quantize"], lambda name: os.path.join(folder, name)
    run(quantize, "--checkpoint", checkpoint, "--recipe", "bf16", "-o", path("bf16.gguf"))
    said = run(programs["ds4"], "-m", path("bf16.gguf"), "--cpu", "--imatrix-dataset", os.path.join(DATA, "calibration.txt"),
               "--imatrix-out", path("importance.dat"), "--raw-prompt", "-t", programs["threads"])
    files = []
    for recipe in (*PLAIN, *SEARCHED):
        for importance in (False, True) if recipe in SEARCHED else (False,):
            name = path(f"{recipe}{'-imatrix' if importance else ''}.gguf")
            more = ["--imatrix", path("importance.dat")] if importance else []
            run(quantize, "--checkpoint", checkpoint, "--recipe", recipe, "-o", name, *more)
            files.append({"recipe": recipe, "importance": importance, "path": name})
    return files, said.strip().splitlines()[-1]


def score(programs, folder, files):
    quantize, reference = programs["quantize"], os.path.join(folder, "held-out.ref")
    report = os.path.join(folder, "score.json")
    run(quantize, "score", os.path.join(folder, "bf16.gguf"), "--raw-prompt", "--dataset", os.path.join(DATA, "held-out.txt"),
        "--keep", "4096", "--write-reference", reference, "--backend", "cpu", "--threads", programs["threads"])
    run(quantize, "score", *[f["path"] for f in files], "--reference", reference, "--backend", "cpu", "--json", report,
        "--threads", programs["threads"])
    with open(report, encoding="utf-8") as file:
        models = json.load(file)["models"]
    for row, model in zip(files, models):
        row.update(file_bytes=os.path.getsize(row["path"]), tokens=model["tokens"], nll=model["mean_nll"], kl=model["mean_kl"],
                   agreement=model["agreements"] / model["tokens"], top1=model["likeliest"] / model["tokens"])


def ask(programs, files):
    for row in files:
        trace = row["path"] + ".trace"
        run(programs["eval"], "-m", row["path"], "--cpu", "-t", programs["threads"], "--suite", "nano", "--plain", "--temp", "0",
            "--trace", trace, statuses=(0, 1))
        said = run(programs["eval"], "--regrade-trace", trace, statuses=(0, 1))
        row["right"], wrong = map(int, re.search(r"passed=(\d+) failed=(\d+)", said).groups())
        row["asked"] = row["right"] + wrong
        print(f"{os.path.basename(row['path'])}: {row['right']} of {row['asked']}", file=sys.stderr)


def table(files):
    base = files[0]
    lines = ["| recipe | importance | bytes | NLL of a token | | KL | same choice | questions |", "|---|---|---|---|---|---|---|---|"]
    for row in files:
        questions = f"{row['right']}/{row['asked']}" if "right" in row else ""
        lines.append(f"| {row['recipe']} | {'yes' if row['importance'] else ''} | {row['file_bytes']:,} | {row['nll']:.4f} | "
                     f"{100 * (row['nll'] / base['nll'] - 1):+.2f} % | {row['kl']:.6f} | {100 * row['agreement']:.1f} % | {questions} |")
    return "\n".join(lines)


def bounds(files):
    """(what, value, limit): value must not be above the limit."""
    by = {(f["recipe"], f["importance"]): f for f in files}
    f16, q2, q2i = by["f16", False], by["q2", False], by["q2", True]
    return [("change of q4's NLL against f16, per cent", 100 * abs(by["q4", i]["nll"] / f16["nll"] - 1), 1.0) for i in (False, True)] + [
        ("KL of q2 with importance by KL of q2 without", q2i["kl"] / q2["kl"], 0.9)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    parser.add_argument("--folder")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json")
    parser.add_argument("--skip-eval", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    programs = {"quantize": os.path.join(arguments.build, "apps/quantize/ds4-quantize"),
                "ds4": os.path.join(arguments.build, "apps/ds4/ds4"), "eval": os.path.join(arguments.build, "apps/eval/ds4-eval"),
                "threads": str(arguments.threads)}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        files, collected = make_files(programs, os.path.join(arguments.build, "nano", "checkpoint"), folder)
        score(programs, folder, files)
        if not arguments.skip_eval:
            ask(programs, files)
    for row in files:
        del row["path"]
    print(table(files))
    wrong = False
    for what, value, limit in bounds(files):
        print(f"{what}: {value:.3f}, at most {limit}", file=sys.stderr)
        wrong |= value > limit
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"what": "the bundled model in every recipe; reference: bf16; CPU with its default activations",
                       "command": "bench/quantized_nano.py", "importance": collected, "rows": files}, file, indent=2)
            file.write("\n")
    if arguments.check and wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
