#!/usr/bin/env python3
"""Every member that Transformers and PEFT read of a model's files is in our lists: config.json, and those beside it.

The lists are docs/model_keys.md and docs/folder_keys.md, which a test keeps equal to the code
(tests/models/families/model_keys_test.cpp). Skips where transformers is missing.
"""

import ast
import dataclasses
import importlib
import inspect
import json
import re
import sys
import textwrap
import unittest
from pathlib import Path

SKIPPED = 77  # ctest's SKIP_RETURN_CODE
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "model_keys.md"
FOLDER_PAGE = ROOT / "docs" / "folder_keys.md"
# These names concern the code that runs, not the model.
OF_CODE = {"get_text_config", "_attn_implementation", "_experts_implementation", "to_dict"}
# Members of a whole model around the text model, which alone is read.
OF_WHOLE = {"image_token_id", "mm_tokens_per_image", "text_config", "vision_config", "boi_token_id", "eoi_token_id"}
# Transformers gives a text these special tokens where a file names none; here it has none, and generation_config.json counts.
WITHOUT_DEFAULT = {"bos_token_id", "eos_token_id", "pad_token_id", "model_type", "tie_word_embeddings"}
# These follow from other members in both.
WORKED_OUT = {"rope_parameters", "layer_types", "head_dim", "num_key_value_heads", "original_max_position_embeddings", "sliding_window"}
READS = re.compile(r"\bconfig\.([a-z_]\w*)|getattr\((?:self\.)?config, \"(\w+)\"")
try:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
except ImportError as missing:
    print(f"skipped: {missing}; requirements-test.txt lists transformers")
    sys.exit(SKIPPED)


def sections(page):
    """title -> member -> what it is"""
    found = {}
    for section in page.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        found[title] = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.MULTILINE))
    return found


def lists():
    """family -> member -> what it is; the first section is of all families."""
    found = sections(PAGE)
    common = found.pop("All families")
    return {family: {**common, **members} for family, members in found.items()}


def classes_of(family):
    """Config classes whose members count: of Mistral also Ministral's, which AutoConfig takes where layer_types is there."""
    return [CONFIG_MAPPING[name] for name in ([family, "ministral"] if family == "mistral" else [family])]


def members_of(config_class):
    """Members that the class has or its models read."""
    members = set(config_class().to_dict()) | set(config_class.attribute_map)
    package = config_class.__module__.rpartition(".")[0]
    name = package.rpartition(".")[2]
    for source in (f"{package}.modeling_{name}", "transformers.masking_utils"):
        text = Path(importlib.util.find_spec(source).origin).read_text(encoding="utf-8")
        reads = {first or second for first, second in READS.findall(text)}
        members |= reads if source.startswith(package) else reads & {"is_causal"}
    return members - OF_CODE - OF_WHOLE


def unlisted(members, listed):
    return sorted(members - set(listed))


# Classes of Transformers that read the tokenizers of our families, and what prepares them for it.
TOKENIZER_SOURCES = ("transformers.tokenization_utils_base:PreTrainedTokenizerBase.__init__", "transformers.tokenization_utils_base:PreTrainedTokenizerBase._from_pretrained",
                     "transformers.tokenization_utils_tokenizers:TokenizersBackend.__init__",
                     "transformers.tokenization_utils_tokenizers:TokenizersBackend.convert_to_native_format",
                     "transformers.models.auto.tokenization_auto:AutoTokenizer.from_pretrained")
TOKENIZER_CLASSES = ("gpt2:GPT2Tokenizer", "qwen2:Qwen2Tokenizer", "llama:LlamaTokenizer", "gemma:GemmaTokenizer")
# Arguments of calls that no file holds.
OF_CALLS = {"self", "args", "kwargs", "_from_auto", "code_revision", "config", "tokenizer", "tokenizer_type", "gguf_file", "mistral_format", "model_name"}
MEMBER_READS = {"kwargs", "local_kwargs", "init_kwargs", "tokenizer_config"}


def source_of(place):
    module, _, names = place.partition(":")
    found = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return textwrap.dedent(inspect.getsource(found))


def reads_of(source):
    """The names that a method asks its dictionaries of members for: kwargs.pop("x"), kwargs["x"], "x" in kwargs."""
    def is_members(node):
        return isinstance(node, ast.Name) and node.id in MEMBER_READS

    def texts(node):
        return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()

    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_members(node.func.value) and node.args:
            found |= texts(node.args[0])
        elif isinstance(node, ast.Subscript) and is_members(node.value):
            found |= texts(node.slice)
        elif isinstance(node, ast.Compare) and is_members(node.comparators[0]):
            found |= texts(node.left)
    return found


