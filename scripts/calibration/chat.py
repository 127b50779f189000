"""Conversations as the model reads them (docs/chat.md): the same text as render_chat() of src/text."""
import json
import os
import re

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
PARAMETER_END = "</｜DSML｜parameter>"

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _tools_texts():
    """What stands before and after the schemas; the protocol's text has one home, the C++ source."""
    with open(os.path.join(ROOT, "src", "text", "tools_section.cpp"), encoding="utf-8") as file:
        texts = re.findall(r'R"text\((.*?)\)text"', file.read(), flags=re.DOTALL)
    if len(texts) != 2:
        raise SystemExit("src/text/tools_section.cpp does not hold the two texts around tool schemas")
    return texts


def tools_section(schemas):
    before, after = _tools_texts()
    return before + "\n".join(schemas) + after


def _attribute(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def tool_calls(calls):
    """A DSML block of calls (name, arguments)."""
    text = "\n\n<｜DSML｜tool_calls>\n"
    for name, arguments in calls:
        text += f'<｜DSML｜invoke name="{_attribute(name)}">\n'
        for key, value in arguments.items():
            is_string = isinstance(value, str)
            if is_string:
                shown = value.replace(PARAMETER_END, "&lt;/｜DSML｜parameter>")
            else:
                shown = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
                shown = shown.replace(PARAMETER_END, "\\u003c/｜DSML｜parameter>")
            text += (f'<｜DSML｜parameter name="{_attribute(key)}" string="{"true" if is_string else "false"}">'
                     f"{shown}{PARAMETER_END}\n")
        text += "</｜DSML｜invoke>\n"
    return text + "</｜DSML｜tool_calls>"


def render(messages, schemas=(), think=True):
    """Messages are dicts with role, content and, of assistants, reasoning and calls."""
    system = [tools_section(schemas)] if schemas else []
    system += [m["content"] for m in messages if m["role"] == "system"]
    turns = [m for m in messages if m["role"] != "system"]
    in_tools = bool(schemas) or any(m["role"] == "tool" or m.get("calls") for m in turns)
    last_user = max((i for i, m in enumerate(turns) if m["role"] != "assistant"), default=-1)
    text, open_turn, open_results = BOS + "\n\n".join(system), False, False
    for i, message in enumerate(turns):
        if message["role"] == "user":
            text += USER + message["content"]
            open_turn, open_results = True, False
        elif message["role"] == "tool":
            if not open_results:
                text += USER
            text += "<tool_result>" + message["content"].replace("</tool_result>", "&lt;/tool_result>") + "</tool_result>"
            open_turn = open_results = True
        else:
            if open_turn:
                text += ASSISTANT
                if think and (in_tools or i > last_user):
                    text += "<think>" + message.get("reasoning", "")
                text += "</think>"
            text += message["content"]
            if message.get("calls"):
                text += tool_calls(message["calls"])
            text += EOS
            open_turn = open_results = False
    if open_turn:
        text += ASSISTANT + ("<think>" if think else "</think>")
    return text
