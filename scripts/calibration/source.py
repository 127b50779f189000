"""The project's own sources and documents, in pieces, with a task for each (category source), and several distant
pieces with tasks that need them all (category long_context)."""
import os

from chance import Chance
from chat import ROOT

FOLDERS = ("include", "src", "apps", "tests", "bench", "scripts", "docs", "cmake")
CODE = (".cpp", ".hpp", ".cu", ".cuh", ".py", ".cmake")
DOCUMENTS = (".md",)
# Recorded data, and texts in the language of tests rather than of people.
LEFT_OUT = (os.path.join("tests", "data"), os.path.join("docs", "decisions.md"), "third_party", "node_modules")

TASKS = (
    "Review this part of {path}. Name what could go wrong in it, in the order of importance, and say what you would "
    "change.",
    "Explain what this part of {path} does, step by step, and say at which stage of running a language model it is "
    "needed: loading, tokenising, prefill, decoding, sampling or serving.",
    "Where does this part of {path} spend its time or memory? Propose one change that would make it cheaper, and say "
    "how you would measure whether it did.",
    "Cerca errori nascosti in questa parte di {path}: limiti degli indici, casi vuoti, conversioni, concorrenza. "
    "Rispondi in italiano, con un esempio per ogni errore che trovi.",
)
DOCUMENT_TASKS = (
    "Summarise this part of {path} for somebody who has never used the program.",
    "Which questions would a careful reader still have after this part of {path}? Answer those that the text itself "
    "answers elsewhere.",
    "Turn this part of {path} into a checklist of statements that a test could verify.",
    "Traduci in italiano questa parte di {path} e conserva tabelle e nomi.",
)


def harmless(text):
    """Without spellings that a reader of rendered prompts would take for special tokens or for the next prompt."""
    return text.replace("｜", "|").replace("think>", "thoughts>").replace("===== DS4", "= DS4")


def texts(root=ROOT):
    """(path, text) of the files, sorted by path."""
    found = []
    for folder in FOLDERS:
        for place, folders, names in os.walk(os.path.join(root, folder)):
            folders.sort()
            for name in sorted(names):
                path = os.path.relpath(os.path.join(place, name), root)
                if path.endswith(CODE + DOCUMENTS) and not any(path.startswith(p) for p in LEFT_OUT):
                    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
                        found.append((path, harmless(file.read())))
    return found


def pieces(text, size, overlap):
    """Pieces of at most `size` characters that end at a line break in their second half, if there is one."""
    begin = 0
    while begin < len(text):
        end = min(begin + size, len(text))
        if end < len(text):
            line_break = text.rfind("\n", begin + size // 2, end)
            end = line_break + 1 if line_break > 0 else end
        piece = text[begin:end]
        if piece.strip():
            yield piece
        if end == len(text):
            return
        begin = max(end - overlap, begin + 1)


def fenced(path, piece):
    return f"```{os.path.splitext(path)[1][1:]}\n{piece.rstrip()}\n```"


def records(seed, files):
    """Endless: every piece once with each of its tasks."""
    all_pieces = []
    for path, text in files:
        document = path.endswith(DOCUMENTS)
        for number, piece in enumerate(pieces(text, 3200 if document else 2600, 180)):
            all_pieces.append((path, number, piece, DOCUMENT_TASKS if document else TASKS))
    order = Chance(seed, "source").shuffled(all_pieces)
    for turn in range(len(TASKS)):
        for i, (path, number, piece, tasks) in enumerate(order):
            task = tasks[(i + turn) % len(tasks)].format(path=path)
            yield {"source": f"{path}#{number}.{(i + turn) % len(tasks)}",
                   "messages": [{"role": "user", "content": f"{task}\n\n{fenced(path, piece)}"}]}


LONG_TASKS = (
    "These are parts of different files of one project. Which of them depend on each other, and through what?",
    "Read all parts. Then name, for each, the one sentence or line that matters most to the others.",
    "Somebody changed the first part. Say what has to be checked in the last one, and why.",
    "In one of the parts there is a line that begins with NOTE-{code}. Repeat that line word for word, and say in which "
    "file it stands.",
    "Until the end of this conversation, call every function by its name in capital letters. Describe what the second "
    "and the last part have in common.",
)


def _log(chance, lines):
    """A log of a server in which one thing goes wrong."""
    out, broken = [], lines // 3 + chance.below(lines // 3)
    second = chance.between(30000, 60000)
    for i in range(lines):
        second += chance.between(0, 4)
        stamp = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        request = chance.between(1000, 9999)
        if i == broken:
            out.append(f"{stamp} error request={request} state of session 7 was evicted while it was in use")
        elif i > broken and chance.likely(0.2):
            out.append(f"{stamp} warn request={request} prefix not found, 8192 tokens are computed again")
        else:
            out.append(f"{stamp} info request={request} tokens={chance.between(20, 4000)} "
                       f"queue_ms={chance.between(0, 40)} rate={chance.between(200, 900) / 10}")
    return "\n".join(out)


def long_records(seed, files):
    chance = Chance(seed, "long_context")
    longer = [(path, text) for path, text in files if len(text) > 4000]
    count = 0
    while True:
        count += 1
        if count % 4 == 0:
            log = _log(chance, chance.between(90, 160))
            task = "This is the log of a server. What went wrong first, what followed from it, and what would you look at next?"
            yield {"source": f"log-{count}", "messages": [{"role": "user", "content": f"{task}\n\n```\n{log}\n```"}]}
            continue
        code, parts = chance.between(1000, 9999), []
        for path, text in chance.some(longer, 3):
            chunks = list(pieces(text, 3600, 120))
            parts.append((path, chance.pick(chunks)))
        task = chance.pick(LONG_TASKS).format(code=code)
        if "NOTE-" in task:
            path, piece = parts[1]
            lines = piece.split("\n")
            lines.insert(len(lines) // 2, f"NOTE-{code}: the limit of {chance.between(2, 90)} was chosen by measurement")
            parts[1] = (path, "\n".join(lines))
        body = "\n\n".join(f"{path}:\n{fenced(path, piece)}" for path, piece in parts)
        yield {"source": f"parts-{count}", "messages": [{"role": "user", "content": f"{body}\n\n{task}"}]}
