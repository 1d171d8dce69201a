#!/usr/bin/env python3
"""Chats of every form that is written give the tokens of the same chat in the form that templates expect."""

import json
import os
import shutil
import subprocess
import sys
import unittest

from support import DEMO, ROOT, Prepared, PrepareTest

from prepare import chat
from prepare.errors import UserError
from prepare.tokenizer import Tokenizer

TOKENIZER = Tokenizer(DEMO)
USER, SAID = "Name the home of the oskel.", "The willow trees."
CHAT = [{"role": "user", "content": USER}, {"role": "assistant", "content": SAID}]
TOOL = {"type": "function", "function": {"name": "moon", "parameters": {"type": "object", "properties": {"a": {"type": "string", "default": None}}}}}
CALL = {"type": "function", "function": {"name": "moon", "arguments": {"a": "b", "c": None}}}
CALLED = [{"role": "user", "content": USER}, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "It is."}, {"role": "assistant", "content": SAID}]
# Asks for all that a template may ask for, and tells a member that is null from one that is not there.
TEMPLATE = """{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- if mood is defined %}mood {{ mood }}
{% endif %}{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% generation %}{{ message['content'] }}{% if 'tool_calls' in message %}{% for call in message['tool_calls'] %}
call {{ call['function']['name'] }} {{ call['function']['arguments'] | tojson }}{% endfor %}{% endif %}{% if 'name' in message %} by {{ message['name'] }}{% endif %}<|im_end|>{% endgeneration %}
{% endfor %}"""


