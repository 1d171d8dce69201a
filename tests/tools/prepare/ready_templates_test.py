#!/usr/bin/env python3
"""The ready templates render what the models' own templates render, byte for byte, and mark what the assistant says.

The published templates are no part of this tree: what they make of CHATS is kept as a hash. Where ../shared has Qwen3's
files, its template itself is rendered beside ours.
"""

import hashlib
import itertools
import json
import random
import shutil
import unittest

from support import DEMO, SHARED, PrepareTest  # puts tools/ on the path, and skips where a package is missing

from prepare.template import READY, find_template, ready_names
from prepare.tokenizer import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

QWEN3 = SHARED / "data" / "tokenizers" / "qwen3" / "tokenizer_config.json"
END = "<|endoftext|>"
TEXTS = ("Hi", "", "  two\n\n", "<think>\nhm\n</think>\n\nyes", "<think>a</think>b", "</think>x", "<think>\n\n</think>\n\nyes", "\n\nlead",
         "<tool_response>\nz\n</tool_response>", 'é"\\ü日本', "a</think>b</think>c", "<think><think>q\n\n</think>\n")
TOOLS = [{"type": "function", "function": {"name": "moon", "parameters": {"type": "object", "properties": {"é": {"type": "string"}}}}}]
# Hashes of the published templates' output for CHATS: Qwen3-0.6B, Phi-3-mini-4k-instruct, Phi-4-mini-instruct.
HASHES = {
    "phi3": "2c5b6d7cca2909f3bccce27bb5359c05f5d40d670a140e2699147a6ab53f26f5",
    "phi4_mini": "96302bcedb8e746698e8ff1573476eb63b72d9fa54fa32aaccbd0914e7725266",
    "qwen3": "472d69b7534344cd066ab3920921a7975b9dcefee46df7aaedcac9a08db068a4",
}


def random_chat(draw):
    """Messages in any order, as data has them and as they should not be."""
    messages = []
    for _ in range(draw.randint(1, 7)):
        message = {"role": draw.choice(["user", "assistant", "user", "assistant", "tool", "system"]), "content": draw.choice(TEXTS)}
        if message["role"] == "assistant" and draw.random() < 0.3:
            message["reasoning_content"] = draw.choice(TEXTS)
        if message["role"] == "assistant" and draw.random() < 0.3:
            arguments = [{"a": 1, "é": ["x"]}, {}, '{"a": 2}']
            message["tool_calls"] = [{"type": "function", "function": {"name": "moon", "arguments": draw.choice(arguments)}} for _ in range(draw.randint(1, 3))]
        messages.append(message)
    return messages, draw.choice([None, None, TOOLS]), draw.choice([{}, {"enable_thinking": False}, {"enable_thinking": True}])


def chats():
    draw = random.Random(5)
    return [random_chat(draw) for _ in range(400)]


def rendered(text, chat, prompt):
    messages, tools, variables = chat
    return render_jinja_template(conversations=[messages], tools=tools, chat_template=text, add_generation_prompt=prompt, eos_token=END, **variables)[0][0]


def digest(text):
    found = hashlib.sha256()
    for chat, prompt in itertools.product(chats(), (False, True)):
        found.update(rendered(text, chat, prompt).encode() + b"\0")
    return found.hexdigest()


def ready(name):
    return (READY / f"{name}.jinja").read_text(encoding="utf-8")


def unmarked(name):
    """The template without its marks: as the model's own is."""
    return ready(name).replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")


class ReadyTemplates(PrepareTest):
    def model(self, template):
        """The demo's tokenizer with a template as the model's own."""
        folder = self.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path in DEMO.glob("*token*.json"):
            shutil.copy(path, folder)
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        return folder

    def test_they_render_what_the_published_ones_render(self):
        self.assertEqual(sorted(HASHES), ready_names())
        for name, expected in HASHES.items():
            self.assertEqual(digest(ready(name)), expected, name)

    def test_qwen3_beside_its_file(self):
        if not QWEN3.is_file():
            self.skipTest(f"{QWEN3} is not there")
        own = json.loads(QWEN3.read_text())["chat_template"]
        for chat, prompt in itertools.product(chats(), (False, True)):
            self.assertEqual(rendered(ready("qwen3"), chat, prompt), rendered(own, chat, prompt))

    def test_one_answer_has_the_mask_of_verified_prefixes(self):
        records = [{"messages": [{"role": "user", "content": "Name it."}, {"role": "assistant", "content": text}], "chat_template_kwargs": variables}
                   for text, variables in itertools.product(("The oskel.", "<think>\nhm\n</think>\n\nIt.", "<think>\n\n</think>\n\nIt."), ({}, {"enable_thinking": True}))]
        records.append({"messages": [{"role": "user", "content": "Name it."}, {"role": "assistant", "content": "It."}], "chat_template_kwargs": {"enable_thinking": False}})
        data = self.write("d.jsonl", records)
        for name in ready_names():
            model = self.model(unmarked(name))
            expected, found = self.prepare(data, model=model), self.prepare(data, "--chat_template", name, model=model)
            self.assertEqual((found.ids, found.masks), (expected.ids, expected.masks), name)
            self.assertTrue(all(map(any, found.masks)))

    def test_several_turns_are_learnt_and_the_refusal_names_the_way(self):
        turns = [{"role": role, "content": text} for role, text in (("user", "Name it."), ("assistant", "<think>\nhm\n</think>\n\nThe oskel."), ("user", "And?"), ("assistant", "No."))]
        data = self.write("d.jsonl", [{"messages": turns}])
        # The parts of the first answer and of the last one that are learnt.
        learnt = {"qwen3": ["The oskel.<|im_end|>\n", "<think>\n\n</think>\n\nNo.<|im_end|>\n"], "phi3": ["<think>\nhm\n</think>\n\nThe oskel.<|end|>\n", f"No.<|end|>\n{END}"],
                  "phi4_mini": ["<think>\nhm\n</think>\n\nThe oskel.<|end|>", f"No.<|end|>{END}"]}
        for name in ready_names():
            (self.folder / "x.tokens").unlink(missing_ok=True)
            self.assertIn(f"use --chat_template {name}, which makes the same text", self.refused(data, model=self.model(unmarked(name))), name)
            model = self.model(unmarked(name))
            template = find_template(Tokenizer(model), name)
            template.special_tokens = {"eos_token": END}
            template.own.special_tokens = {"eos_token": END}
            text, spans = template.render(turns, None, spans=True)
            self.assertEqual([text[begin:end] for begin, end in spans], learnt[name], name)
            code, out, err = self.run_command(data, "--chat_template", name, model=model)
            self.assertEqual((code, err), (0, ""))
            self.assertIn(f"template {name} (masks by its generation blocks)", out)

    def test_a_template_that_is_not_the_models_is_refused(self):
        data = self.write("d.jsonl", [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]}])
        err = self.refused(data, "--chat_template", "phi3", model=self.model(unmarked("qwen3")))
        self.assertIn("the ready template phi3 makes another text of it than the model's own", err)
        self.assertIn("ready ones are phi3, phi4_mini, qwen3", self.refused(data, "--chat_template", "quen3"))


if __name__ == "__main__":
    unittest.main()
