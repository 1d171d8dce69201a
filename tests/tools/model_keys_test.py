#!/usr/bin/env python3
"""Every member that a config class of Transformers has, and every one that its models read, is in our lists.

The lists are docs/model_keys.md, which a test keeps equal to the code (tests/models/families/model_keys_test.cpp). Skips
where transformers is missing.
"""

import importlib
import json
import re
import sys
import unittest
from pathlib import Path

SKIPPED = 77  # ctest's SKIP_RETURN_CODE
PAGE = Path(__file__).resolve().parents[2] / "docs" / "model_keys.md"
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


def lists():
    """family -> member -> what it is; the first section is of all families."""
    found = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        found[title] = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.MULTILINE))
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