class Chats(PrepareTest):
    def made(self, record, *flags, ending=".jsonl"):
        template = self.write("t.jinja", TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", ""))
        data = self.folder / f"d{ending}"
        if ending == ".parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), data)
        elif ending == ".csv":
            rows = [list(record), [value if isinstance(value, str) else json.dumps(value) for value in record.values()]]
            data.write_text("\n".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows) + "\n", encoding="utf-8")
        else:
            self.write(data.name, [record])
        found = self.prepare(data, "--chat_template", template, *flags)
        return TOKENIZER.backend.decode(found.ids[0], skip_special_tokens=False), found.ids, found.masks

    def why(self, record):
        (self.folder / "x.tokens").unlink(missing_ok=True)
        return self.refused(self.write("d.jsonl", [record]), "--chat_template", DEMO / "chat_template.jinja")

    def same(self, record, expected, *flags, **options):
        self.assertEqual(self.made(record, *flags, **options), self.made(expected, *flags))

    def test_null_members_are_not_there(self):
        nulls = {"name": None, "tool_calls": None, "tool_call_id": None, "weight": None, "function_call": None}
        for ending in (".jsonl", ".json", ".csv", ".parquet"):
            self.same({"messages": [{**message, **nulls} for message in CHAT], "tools": None, "system": None}, {"messages": CHAT}, ending=ending) if ending != ".csv" else \
                self.same({"messages": [{**message, **nulls} for message in CHAT], "tools": "", "system": ""}, {"messages": CHAT}, ending=ending)

    def test_roles_and_contents(self):
        for user, assistant in (("human", "gpt"), ("User", "Assistant"), ("USER", " bot "), ("user", "model"), ("human", "chatgpt")):
            self.same({"messages": [{"role": user, "content": USER}, {"role": assistant, "content": SAID}]}, {"messages": CHAT})
            self.same({"conversations": [{"from": user, "value": USER}, {"from": assistant, "value": SAID}]}, {"messages": CHAT})
        for content in ([{"type": "text", "text": USER}], [USER], [{"type": "text", "text": USER[:7]}, {"type": "text", "text": USER[7:]}], [{"text": USER}]):
            self.same({"messages": [{"role": "user", "content": content}, CHAT[1]]}, {"messages": CHAT})

    def test_calls(self):
        expected = {"messages": CALLED, "tools": [TOOL]}
        text = self.made(expected)[0]
        self.assertIn('call moon {"a": "b", "c": null}', text)
        self.assertIn('"default": null', text)
        as_text = {"type": "function", "function": {"name": "moon", "arguments": json.dumps({"a": "b", "c": None})}}
        for call in (as_text, {"name": "moon", "arguments": {"a": "b", "c": None}}, {**CALL, "id": None, "index": None}):
            for content in ("", None):
                self.same({"messages": [CALLED[0], {"role": "assistant", "content": content, "tool_calls": [call]}, *CALLED[2:]], "tools": [TOOL]}, expected)
        for calls in (json.dumps([CALL]), [json.dumps(CALL)]):
            self.same({"messages": [CALLED[0], {"role": "assistant", "content": None, "tool_calls": calls}, *CALLED[2:]], "tools": [TOOL]}, expected)
        self.same({"messages": [CALLED[0], {"role": "assistant", "function_call": as_text["function"]}, *CALLED[2:]], "tools": [TOOL]}, expected)
        turns = [{"from": "human", "value": USER}, {"from": "function_call", "value": json.dumps(CALL["function"])}, {"from": "observation", "value": "It is."}, {"from": "gpt", "value": SAID}]
        self.same({"conversations": turns, "tools": json.dumps([TOOL])}, expected)

    def test_tools(self):
        expected = {"messages": CHAT, "tools": [TOOL]}
        for tools in (json.dumps([TOOL]), [json.dumps(TOOL)], TOOL, json.dumps(TOOL)):
            self.same({"messages": CHAT, "tools": tools}, expected)
        for functions in ([TOOL["function"]], json.dumps([TOOL["function"]]), TOOL["function"], json.dumps(TOOL["function"])):
            self.same({"messages": CHAT, "functions": functions}, expected)
        for tools in ("[]", "", None, []):
            self.same({"messages": CHAT, "tools": tools}, {"messages": CHAT})
        self.assertIn('"tools" is a text', self.why({"messages": CHAT, "tools": "moon"}))
        self.assertIn('"tools" holds a number', self.why({"messages": CHAT, "tools": [5]}))
        self.assertIn('"functions" is a number', self.why({"messages": CHAT, "functions": -1}))
        self.assertIn('a call of "tool_calls" of message 2 has no "name"', self.why({"messages": [CHAT[0], {**CHAT[1], "tool_calls": {}}]}))

    def test_system_beside_messages(self):
        expected = {"messages": [{"role": "system", "content": "Be brief."}, *CHAT]}
        turns = [{"from": "human", "value": USER}, {"from": "gpt", "value": SAID}]
        for record in ({"system": "Be brief.", "messages": CHAT}, {"system": "Be brief.", "conversations": turns}, {"system": [{"type": "text", "text": "Be brief."}], "messages": CHAT},
                       {"system": "Be brief.", **expected}):
            self.same(record, expected)
        self.assertIn("says something else", self.why({"system": "Be long.", **expected}))
        record = {"prompt": CHAT[:1], "completion": CHAT[1:], "system": "Be brief."}
        self.assertIn("Be brief.", self.made(record)[0])

    def test_instructions_with_a_system_or_a_history_are_chats(self):
        record = {"instruction": "Name the home", "input": "of the oskel.", "output": SAID}
        question = [{"role": "user", "content": "Name the home\nof the oskel."}, CHAT[1]]
        system, history = [{"role": "system", "content": "Be brief."}], [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}]
        for ending in (".jsonl", ".csv", ".parquet"):
            self.same({**record, "system": "Be brief.", "history": [["q", "r"]]}, {"messages": [*system, *history, *question]}, ending=ending)
        self.same({**record, "history": json.dumps([["q", "r"]])}, {"messages": [*history, *question]})
        self.same({**record, "input": "", "system": "Be brief."}, {"messages": [*system, {"role": "user", "content": "Name the home"}, CHAT[1]]})
        self.assertEqual(self.made({**record, "system": "", "history": []}, "--dataset_format", "alpaca_chat"), self.made({"messages": question}))
        self.assertIn("### Instruction", self.made({**record, "system": "", "history": []})[0])
        (self.folder / "x.tokens").unlink()
        why = self.refused(self.write("d.jsonl", [record, {**record, "system": "Be brief."}]), "--chat_template", DEMO / "chat_template.jinja")
        self.assertIn('record 2: "system" would change what is learnt', why)
        self.assertIn("by --dataset_format alpaca_chat", why)

    def test_variables_of_the_template(self):
        for mood in ({"mood": "good"}, json.dumps({"mood": "good"})):
            self.assertIn("mood good", self.made({"messages": CHAT, "chat_template_kwargs": mood})[0])
        self.assertIn('sets "messages"', self.why({"messages": CHAT, "chat_template_kwargs": {"messages": []}}))

    def test_the_assistant_may_speak_first(self):
        text, ids, masks = self.made({"messages": [CHAT[1], *CHAT]})
        learnt = TOKENIZER.backend.decode([token for token, bit in zip(ids[0], masks[0]) if bit], skip_special_tokens=False)
        self.assertEqual(learnt.count(SAID), 2, text)
        (self.folder / "x.tokens").unlink()
        template = self.write("u.jinja", "{% if messages[0]['role'] == 'user' %}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}")
        self.assertIn("the empty chat before the assistant", self.refused(self.write("d.jsonl", [{"messages": [CHAT[1], *CHAT]}]), "--chat_template", template))

    def test_what_is_learnt_of_a_message(self):
        for member in ({"weight": 0}, {"loss": False}, {"train": False}, {"train": 0, "weight": 1}):
            record = {"messages": [CHAT[0], {**CHAT[1], **member}, CHAT[0], CHAT[1]]}
            _, ids, masks = self.made(record)
            learnt = TOKENIZER.backend.decode([token for token, bit in zip(ids[0], masks[0]) if bit], skip_special_tokens=False)
            self.assertEqual(learnt.count(SAID), 1)
        self.assertIn('"train" of message 1', self.why({"messages": [{**CHAT[0], "train": True}, CHAT[1]]}))

    def test_a_misspelt_role_is_named(self):
        """With its record, its message, what it is, and the nearest role that is known."""
        for role, what in (("asistant", 'the role of message 2 is "asistant", which no list has and the template does not name; the nearest known role is "assistant"'),
                           ("Assisstant ", 'nearest known role is "assistant"'), ("ASSITANT", 'nearest known role is "assistant"'), ("gtp", 'nearest known role is "gpt"'), ("usr", 'nearest known role is "user"'),
                           ("\u0430ssistant", 'nearest known role is "assistant"'), ("systm", 'nearest known role is "system"'), ("zzz", 'is "zzz", which no list has and the template does not name; known are assistant, developer'),
                           ("", "the role of message 2 is empty; known are"), (" ", "the role of message 2 is empty"), (None, "message 2 has no role; known are"), (5, "the role of message 2 is a number (5)"),
                           (True, "the role of message 2 is true or false (true)"), (["assistant"], 'the role of message 2 is a list (["assistant"])')):
            for form in ("messages", "conversations", "prompt"):
                turns = [CHAT[0], {"role": role, "content": SAID}]
                record = {"prompt": CHAT[:1], "completion": turns} if form == "prompt" else {form: turns}
                with self.subTest(role=role, form=form):
                    why = self.why(record)
                    self.assertIn("record 1: ", why)
                    self.assertIn(what.replace("message 2", 'message 2 of "completion"') if form == "prompt" else what, why)
        for other in (self.why({"conversations": [{"from": "human", "value": USER}, {"from": "gptt", "value": SAID}]}), self.why({"system": "x", "messages": [CHAT[0], {"role": "asistant", "content": SAID}]})):
            self.assertIn("the role of message 2 is ", other)

    def test_a_role_that_the_template_names_is_known(self):
        record = self.write("d.jsonl", [{"messages": [{"role": "critic", "content": "hm"}, *CHAT]}])
        template = "{% for m in messages %}{% if m.role == 'critic' %}C {% endif %}{{ m.content }}<|im_end|>{% endfor %}"
        self.prepare(record, "--chat_template", self.write("t.jinja", template))
        (self.folder / "x.tokens").unlink()
        self.assertIn('message 1 is "critic"', self.refused(record, "--chat_template", self.write("u.jinja", template.replace("critic", "judge"))))

    def test_what_would_change_the_text_is_named(self):
        for record, what in (({"messages": CHAT, "images": ["x"]}, '"images"'), ({"messages": CHAT, "history": [["a", "b"]]}, '"history"'), ({"messages": CHAT, "weight": 0.5}, '"weight"'),
                             ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, CHAT[1]]}, 'of type "image_url"'), ({"messages": [{**CHAT[0], "audio": {"id": "x"}}, CHAT[1]]}, '"audio" of message 1'),
                             ({"instruction": "a", "output": "b", "system_prompt": "c"}, '"system_prompt"'), ({"instruction": "a", "output": "b", "history": ["a", "b"]}, 'entry 1 of "history"'), ({"text": "a", "images": ["x"]}, '"images"'),
                             ({"input_ids": [1, 2], "seq_lengths": [1, 1]}, '"seq_lengths"'), ({"messages": [{"role": 5, "content": "a"}]}, "the role of message 1 is a number (5)"),
                             ({"messages": [{"role": "user", "content": 5}]}, "the content of message 1 is a number"), ({"messages": [CHAT[0], {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "x"}}]}]}, 'the arguments of a call of "tool_calls" of message 2')):
            self.assertIn(what, self.why(record))
        self.same({"messages": CHAT, "images": [], "history": None, "weight": 1, "id": 5, "source": "x"}, {"messages": CHAT})

    def test_a_member_that_may_say_what_is_learnt_is_named(self):
        """Trainers let users choose its name."""
        for member in ("mask", "loss_mask", "masked", "training", "trainable", "learn", "loss_weight"):
            self.assertIn(f'"{member}" of message 2', self.why({"messages": [CHAT[0], {**CHAT[1], member: False}]}))

    def test_what_the_template_does_not_ask_for_is_said(self):
        data = self.write("d.jsonl", [{"messages": [CHAT[0], {**CHAT[1], "reasoning": "hm", "id": 5}], "chat_template_kwargs": {"mood": "fine"}, "tools": [TOOL]}, {"messages": CALLED}])
        code, out, _ = self.run_command(data, "--chat_template", self.write("t.jinja", "{% for m in messages %}{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"))
        self.assertEqual(code, 0)
        self.assertIn("note     the template does not ask for: reasoning, tools, mood, tool_calls\n", out)
        _, out, _ = self.run_command(self.write("d.jsonl", [{"messages": CALLED, "tools": [TOOL]}]), "--chat_template", self.write("t.jinja", TEMPLATE))
        self.assertNotIn("note ", out)

    def test_a_text_beside_the_messages_is_one_of_them_or_said(self):
        for more, said in (({"prompt": USER, "output": SAID}, False), ({"text": f"User: {USER}"}, False), ({"instruction": "Be brief."}, True)):
            _, out, _ = self.run_command(self.write("d.jsonl", [{"messages": CHAT, **more}]), "--chat_template", DEMO / "chat_template.jinja")
            self.assertEqual("not used: instruction\n" in out, said, more)
            self.assertEqual("note " in out, said, more)

    def test_other_spellings(self):
        self.same({"conversations": [{"from": "prompter", "value": USER}, {"from": "tool_call", "value": json.dumps(CALL["function"])}, {"from": "tool_response", "value": "It is."}, {"from": "gpt", "value": SAID}]}, {"messages": CALLED})
        self.same({"messages": CHAT, "tools": {}}, {"messages": CHAT})
        for calls, what in (([5], '"tool_calls" of message 2 holds a number'), ([{"name": "moon", "parameters": {"a": "b"}}], 'a call of "tool_calls" of message 2 has its arguments under "parameters"')):
            self.assertIn(what, self.why({"messages": [CHAT[0], {"role": "assistant", "content": "", "tool_calls": calls}]}))

    def test_what_nobody_knows_is_said_once(self):
        data = self.write("d.jsonl", [{"messages": CHAT, "oddity": n, "id": n} for n in range(5)])
        code, out, _ = self.run_command(data, "--chat_template", DEMO / "chat_template.jinja")
        self.assertEqual((code, out.count("note ")), (0, 1))
        self.assertIn("members that are not used: oddity\n", out)

    def test_columns(self):
        expected = {"instruction": "a", "output": "b"}
        found = self.prepare(self.write("d.jsonl", [{"question": "a", "answer": "b", "id": 5}]), "--columns", "instruction=question,output=answer")
        self.assertEqual(found.ids, self.prepare(self.write("e.jsonl", [expected])).ids)
        (self.folder / "x.tokens").unlink()
        self.assertIn("--columns instruction=question", self.refused(self.folder / "d.jsonl"))
        self.assertIn('"query", which --columns names, is absent', self.refused(self.folder / "d.jsonl", "--columns", "instruction=query,output=answer"))
        self.assertIn("[flags] --columns a", self.refused(self.folder / "d.jsonl", "--columns", "a"))


