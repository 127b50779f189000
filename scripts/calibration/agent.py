"""Conversations with tools (category agent): five manners of system text, six sets of tools, calls and results,
several turns, failures and awkward characters."""
import json
import os

from chance import Chance
from source import pieces

SYSTEMS = (
    "You are a coding assistant in a terminal. Use tools rather than guessing. Be brief.",
    "You are a careful software engineer who works in the user's repository.\n\n"
    "Rules:\n"
    "- Read a file before you change it, and change no more than the task asks for.\n"
    "- After a change, build and run the tests that cover it, and report what you saw.\n"
    "- Never run commands that delete files or reach the network unless the user asked for exactly that.\n"
    "- If a command fails, read its output before you try again; do not repeat it unchanged.\n"
    "- When you are done, say in two or three sentences what changed and what you did not check.",
    "You help people at the command line. Answer with commands where a command answers, with prose otherwise. "
    "Platform: Linux. Shell: bash. The working directory is a git repository.",
    "# Role\nInteractive agent for software projects.\n\n# Tone\nPlain and direct; no praise, no apologies.\n\n"
    "# Work\nPlan in your reasoning. Call several tools at once when they do not depend on each other. Paths are relative "
    "to the project root.\n\n# Output\nMarkdown. Name files as `path:line`.",
    "Sei un assistente per programmatori. Rispondi in italiano, usa gli strumenti quando servono e spiega in poche parole "
    "che cosa hai fatto.",
)


def _schema(name, description, **parameters):
    properties = {key: {"type": kind, "description": text} for key, (kind, text) in parameters.items()}
    return json.dumps({"name": name, "description": description,
                       "parameters": {"type": "object", "properties": properties,
                                      "required": list(parameters)}}, ensure_ascii=False)


SHELL = _schema("bash", "Runs a command in a shell and returns what it printed.",
                command=("string", "The command line"), timeout_s=("integer", "Seconds after which it is stopped"))
READ = _schema("read", "Returns lines of a file.", path=("string", "Path from the project root"),
               offset=("integer", "First line, from 1"), limit=("integer", "Number of lines"))
SEARCH = _schema("search", "Finds lines that match a regular expression.", pattern=("string", "The expression"),
                 path=("string", "File or folder"))
EDIT = _schema("edit", "Replaces a text that occurs once in a file by another.", path=("string", "File"),
               old=("string", "Text to replace"), new=("string", "Text to put in its place"))
WRITE = _schema("write", "Writes a file.", path=("string", "File"), content=("string", "All of its text"))
TASKS = _schema("tasks", "Replaces the list of tasks that the user sees.", tasks=("array", "Tasks with their states"))
FETCH = _schema("fetch", "Gets a page from the network as text.", url=("string", "Address"))

TOOL_SETS = {"shell": (SHELL,), "read": (READ, SEARCH), "edit": (READ, SEARCH, EDIT),
             "edit-shell": (READ, SEARCH, EDIT, SHELL), "full": (READ, SEARCH, EDIT, WRITE, SHELL, TASKS),
             "network": (READ, SEARCH, EDIT, WRITE, SHELL, TASKS, FETCH)}

ASKS = (
    "What does {path} do? I have to change it tomorrow.",
    "There may be an off-by-one error in {path}. Find it or tell me why there is none.",
    "Add a test for the first function of {path}.",
    "Make the error messages in {path} name the file that they are about.",
    "Is anything in {path} still used? Remove what is not.",
    "Rename `{word}` to `{word}_count` in {path} and wherever it is used.",
    "The build broke after somebody touched {path}. Please have a look.",
    "Quanto è chiaro {path}? Proponi una sola modifica e falla.",
)
FOLLOW_UPS = (
    "Good. Do the same for the file next to it.", "Why did you do it this way and not with a map?",
    "Show me the difference before you go on.", "Now run everything once more.", "Undo the last change, please.",
    "Does this work when the file is empty?", "Thanks. Write one line for the change log.",
    "Spiegami l'ultimo passo come se lo leggessi per la prima volta.",
)
THOUGHTS = (
    "I should look at the file first.", "The result is not what I expected: the line is there twice.",
    "Nothing else refers to this name, so the change stays local.",
    "The command failed because of the path, not because of the code. I will use the path from the project root.",
    "I have what I need; now the smallest change that does it.",
    "Two things to check that do not depend on each other, so I ask for both at once.",
    "L'utente vuole una sola modifica: scelgo quella che toglie più dubbi a chi legge.",
)
REPORTS = (
    "Done: `{path}` is changed, and the tests that cover it pass. I did not look at other platforms.",
    "I found nothing wrong in `{path}`: the loop ends at the size, and the size is checked before.",
    "`{word}` is used in three places, all of them in `{path}`. Nothing outside depends on it.",
    "The change is one line. Before, an empty input reached the division; now it returns early.",
    "Ho cambiato una sola riga di `{path}`: ora il messaggio dice quale file non si apre.",
    "The test fails with the old code and passes with the new one, so it does test the change.",
)
FAILURES = (
    "bash: line 1: nijna: command not found", "error: no such file or directory",
    "FAILED: 1 of 24 tests\n  Reader.EmptyFile: expected error, got 0 entries",
    "the text to replace occurs 2 times; make it unique", "timed out after 60 s",
    "fatal: not a git repository (or any of the parent directories): .git",
)
COMMANDS = (
    "git status --short", "git diff --stat HEAD~1", "ninja -C build && ctest --test-dir build -L unit",
    "grep -rn \"{word}\" src | head -20", "wc -l {path}", "sed -n '1,40p' {path}",
    "python3 - <<'END'\nimport json\nprint(json.dumps({{\"a\": [1, 2, 3], \"b\": \"<x & y>\"}}))\nEND",
    "for f in $(git ls-files '*.hpp'); do head -1 \"$f\"; done | sort | uniq -c | sort -rn | head",
    "echo \"$HOME\" && ls -la | awk '{{print $5, $9}}'",
)


