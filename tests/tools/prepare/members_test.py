#!/usr/bin/env python3
"""Every member that records of TRL and LLaMA-Factory have is in one of our lists, and the programs' lists are prepare's.

tests/data/other_trainers.json has what those trainers document. Where a trainer itself is installed, its own
definitions are compared with that file, so that a newer version which reads more fails this test.
"""

import importlib.util
import json
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
from prepare import members  # noqa: E402
from prepare.errors import Refused  # noqa: E402

TRAINERS = json.loads((ROOT / "tests" / "data" / "other_trainers.json").read_text())
NATIVE = ROOT / "models" / "data" / "record_members.cpp"
PLANTED = "planted_member"
# Processors make these members, too, but texts have them as well, or they stand beside others that are in the list.
NOT_OF_PROCESSORS_ALONE = {"attention_mask", "input_ids", "is_longer", "padding_mask", "target_sizes", "task_inputs"}


def in_no_list(names):
    """Of the members of another trainer's records, those that none of our lists has."""
    known = set().union(*members.USED.values(), members.HARMLESS, members.REFUSED, members.OF_PROCESSORS, members.OF_CHATS, members.OTHER_TASKS)
    return sorted(set(names) - known)


def native_lists():
    """name -> the members of a list of the programs."""
    text = NATIVE.read_text(encoding="utf-8")
    found = re.findall(r"std::string_view (k\w+) =\s*((?:\"[^\"]*\"\s*)+);", text)
    return {name: set("".join(re.findall(r'"([^"]*)"', parts)).split()) for name, parts in found}


def attributes_of_llama_factory():
    """The members that its converters read, as its own description of a data set has them; None: not installed."""
    if importlib.util.find_spec("llamafactory") is None:
        return None
    from llamafactory.data.parser import DatasetAttr

    given = vars(DatasetAttr("file", "x"))
    columns = ("system", "tools", "images", "videos", "audios", "chosen", "rejected", "kto_tag", "history")
    return {*columns, *(given[name] for name in ("prompt", "query", "response", "messages"))}


def made_by_processors():
    """The members that Transformers' processors of images, videos and sounds say that they make; None: not installed."""
    found = importlib.util.find_spec("transformers")
    if found is None:
        return None
    names = set()
    for kind in ("image_processing", "video_processing", "feature_extraction"):
        for path in (Path(found.origin).parent / "models").glob(f"*/{kind}_*.py"):
            lists = re.findall(r"model_input_names = \[([^\]]*)\]", path.read_text(encoding="utf-8"))
            names |= {name for text in lists for name in re.findall(r'"(\w+)"', text)}
    return names


class Members(unittest.TestCase):
    def test_every_member_of_other_trainers_records_is_known(self):
        for name, trainer in TRAINERS.items():
            self.assertGreater(len(trainer["record_members"]), 10)
            self.assertEqual(in_no_list(trainer["record_members"]), [], f"of {name}: give each of them a list in tools/prepare/members.py")

    def test_a_new_member_is_found(self):
        for trainer in TRAINERS.values():
            self.assertEqual(in_no_list([*trainer["record_members"], PLANTED]), [PLANTED])

    def test_the_file_has_what_an_installed_trainer_reads(self):
        found = attributes_of_llama_factory()
        if found is None:
            self.skipTest("llamafactory is not installed; tests/data/other_trainers.json stands for it")
        self.assertEqual(sorted(found - set(TRAINERS["llamafactory"]["record_members"])), [])

    def test_the_programs_have_the_same_lists(self):
        used = members.USED["alpaca"]
        expected = {"kUsed": used, "kHarmless": members.HARMLESS - used, "kRefused": (members.REFUSED | members.OF_CHATS) - used, "kOfProcessors": members.OF_PROCESSORS,
                    "kVerdicts": set(members.VERDICTS)}
        self.assertEqual(native_lists(), expected)

    def test_what_processors_make_is_refused(self):
        for name in members.USED:
            for member in sorted(members.OF_PROCESSORS):
                self.assertEqual(members.unused(name, {member: []}), [])
                with self.assertRaisesRegex(Refused, f'"{member}" would change what is learnt.* images and sounds are not read'):
                    members.unused(name, {member: [[0.5]]})

    def test_what_installed_processors_make_is_known(self):
        found = made_by_processors()
        if found is None:
            self.skipTest("transformers is not installed; requirements-test.txt lists it")
        self.assertGreater(len(found), 30)
        self.assertEqual(sorted(found - members.REFUSED - members.OF_PROCESSORS - NOT_OF_PROCESSORS_ALONE), [])

    def test_members_of_chats(self):
        for member in sorted(members.OF_CHATS):
            for name in members.USED:
                if member in members.USED[name] or name in members.MADE:
                    self.assertEqual(members.unused(name, {member: {"a": 1}}), [] if member in members.USED[name] else [member])
            with self.assertRaisesRegex(Refused, f'"{member}" would change what is learnt.*alpaca_chat'):
                members.unused("alpaca", {member: {"a": 1}})

    def test_a_verdict_may_be_a_number(self):
        for value in (0, 0.0, "0", "0.0"):
            for name in members.USED:
                with self.assertRaisesRegex(Refused, f'"kto_tag" is {value}: the record says that its answer is a bad one'):
                    members.unused(name, {"kto_tag": value})
                if name not in ("prompt", "tokens"):  # labels of texts may be classes
                    self.assertEqual(members.unused(name, {"label": value}), ["label"])
            with self.assertRaisesRegex(Refused, f'"label" is {value}: '):
                members.unused("prompt", {"label": value})
        for value in (1, 1.0, "1", True, "True", 2):
            self.assertEqual(members.unused("prompt", {"label": value, "kto_tag": value}), ["label", "kto_tag"])

    def test_members_of_other_ways_of_training(self):
        self.assertEqual(members.unused("messages", {"messages": [], "chosen": "a", "rejected": "b", "label": True}), ["chosen", "rejected", "label"])
        for name in members.VERDICTS:
            with self.assertRaisesRegex(Refused, f'"{name}" is false'):
                members.unused("prompt", {"prompt": "a", "completion": "b", name: False})


if __name__ == "__main__":
    unittest.main()