class ToolTemplates(PrepareTest):
    """A model may have a template of its own for chats with tools: the texts are those of Transformers, chat by chat."""

    OTHERS = {"default": "plain", "tool_use": "with {{ tools[0].function.name }}"}

    def model(self, names, in_files):
        folder = self.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "additional_chat_templates").mkdir(parents=True)
        for path in DEMO.glob("*token*.json"):
            shutil.copy(path, folder)
        body = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        texts = {name: self.OTHERS[name] + "\n" + body for name in names}
        if in_files:
            for name, text in texts.items():
                (folder / ("chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja")).write_text(text)
        else:
            config = json.loads((folder / "tokenizer_config.json").read_text())
            (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": [{"name": name, "template": text} for name, text in texts.items()]}))
        return folder

    def test_each_chat_has_the_template_that_transformers_chooses(self):
        transformers = self.transformers()
        records = [{"messages": CHAT, "tools": [TOOL]}, {"messages": CHAT}, {"messages": CHAT, "tools": []}]
        for in_files in (True, False):
            model = self.model(("default", "tool_use"), in_files)
            theirs = transformers.AutoTokenizer.from_pretrained(model)
            expected = [theirs.apply_chat_template(record["messages"], tools=record.get("tools") or None, tokenize=True, return_dict=True)["input_ids"] for record in records]
            found = self.prepare(self.write("d.jsonl", records), model=model)
            self.assertEqual(found.ids, expected)
            self.assertNotEqual(found.ids[0], found.ids[1])
            self.assertEqual(found.metadata["template"], "of the model, tool_use")
            self.assertEqual(len(found.metadata["template_xxh3_128"].split(", ")), 2)

    def transformers(self):
        try:
            import transformers
        except ImportError as missing:
            self.skipTest(str(missing))
        return transformers

    def test_the_line_says_which_were_used(self):
        model = self.model(("default", "tool_use"), True)
        (model / "chat_template.jinja").write_text((DEMO / "chat_template.jinja").read_text())
        blocks, prefixes = "of the model (masks by its generation blocks)", "tool_use (masks by verified prefixes)"
        with_tools, without = {"messages": CHAT, "tools": [TOOL]}, {"messages": CHAT}
        for records, flags, said, name in (([with_tools, without], [], f"template {blocks} and {prefixes},", "of the model, tool_use"), ([with_tools], [], f"template {prefixes},", "tool_use"),
                                           ([without], [], f"template {blocks},", "of the model"), ([with_tools], ["--loss_on", "all"], "template tool_use,", "tool_use"),
                                           ([with_tools], ["--chat_template", "default"], "template default (masks by its generation blocks),", "default"),
                                           ([with_tools, without], ["--chat_template", DEMO / "chat_template.jinja"], "template chat_template.jinja (masks", "chat_template.jinja")):
            code, out, err = self.run_command(self.write("d.jsonl", records), *flags, model=model)
            self.assertEqual((code, err), (0, ""))
            self.assertIn(said, out)
            self.assertEqual(Prepared(self.folder / "x.tokens").metadata["template"], name)

    def test_one_that_no_chat_has_may_be_anything(self):
        model = self.model(("default", "tool_use"), True)
        (model / "additional_chat_templates/tool_use.jinja").write_text("{% oops %}")
        self.prepare(self.write("d.jsonl", [{"messages": CHAT}]), model=model)
        (self.folder / "x.tokens").unlink()
        self.assertIn("[chat_template] tool_use does not compile", self.refused(self.write("d.jsonl", [{"messages": CHAT, "tools": [TOOL]}]), model=model))

    def test_none_is_guessed(self):
        why = self.refused(self.write("d.jsonl", [{"messages": CHAT, "tools": [TOOL]}]), model=self.model(("tool_use",), True))
        self.assertIn("name one of tool_use by --chat_template", why)

    def test_of_generate(self):
        """It starts the program with the texts, one JSON string in each line: here a shell's cat."""
        model = self.model(("default", "tool_use"), True)
        prompts = self.write("p.jsonl", [{"messages": CHAT[:1], "tools": [TOOL]}, {"messages": CHAT[:1]}])
        program = self.write("program", "#!/bin/sh\ncat\n")
        program.chmod(0o700)
        command = [sys.executable, "-m", "prepare.chat", program, "--chat", "--model_name", model, "--prompts", prompts]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "tools")})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        asked = f"<|im_start|>user\n{USER}<|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual([json.loads(line) for line in done.stdout.splitlines()], [f"with moon\n{asked}", f"plain\n{asked}"])


