#!/usr/bin/env python3
"""Tokenizers whose class in Transformers has steps of its own, and tokens of added_tokens.json: the same ids in prepare, in
the programs and in Transformers.

usage: tokenizers_test.py BIN, the folder with the program `tandem`; skips where transformers is missing
"""

import itertools
import json
import subprocess
import sys
import unittest

from support import SKIPPED, PrepareTest

from prepare.errors import UserError
from prepare.tokenizer import Tokenizer

PROGRAM = sys.argv.pop(1) + "/tandem"
try:
    from transformers import AutoTokenizer
except ImportError as missing:
    print(f"skipped: {missing}; requirements-test.txt lists it")
    sys.exit(SKIPPED)

MARK = "\u2581"
TEXTS = ("the a", " the", "  the  in", "a</s>the", "a</s> the", "<s>a", "", "the</s>", "x \u00e9 \u6f22\n the\tb", MARK + "the", "a <m>the <q>", "<m>", " ")
ABSENT = object()
# As sentencepiece's vocabularies are converted: by several versions, and by Gemma's.
STEPS = {"first": (None, {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": False}), "always": (None, {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": False}),
         "never": (None, {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "never", "split": False}),
         "prepend": ({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]}, None),
         "gemma": ({"type": "Replace", "pattern": {"String": " "}, "content": MARK}, {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False})}
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
NAMED_IDS = ("<unk>", "<s>", "</s>")


def model():
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), MARK, *map(chr, range(33, 127)), "\u00e9"]
    merges = [[MARK, "t"], ["h", "e"], [MARK + "t", "he"], [MARK, "a"], [MARK, MARK], ["i", "n"]]
    names += ["".join(pair) for pair in merges]
    return {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": {name: number for number, name in enumerate(names)}, "merges": merges}


class Tokenizers(PrepareTest):
    def make(self, steps, config, added=None):
        """A folder with these files."""
        normalizer, pre_tokenizer = STEPS[steps]
        tokens = [{"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for number, text in enumerate(NAMED_IDS)]
        begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
        processor = {"type": "TemplateProcessing", "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [begin, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                     "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
        decoders = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
        whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": processor,
                 "decoder": {"type": "Sequence", "decoders": decoders}, "model": model()}
        (self.folder / "added_tokens.json").unlink(missing_ok=True)
        files = {"tokenizer.json": whole, "tokenizer_config.json": {**NAMED, **config}, "config.json": {"model_type": "llama", "vocab_size": 1000, "architectures": ["LlamaForCausalLM"]}}
        for name, content in {**files, **({"added_tokens.json": added} if added is not None else {})}.items():
            self.write(name, content)

    def ids_of_the_program(self):
        done = subprocess.run([PROGRAM, "tokenize", "--model_name", self.folder, "--add_special_tokens"], input="".join(json.dumps(text) + "\n" for text in TEXTS), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def same(self, what):
        theirs, ours = AutoTokenizer.from_pretrained(self.folder), Tokenizer(self.folder)
        for special in (False, True):
            expected = [theirs.encode(text, add_special_tokens=special) for text in TEXTS]
            self.assertEqual([ids.tolist() for ids in ours.encode(TEXTS, special)], expected, what)
        self.assertEqual(self.ids_of_the_program(), expected, what)
        return expected

    def test_llamas_own_steps(self):
        """By `legacy` and `add_prefix_space`, whatever tokenizer.json has."""
        found = {}
        for steps, legacy, prefix in itertools.product(STEPS, (ABSENT, False, True), (ABSENT, False)):
            config = {name: value for name, value in (("legacy", legacy), ("add_prefix_space", prefix)) if value is not ABSENT}
            self.make(steps, {"tokenizer_class": "LlamaTokenizer", **config})
            found.setdefault(json.dumps(self.same((steps, config))), (steps, config))
        self.assertEqual(len(found), 3, "never, first and always")

    def test_other_classes(self):
        for steps in STEPS:
            self.make(steps, {"tokenizer_class": "PreTrainedTokenizerFast", "legacy": True})
            self.same(steps)
            self.make(steps, {"tokenizer_class": "GemmaTokenizer", "pad_token": "<unk>", "mask_token": "<unk>"})
            self.same(steps)

    def test_members_of_another_type(self):
        for member in ({"legacy": "yes"}, {"add_prefix_space": 1}):
            self.make("first", {"tokenizer_class": "LlamaTokenizer", **member})
            with self.assertRaisesRegex(UserError, next(iter(member))):
                Tokenizer(self.folder)
            done = subprocess.run([PROGRAM, "tokenize", "--model_name", self.folder], input="", capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(next(iter(member)), done.stderr)

    def test_added_tokens(self):
        """Of added_tokens.json, where tokenizer_config.json lists none."""
        last = len(model()["vocab"])
        for config in ({}, {"additional_special_tokens": ["<m>"]}, {"extra_special_tokens": ["<m>"]}, {"pad_token": "<m>"}, {"added_tokens_decoder": {}}):
            for number, added in enumerate(({}, {"<q>": last + 1, "<m>": last}, {"<unk>": 0, MARK + "the": 357}, {"<m>": last, "the": last + 1})):
                name = ("PreTrainedTokenizerFast", "LlamaTokenizer")[number % 2]
                self.make("first", {"tokenizer_class": name, **config}, added)
                self.same((config, added, name))

    def test_special_tokens_of_the_models_own(self):
        """A text or an object that says so is a token; in special_tokens_map.json each object is one."""
        token = {"content": "<m>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
        found = set()
        for number, value in enumerate(("<m>", token, {**token, "__type": "AddedToken"}, {**token, "__type": "Token"}, None, 7)):
            for more in ({}, {"audio_token": "<q>"}):
                self.make("first", {"tokenizer_class": ("PreTrainedTokenizerFast", "LlamaTokenizer")[number % 2], "image_token": value, **more})
                found.add(json.dumps(self.same((value, more))))
        self.assertGreater(len(found), 2)
        for map_of_tokens in ({"image_token": token}, {"image_token": "<m>", "pad_token": {**token, "content": "<q>"}}):
            self.make("first", {"tokenizer_class": "PreTrainedTokenizerFast"})
            self.write("special_tokens_map.json", map_of_tokens)
            self.same(map_of_tokens)
        (self.folder / "special_tokens_map.json").unlink()

    def test_an_added_token_with_another_id(self):
        self.make("first", {}, {"<m>": 900})
        with self.assertRaisesRegex(UserError, "added_tokens.json, gives <m> the id 900"):
            Tokenizer(self.folder)
        done = subprocess.run([PROGRAM, "tokenize", "--model_name", self.folder], input="", capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("added_tokens.json", done.stderr)


if __name__ == "__main__":
    unittest.main()
