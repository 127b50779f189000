"""What only the Responses API has: kinds of tools, items, and going on from what the server keeps."""
import json

from server_replies_test import RULES
from server_support import SHELL, TEXT, Responses, ServerTest, block, call, function, main, parse_events


class ResponsesOnly(ServerTest):
    rules = RULES + [("patch", "Go.</think>" + block(call("apply_patch", input="*** Begin Patch\n<&>\n*** End Patch"))),
                     ("far tool", "Go.</think>" + block(call("mcp__files__read", path="a"))),
                     ("list here", "Go.</think>" + block(call("local_shell", command=["ls", "-l"]))),
                     ("find a tool", "Go.</think>" + block(call("tool_search", query="read")))]
    arguments = ("--ctx", "8192")

    def ask(self, text, stream=False, **fields):
        return Responses().ask(self.server, text, stream, extra=fields)

    def output(self, text, stream, **fields):
        """The items of a finished response."""
        reply = self.ask(text, stream, **fields)
        self.assertEqual(reply.status, 200, reply.raw)
        if not stream:
            return json.loads(reply.raw)["output"]
        return json.loads(reply.raw.strip().split("data: ")[-1])["response"]["output"]

    def test_kinds_of_tools(self):
        tools = [{"type": "function", **SHELL},
                 {"type": "custom", "name": "apply_patch", "description": "Edits files.",
                  "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
                 {"type": "namespace", "name": "mcp__files__", "description": "Files", "tools": [
                     {"type": "function", **function("read", path=TEXT)}]},
                 {"type": "tool_search", "execution": "client", "parameters": {
                     "type": "object", "properties": {"query": TEXT}}},
                 {"type": "web_search"}, {"type": "image_generation"}]
        for stream in (False, True):
            with self.subTest(stream=stream):
                [item] = [item for item in self.output("patch", stream, tools=tools) if item["type"] != "reasoning"]
                self.assertEqual((item["type"], item["name"], item["input"]),
                                 ("custom_tool_call", "apply_patch", "*** Begin Patch\n<&>\n*** End Patch"))
                [item] = [item for item in self.output("far tool", stream, tools=tools)
                          if item["type"] != "reasoning"]
                self.assertEqual((item["type"], item["name"], item["namespace"], item["arguments"]),
                                 ("function_call", "read", "mcp__files__", '{"path":"a"}'))
                [item] = [item for item in self.output("find a tool", stream, tools=tools)
                          if item["type"] != "reasoning"]
                self.assertEqual((item["type"], item["arguments"], item["execution"]),
                                 ("tool_search_call", {"query": "read"}, "client"))

    def test_custom_calls_go_on(self):
        tools = [{"type": "custom", "name": "apply_patch", "description": "Edits files."}]
        question = {"type": "message", "role": "user", "content": self.fresh() + "patch"}
        first = self.server.post(Responses.path, {"input": [question], "tools": tools, "temperature": 0}).json
        [made] = [item for item in first["output"] if item["type"] == "custom_tool_call"]
        result = {"type": "custom_tool_call_output", "call_id": made["call_id"], "output": "done"}
        second = self.server.post(Responses.path, {"input": [question, *first["output"], result], "tools": tools,
                                                   "temperature": 0}).json
        self.assertEqual(second["output"][-1]["content"][0]["text"], "Done.")
        usage = first["usage"]
        self.assertGreaterEqual(second["usage"]["input_tokens_details"]["cached_tokens"],
                                usage["input_tokens"] + usage["output_tokens"])

    def test_shell_calls_go_on(self):
        tools = [{"type": "local_shell"}]
        question = {"type": "message", "role": "user", "content": self.fresh() + "list here"}
        first = self.server.post(Responses.path, {"input": [question], "tools": tools, "temperature": 0}).json
        [made] = [item for item in first["output"] if item["type"] == "local_shell_call"]
        self.assertEqual(made["action"], {"type": "exec", "command": ["ls", "-l"]})
        result = {"type": "local_shell_call_output", "id": made["call_id"], "output": "a.txt"}
        second = self.server.post(Responses.path, {"input": [question, *first["output"], result], "tools": tools,
                                                   "temperature": 0}).json
        usage = first["usage"]
        self.assertGreaterEqual(second["usage"]["input_tokens_details"]["cached_tokens"],
                                usage["input_tokens"] + usage["output_tokens"])

    def test_what_was_asked_is_told_back(self):
        """Typed libraries miss these members, or refuse a response without them."""
        asked = {"temperature": 0.5, "top_p": 0.9, "metadata": {"run": "7"}, "parallel_tool_calls": False,
                 "tool_choice": "none", "max_output_tokens": 500}
        for fields, expected in (({}, {"temperature": 1, "top_p": 1, "metadata": {}, "parallel_tool_calls": True,
                                       "tool_choice": "auto", "max_output_tokens": None}), (asked, asked)):
            body = self.server.post(Responses.path, {"input": "hello", **fields}).json
            self.assertEqual({name: body[name] for name in expected}, expected)
            self.assertEqual((body["error"], body["incomplete_details"], body["previous_response_id"]), (None,) * 3)
            self.assertEqual(self.server.get("/v1/responses/" + body["id"]).json, body)
            stream = self.server.post(Responses.path, {"input": "hello", "stream": True, **fields}).text
            for _, data in parse_events(stream):
                event = json.loads(data)
                if "response" in event:
                    self.assertEqual({name: event["response"][name] for name in expected}, expected)
        cut = self.server.post(Responses.path, {"input": "hello", "max_output_tokens": 1}).json
        self.assertEqual((cut["incomplete_details"], cut["error"]), ({"reason": "max_output_tokens"}, None))

    def test_going_on_by_id(self):
        first = self.ask(self.fresh() + "one call", tools=[{"type": "function", **SHELL}])
        result = [{"type": "function_call_output", "call_id": first.calls[0][0], "output": "x"}]
        second = self.ask("", input=result, previous_response_id=first.id, tools=[{"type": "function", **SHELL}])
        self.assertEqual(second.content, "Done.")
        self.assertGreaterEqual(second.cached_tokens, first.prompt_tokens + first.completion_tokens)
        self.assertEqual(self.server.get(f"/v1/responses/{first.id}").json["id"], first.id)
        self.assertEqual(self.server.request("DELETE", f"/v1/responses/{first.id}").status, 200)
        answer = self.server.post(Responses.path, {"input": result, "previous_response_id": first.id})
        self.assertEqual((answer.status, answer.error["code"], answer.error["param"]),
                         (400, "previous_response_not_found", "previous_response_id"))

    def test_cut_answers_go_on(self):
        question = {"type": "message", "role": "user", "content": self.fresh() + "stops"}
        first = self.server.post(Responses.path, {"input": [question], "max_output_tokens": 2, "temperature": 0,
                                                  "reasoning": {"effort": "none"}}).json
        self.assertEqual([first["status"], *(item["status"] for item in first["output"])], ["incomplete"] * 2)
        answer = self.server.post(Responses.path, {"temperature": 0, "input": [
            question, *first["output"], {"type": "message", "role": "user", "content": "greet"}]})
        self.assertEqual(answer.status, 200, answer.text)
        self.assertEqual(answer.json["output"][-1]["content"][0]["text"], "Hello there!")

    def test_items_are_found_by_their_ids(self):
        """As libraries send them that leave the conversation to the server."""
        tools = [{"type": "function", **SHELL}]
        question = {"type": "message", "role": "user", "content": self.fresh() + "one call"}
        for stream in (False, True):
            output = self.output("", stream, input=[question], tools=tools)
            [made] = [item for item in output if item["type"] == "function_call"]
            later = [question, *({"type": "item_reference", "id": item["id"]} for item in output),
                     {"type": "function_call_output", "call_id": made["call_id"], "output": "x"}]
            second = self.ask("", stream, input=later, tools=tools)
            self.assertEqual(second.content, "Done.", second.raw)
            self.assertGreater(second.cached_tokens, 0)
        later[1]["id"] = "msg_unknown"
        answer = self.server.post(Responses.path, {"input": later, "tools": tools})
        self.assertEqual((answer.status, answer.error["code"], answer.error["param"]),
                         (400, "item_not_found", "input[1].id"))

    def test_results_without_their_calls_are_refused(self):
        answer = self.server.post(Responses.path, {"input": [
            {"type": "function_call_output", "call_id": "call_unknown", "output": "x"}]})
        self.assertEqual(answer.status, 400)
        self.assertIn("call_unknown", answer.error["message"])

    def test_final_answers_do_not_make_the_next_turn_cold(self):
        """The cache is kept after the last message of a loop of tools as well."""
        tools = [{"type": "function", **SHELL}]
        items = [{"type": "message", "role": "user", "content": self.fresh() + "one call"}]
        for text in ("", "one call again"):
            if text:
                items.append({"type": "message", "role": "user", "content": text})
            first = self.server.post(Responses.path, {"input": items, "tools": tools, "temperature": 0}).json
            # As Codex keeps them: encrypted reasoning that this server does not give, and no ids.
            items += [{key: value for key, value in item.items() if key != "id"} for item in first["output"]]
            [made] = [item for item in first["output"] if item["type"] == "function_call"]
            items.append({"type": "function_call_output", "call_id": made["call_id"], "output": "x"})
            last = self.server.post(Responses.path, {"input": items, "tools": tools, "temperature": 0}).json
            items += [{key: value for key, value in item.items() if key != "id"} for item in last["output"]]
        before = first["usage"]["input_tokens_details"]["cached_tokens"]
        self.assertGreater(before, 0.9 * (first["usage"]["input_tokens"] - 30))

    def test_fields_that_would_change_the_answer_are_refused(self):
        for field, value in (("background", True), ("conversation", "c"), ("prompt", {"id": "p"}),
                             ("top_logprobs", 2), ("max_output_tokens", -1), ("tool_choice", "required")):
            answer = self.server.post(Responses.path, Responses().body([("user", "greet")], extra={field: value}))
            self.assertEqual(answer.status, 400, (field, answer.text))
            self.assertTrue(answer.error["param"].startswith(field), answer.error)
        for field, value in (("store", False), ("include", ["reasoning.encrypted_content"]), ("truncation", "auto"),
                             ("service_tier", "auto"), ("prompt_cache_key", "k"), ("metadata", {"a": "b"}),
                             ("client_metadata", {"x": "y"}), ("text", {"verbosity": "low"})):
            answer = self.server.post(Responses.path, Responses().body([("user", "greet")], extra={field: value}))
            self.assertEqual(answer.status, 200, (field, answer.text))


if __name__ == "__main__":
    main()