class Prompts(unittest.TestCase):
    """Lines of a prompt file of `tandem generate --chat`."""

    def test_have_the_forms_of_chats(self):
        record = {"messages": [{"role": "human", "content": [{"type": "text", "text": USER}], "name": None}], "tools": json.dumps([TOOL]), "system": "Be brief."}
        found = chat.conversation(json.dumps(record), 1, True)
        self.assertEqual((found.messages, found.tools), ([{"role": "system", "content": "Be brief."}, CHAT[0]], [TOOL]))
        for text in (json.dumps(USER), json.dumps({"prompt": USER})):
            self.assertEqual(chat.conversation(text, 1, True).messages, CHAT[:1])
        for value, what in ({"messages": []}, "is empty"), ({"messages": CHAT, "images": ["x"]}, '"images"'), ([], "is none of"), ({"messages": [5]}, 'message 1 of "messages" is a number'):
            with self.assertRaisesRegex(UserError, what):
                chat.conversation(json.dumps(value), 1, True)
        with self.assertRaisesRegex(UserError, "deep in one another"):
            chat.conversation("[" * 3000 + "]" * 3000, 1, True)


class Tokens(PrepareTest):
    def test_padding_is_neither_seen_nor_learnt(self):
        ids = [5, 6, 7]
        for record in ({"input_ids": [5, 6, 7, 0, 0], "attention_mask": [1, 1, 1, 0, 0]}, {"input_ids": [0, 0, 5, 6, 7], "attention_mask": [0, 0, 1, 1, 1], "position_ids": [1, 1, 0, 1, 2]},
                       {"input_ids": [5, 6, 7, 0], "attention_mask": [1, 1, 1, 0], "labels": [-100, 6, 7, 0]}, {"input_ids": ids, "attention_mask": [1, 1, 1], "token_type_ids": [0, 0, 0]}):
            found = self.prepare(self.write("i.jsonl", [record]))
            self.assertEqual((found.ids, found.masks), ([ids], [[0 if "labels" in record else 1, 1, 1]]))
        (self.folder / "x.tokens").unlink()
        for record, what in (({"input_ids": ids, "attention_mask": [1, 0, 1]}, "between tokens that are seen"), ({"input_ids": ids, "attention_mask": [1, 1, 2]}, "packed records"), ({"input_ids": ids, "attention_mask": [0, 0, 0]}, "leaves no token"),
                             ({"input_ids": ids, "position_ids": [0, 1, 0]}, '"position_ids" says'), ({"input_ids": ids, "token_type_ids": [0, 1, 1]}, '"token_type_ids" says'), ({"input_ids": ids, "attention_mask": [1]}, "has 1 entries")):
            self.assertIn(what, self.refused(self.write("i.jsonl", [record])))

    def test_masks_that_differ_are_refused(self):
        ids = [5, 6, 7]
        for masks in ({"completion_mask": [0, 1, 1], "assistant_masks": [0, 0, 1]}, {"labels": ids, "completion_mask": [0, 0, 1]}):
            self.assertIn(f'marks other tokens than "{"labels" if "labels" in masks else "assistant_masks"}"', self.refused(self.write("i.jsonl", [{"input_ids": ids, **masks}])))
        found = self.prepare(self.write("i.jsonl", [{"input_ids": ids, "labels": [-100, 6, 7], "completion_mask": [0, 1, 1]}]))
        self.assertEqual(found.masks, [[0, 1, 1]])

    def test_labels_that_are_the_ids_mark_no_prompt(self):
        found = self.prepare(self.write("i.jsonl", [{"input_ids": [5, 6], "labels": [5, 6]}, {"input_ids": [5, 6], "labels": [-100, 6]}, {"input_ids": [5, 6, 7], "labels": [-100, -100, 7]}]))
        self.assertEqual((found.masks, found.flags), ([[1, 1], [0, 1], [0, 0, 1]], [0, 0, 4]))


if __name__ == "__main__":
    unittest.main()