class _Conversation:
    def __init__(self, chance, files):
        self.chance = chance
        self.path, self.text = chance.pick(files)
        words = [w for w in self.text.replace("(", " ").split() if w.isidentifier() and len(w) > 4]
        self.word = chance.pick(words) if words else "value"
        self.messages = []

    def fill(self, template):
        return template.format(path=self.path, word=self.word)

    def excerpt(self, size):
        return self.chance.pick(list(pieces(self.text, size, 0)))

    def call(self, tool):
        """Arguments of a call of a tool, and what comes back."""
        chance, name = self.chance, json.loads(tool)["name"]
        if name == "bash":
            command = self.fill(chance.pick(COMMANDS))
            result = self.excerpt(chance.between(300, 1500)) if "sed" in command else f"{chance.below(90)} {self.path}"
            return (name, {"command": command, "timeout_s": chance.pick((30, 60, 600))}), result
        if name == "read":
            first = chance.between(1, 200)
            lines = self.excerpt(chance.between(600, 2400)).split("\n")
            text = "\n".join(f"{first + i}\t{line}" for i, line in enumerate(lines))
            return (name, {"path": self.path, "offset": first, "limit": len(lines)}), text
        if name == "search":
            hits = [f"{self.path}:{i + 1}:{line}" for i, line in enumerate(self.text.split("\n")) if self.word in line]
            return (name, {"pattern": rf"\b{self.word}\b", "path": os.path.dirname(self.path)}), "\n".join(hits[:8])
        if name == "edit":
            line = chance.pick([x for x in self.text.split("\n") if len(x.strip()) > 12] or ["int main() {"])
            return (name, {"path": self.path, "old": line, "new": line.replace(self.word, self.word + "_count")}), "ok"
        if name == "write":
            content = f"# Notes on {self.path}\n\n" + self.excerpt(400) + "\n\"quotes\", <tags> & a tab:\t.\n"
            return (name, {"path": "notes/" + os.path.basename(self.path) + ".md", "content": content}), "written"
        if name == "tasks":
            tasks = [{"text": self.fill(ask), "state": chance.pick(("open", "doing", "done"))}
                     for ask in chance.some(ASKS, 3)]
            return (name, {"tasks": tasks}), "3 tasks"
        page = f"Documentation of {self.word}\n\n" + self.excerpt(700)
        return (name, {"url": f"https://docs.example.org/{self.word}"}), page

    def step(self, tools):
        chance = self.chance
        wanted = [self.call(chance.pick(tools)) for _ in range(2 if len(tools) > 1 and chance.likely(0.25) else 1)]
        said = chance.pick(("", "", "Let me look.", "I check that.")) if not chance.likely(0.3) else ""
        self.messages.append({"role": "assistant", "content": said, "reasoning": self.fill(chance.pick(THOUGHTS)),
                              "calls": [call for call, _ in wanted]})
        for _, result in wanted:
            failed = chance.likely(0.12)
            self.messages.append({"role": "tool", "content": chance.pick(FAILURES) if failed else result})

    def report(self):
        self.messages.append({"role": "assistant", "content": self.fill(self.chance.pick(REPORTS)),
                              "reasoning": self.fill(self.chance.pick(THOUGHTS))})


def records(seed, files):
    chance = Chance(seed, "agent")
    files = [(path, text) for path, text in files if len(text) > 800]
    count = 0
    while True:
        count += 1
        name = chance.pick(list(TOOL_SETS))
        tools = TOOL_SETS[name]
        conversation = _Conversation(chance, files)
        system = chance.pick(SYSTEMS)
        conversation.messages += [{"role": "system", "content": system},
                                  {"role": "user", "content": conversation.fill(chance.pick(ASKS))}]
        for turn in range(chance.between(1, 3)):
            if turn > 0:
                conversation.report()
                conversation.messages.append({"role": "user", "content": chance.pick(FOLLOW_UPS)})
            for _ in range(chance.between(1, 4)):
                conversation.step(tools)
        if chance.likely(0.3):
            conversation.report()
            conversation.messages.append({"role": "user", "content": chance.pick(FOLLOW_UPS)})
        yield {"source": f"{name}-{SYSTEMS.index(system)}-{count}", "messages": conversation.messages, "schemas": list(tools)}