def tokenizer_members(sources, classes):
    """Returns the members that these methods read, and the parameters that these classes take."""
    found = set().union(*(reads_of(source) for source in sources))
    return found.union(*(inspect.signature(kind.__init__).parameters for kind in classes)) - OF_CALLS


def tokenizer_classes():
    for place in TOKENIZER_CLASSES:
        package, _, name = place.partition(":")
        yield getattr(importlib.import_module(f"transformers.models.{package}.tokenization_{package}"), name)


class FolderKeys(unittest.TestCase):
    def setUp(self):
        self.listed = sections(FOLDER_PAGE)

    def test_tokenizer_config(self):
        from transformers import PreTrainedTokenizerBase

        listed = self.listed["tokenizer_config.json"]
        sources = [source_of(place) for place in TOKENIZER_SOURCES]
        members = tokenizer_members(sources, tokenizer_classes()) | set(PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
        self.assertGreater(len(members), 40)
        self.assertEqual(unlisted(members, listed), [], "say in models/io/folder_members.cpp what becomes of these")
        self.assertEqual(unlisted(reads_of('def f(**kwargs):\n    kwargs.pop("planted")\n    "planted_too" in kwargs\n    kwargs["planted_three"]'), listed),
                         ["planted", "planted_three", "planted_too"])
        planted = type("Planted", (), {"__init__": lambda self, vocab=None, planted=None, **kwargs: None})
        self.assertEqual(unlisted(tokenizer_members(sources, [planted]), listed), ["planted"])

    def test_generation_config(self):
        from transformers import GenerationConfig

        listed = self.listed["generation_config.json"]
        self.assertEqual(unlisted(set(GenerationConfig().to_dict()), listed), [], "say in models/io/folder_members.cpp what becomes of these")
        planted = type("Planted", (GenerationConfig,), {"to_dict": lambda self: {**GenerationConfig.to_dict(self), "planted": 1}})
        self.assertEqual(unlisted(set(planted().to_dict()), listed), ["planted"])

    def test_adapter_config(self):
        try:
            from peft import LoraConfig
        except ImportError as missing:
            self.skipTest(str(missing))
        listed = self.listed["adapter_config.json"]
        fields = {field.name for field in dataclasses.fields(LoraConfig)}
        self.assertEqual(unlisted(fields | set(LoraConfig().to_dict()), listed), [], "say in models/io/adapter_keys.hpp what becomes of these")
        planted = dataclasses.make_dataclass("Planted", [("planted", int, 0)], bases=(LoraConfig,))
        self.assertEqual(unlisted({field.name for field in dataclasses.fields(planted)}, listed), ["planted"])

    def test_prepare_refuses_the_same(self):
        sys.path.insert(0, str(ROOT / "tools"))
        from prepare import tokenizer

        listed = self.listed["tokenizer_config.json"]
        self.assertEqual(sorted(tokenizer.REFUSED), sorted(name for name, use in listed.items() if use == "refused"))
        self.assertEqual([name for name in tokenizer.SPECIAL_NAMES + tokenizer.MORE_NAMES if listed[name] != "used"], [])


class ModelKeys(unittest.TestCase):
    def test_every_member_is_listed(self):
        for family, listed in lists().items():
            for config_class in classes_of(family):
                self.assertEqual(unlisted(members_of(config_class), listed), [], f"{family}: say in models/families/ what becomes of these")

    def test_a_new_member_would_be_found(self):
        listed = lists()["llama"]
        planted = type("PlantedConfig", (CONFIG_MAPPING["llama"],), {"__module__": CONFIG_MAPPING["llama"].__module__, "attribute_map": {"planted": "x"}})
        self.assertEqual(unlisted(members_of(planted), listed), ["planted"])
        without = {key: what for key, what in listed.items() if key != "attention_bias"}
        self.assertEqual(unlisted(members_of(CONFIG_MAPPING["llama"]), without), ["attention_bias"])

    def test_the_defaults_are_those_of_transformers(self):
        for family, listed in lists().items():
            theirs = CONFIG_MAPPING[family]().to_dict()
            for key, what in listed.items():
                ours = re.match(r"(?:used, `(.*)` if absent|fixed at `(.*)`)$", what)
                if ours and key in theirs and key not in WORKED_OUT and not (key in ("is_encoder_decoder",) and theirs[key] is None):
                    self.assertEqual(json.loads(ours[1] or ours[2]), theirs[key], f"{family}: {key}")
                elif what == "used" and key in theirs and key not in WITHOUT_DEFAULT | WORKED_OUT:
                    self.assertIsNone(theirs[key], f"{family}: {key} has a default")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
