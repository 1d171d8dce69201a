#!/usr/bin/env python3
"""Chats as Transformers renders, tokenises and masks them: the cases of transformers_chats.py, and those of ../shared/oracles/chat
where they are there."""

import json
import unittest

from support import DEMO, SHARED, PrepareTest, Prepared  # skips where a package is missing

import transformers_chats

CHAT = SHARED / "oracles" / "chat"


class Oracles(PrepareTest):
    def cases(self):
        """(model's folder, template, cases) of each template."""
        for name, text in transformers_chats.TEMPLATES.items():
            yield DEMO, self.write(f"{name}.jinja", text), transformers_chats.cases(name)
        for path in sorted(CHAT.glob("*/*.json")):
            yield SHARED / "models" / path.parent.name, CHAT / "templates" / f"{path.stem}.jinja", json.loads(path.read_text())

    def conversations(self):
        shared = json.loads((CHAT / "conversations.json").read_text()) if CHAT.is_dir() else []
        return {item["name"]: item["messages"] for item in shared} | transformers_chats.conversations()

    def test_ids_and_masks_are_transformers(self):
        conversations = self.conversations()
        for model, template, cases in self.cases():
            usable = [case for case in cases if case.get("mask") is not None]
            data = self.write("usable.jsonl", [{"messages": conversations[case["name"]]} for case in usable])
            found = self.prepare(data, "--chat_template", template, model=model)
            self.assertEqual(len(found.ids), len(usable))
            for case, ids, mask in zip(usable, found.ids, found.masks):
                self.assertEqual((ids, mask), (case["ids"], case["mask"]), f"{template.stem}: {case['name']}")

    def test_what_transformers_or_the_prefixes_refuse_is_refused(self):
        conversations, refused = self.conversations(), 0
        for model, template, cases in self.cases():
            for case in cases:
                if case.get("mask") is None:
                    data = self.write("one.jsonl", [{"messages": conversations[case["name"]]}])
                    text = self.refused(data, "--chat_template", template, model=model)
                    self.assertIn(case.get("error", "prefix"), text)
                    refused += 1
        self.assertGreater(refused, 0)

    def test_prefixes_give_the_mask_or_refuse_where_no_generation_block_helps(self):
        conversations = self.conversations()
        for model, template, cases in self.cases():
            stripped = self.write("stripped.jinja", transformers_chats.without_blocks(template.read_text()))
            for case in cases:
                if "error" in case:
                    continue
                data = self.write("one.jsonl", [{"messages": conversations[case["name"]]}])
                speaks_first = conversations[case["name"]][0]["role"] == "assistant"
                if speaks_first and self.run_command(data, "--chat_template", stripped, model=model)[0] == 0:
                    # The reference has no prefix of no message; the template renders one, and Transformers' blocks are the judge.
                    found = Prepared(self.folder / "x.tokens")
                    self.assertEqual((found.ids, found.masks), ([case["ids"]], [case["mask"]]), f"{template.stem}: {case['name']}")
                    (self.folder / "x.tokens").unlink()
                elif case["prefix_mask"] is None:
                    self.refused(data, "--chat_template", stripped, model=model)
                else:
                    found = self.prepare(data, "--chat_template", stripped, model=model)
                    self.assertEqual((found.ids, found.masks), ([case["ids"]], [case["prefix_mask"]]), f"{template.stem}: {case['name']}")
                    (self.folder / "x.tokens").unlink()

    def test_sharegpt_is_the_same_chat(self):
        conversations = self.conversations()
        alike = {*transformers_chats.conversations(), *(json.loads((CHAT / "sharegpt_names.json").read_text()) if CHAT.is_dir() else [])}
        speakers = {"system": "system", "user": "human", "assistant": "gpt"}
        for model, template, cases in self.cases():
            usable = [case for case in cases if case["name"] in alike and case.get("mask") is not None]
            chats = [[{"from": speakers[m["role"]], "value": m["content"]} for m in conversations[case["name"]]] for case in usable]
            data = self.write("sharegpt.jsonl", [{"conversations": chat} for chat in chats])
            found = self.prepare(data, "--chat_template", template, "--skip_refused", model=model)
            expected = usable
            self.assertEqual(list(zip(found.ids, found.masks)), [(case["ids"], case["mask"]) for case in expected])

    def test_weights_choose_among_the_assistants_messages(self):
        conversations = self.conversations()
        for model, template, cases in self.cases():
            for case in cases:
                if case.get("mask_by") != "generation" or len(case["learnt"]) < 2:
                    continue
                for left_out, begin, end in case["learnt"]:
                    messages = [{**message, "weight": 0} if number == left_out else message for number, message in enumerate(conversations[case["name"]])]
                    found = self.prepare(self.write("one.jsonl", [{"messages": messages}]), "--chat_template", template, model=model)
                    expected = [0 if begin <= t < end else bit for t, bit in enumerate(case["mask"])]
                    self.assertEqual((found.ids, found.masks), ([case["ids"]], [expected]), f"{template.stem}: {case['name']}")


if __name__ == "__main__":
    unittest.main()
