"""Names that stand for files, files that are something else, and tokens that tokenizer_config.json alone has.

usage: names_test.py BIN, the folder with the program `tandem`, which is to make the same ids
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import support  # puts tools/ on the path, and skips where a package is missing

from prepare import files, hub
from prepare.errors import UserError
from prepare.tokenizer import Tokenizer

PROGRAM = sys.argv.pop(1) + "/tandem"
BYTES = {chr(c): c - 33 for c in range(33, 127)}


def tokens_of_program(folder, text, special=False):
    flags = ["--add_special_tokens"] if special else []
    done = subprocess.run([PROGRAM, "tokenize", "--model_name", str(folder), *flags], input=json.dumps(text) + "\n", capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def cache_of_huggingface_hub():
    """The folder of its cache in the environment as it is; where it is not installed, by what it does."""
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 0:
        return Path(done.stdout.removesuffix("\n"))
    home = os.environ.get("HF_HOME", os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface"))
    default = os.environ.get("HUGGINGFACE_HUB_CACHE", os.path.join(os.path.expandvars(os.path.expanduser(home)), "hub"))
    return Path(os.path.expandvars(os.path.expanduser(os.environ.get("HF_HUB_CACHE", default))))


def cache_of_program():
    """The folder that the program names where a model is not in it."""
    done = subprocess.run([PROGRAM, "logits", "--model_name", "planted/absent"], input="", capture_output=True, text=True)
    return Path(re.search(r"nor in the Hugging Face cache (.*?); give a folder", done.stderr)[1])


class Cache(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGINGFACE", "XDG_"))}
        self.enterContext(unittest.mock.patch.dict("os.environ", kept, clear=True))

    def put(self, name, text="{}"):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def test_the_cache_lies_where_huggingface_hub_has_it(self):
        for variables, expected in (({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"), ({"XDG_CACHE_HOME": "/x", "HF_HOME": "/h"}, "/h/hub"),
                                    ({"HF_HOME": "/h", "HF_HUB_CACHE": "/c"}, "/c"), ({"HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "/o"}, "/o"),
                                    ({"HOME": "/home/ann", "HF_HOME": "~/hf"}, "/home/ann/hf/hub")):
            with unittest.mock.patch.dict("os.environ", variables):
                self.assertEqual(hub.cache(), Path(expected), variables)

    def test_variables_in_it_are_expanded_as_huggingface_hub_does(self):
        for variables in ({"HF_HOME": "$PLANTED/hf"}, {"HF_HOME": "${PLANTED}hf"}, {"HF_HUB_CACHE": "/c/$PLANTED_B/${PLANTED}/x"}, {"HUGGINGFACE_HUB_CACHE": "~/${PLANTED_B}"},
                          {"XDG_CACHE_HOME": "/x$PLANTED"}, {"HF_HOME": "/a/$ABSENT/${ABSENT}/$PLANTEDX"}, {"HF_HOME": "/a/$/${}/${PLANTED/$$PLANTED_B/$PLANTED-1"},
                          {"HF_HOME": "$EMPTY/h$EMPTY"}, {"HF_HOME": "$NESTED/x"}):
            given = {"PLANTED": "/work place", "PLANTED_B": "b", "EMPTY": "", "NESTED": "/$PLANTED_B", "HOME": "/home/ann", **variables}
            with self.subTest(variables), unittest.mock.patch.dict("os.environ", given):
                expected = cache_of_huggingface_hub()
                self.assertEqual(hub.cache(), expected)
                self.assertEqual(cache_of_program(), expected)

    def test_the_main_branch_counts_and_not_the_newest_snapshot(self):
        os.environ["HF_HUB_CACHE"] = str(self.root)
        old = self.put("models--a--m/snapshots/111/config.json").parent
        self.put("models--a--m/snapshots/222/config.json")
        os.utime(old, (1, 1))
        self.assertEqual(hub.snapshot("models", "a/m").name, "222")
        self.put("models--a--m/refs/main", "111\n")
        self.assertEqual(hub.snapshot("models", "a/m").name, "111")
        self.put("models--a--m/refs/main", "333")  # its snapshot was never begun
        self.assertEqual(hub.snapshot("models", "a/m").name, "222")
        self.put("models--a--m/snapshots/333/tokenizer.json")
        with self.assertRaisesRegex(UserError, "not whole.*fetch model a/m"):
            hub.snapshot("models", "a/m")

    def test_a_revision_stands_behind_the_id(self):
        os.environ["HF_HUB_CACHE"] = str(self.root)
        for commit in ("111aaa", "111bbb", "222ccc", "333ddd", "1"):
            self.put(f"models--a--m/snapshots/{commit}/config.json")
        self.put("models--a--m/snapshots/444eee/tokenizer.json")
        for ref, commit in (("main", "111aaa"), ("v1.0", "222ccc"), ("refs/pr/7", "333ddd")):
            self.put(f"models--a--m/refs/{ref}", f"{commit}\n")
        for revision, commit in (("main", "111aaa"), ("v1.0", "222ccc"), ("refs/pr/7", "333ddd"), ("222ccc", "222ccc"), ("111b", "111bbb"), ("1", "1")):
            self.assertEqual(files.model_folder(f"a/m@{revision}").name, commit, revision)
        for name, said in (("a/m@v2", "a/m has no revision v2 .*fetch model a/m@v2"), ("a/m@111", "several that begin as revision 111"),
                           ("a/m@444", "not whole.*fetch model a/m@444"), ("a/m@../snapshots/222ccc", "no revision"),
                           ("b/m@v1", "neither a folder.*fetch model b/m@v1")):
            with self.assertRaisesRegex(UserError, said):
                files.model_folder(name)

    def test_a_snapshot_of_weights_alone_is_no_model(self):
        os.environ["HF_HUB_CACHE"] = str(self.root)
        self.put("models--a--m/snapshots/111/config.json")
        self.put("models--a--m/snapshots/pr1/model.safetensors")
        self.assertEqual(hub.snapshot("models", "a/m").name, "111")

    def test_words_name_a_split(self):
        for path, split in (("train.jsonl", "train"), ("data/train-00000-of-2.jsonl", "train"), ("train/test.jsonl", "test"), ("dev.json", "validation"),
                            ("my_val.csv", "validation"), ("constrained.jsonl", None), ("latest.jsonl", None), ("testimony.json", None)):
            self.assertEqual(hub.split_of(path), split, path)

    def test_train_is_trained_on_whatever_lies_beside_it(self):
        for name in ("set/test.jsonl", "set/validation.jsonl", "set/dataset_infos.json", "set/data/train-1.jsonl", "set/data/train-0.jsonl"):
            self.put(name)
        self.assertEqual([path.name for path in files.data_files(self.root / "set")], ["train-0.jsonl", "train-1.jsonl"])
        self.assertIn("train-0.jsonl and 1 more", files.resolved(str(self.root / "set")))
        self.put("plain/latest.jsonl")
        self.put("plain/test.jsonl")
        self.assertEqual([path.name for path in files.data_files(self.root / "plain")], ["latest.jsonl"])

    def names(self, folder):
        return [path.name for path in files.data_files(self.root / folder)]

    def test_hidden_files_are_no_data(self):
        for name in ("a.jsonl", ".ipynb_checkpoints/a-checkpoint.jsonl", "__MACOSX/a.jsonl", "._a.jsonl", ".cache/train.jsonl"):
            self.put(f"set/{name}")
        self.assertEqual(self.names("set"), ["a.jsonl"])

    def test_a_link_to_a_file_that_is_not_there(self):
        self.put("set/train_1.jsonl")
        for name in (".cache/train_0.jsonl", "test.jsonl", "train.png", "train_2.jsonl"):
            path = self.root / "set" / name
            path.parent.mkdir(exist_ok=True)
            path.symlink_to("blobs/gone")
            if name != "train_2.jsonl":  # of those that are trained on
                self.assertEqual(self.names("set"), ["train_1.jsonl"])
        with self.assertRaisesRegex(UserError, "train_2.jsonl is a link to a file that is not there.*download it again$"):
            self.names("set")
        self.assertEqual([path.name for path in files.data_below(self.root / "set")], ["train_1.jsonl"])
        (self.root / "set" / "train_2.jsonl").unlink()
        (self.root / "set" / "train_2.jsonl").symlink_to("train_1.jsonl")
        self.assertEqual(self.names("set"), ["train_1.jsonl", "train_2.jsonl"])
        snapshot = self.root / "datasets--a--d/snapshots/1"
        snapshot.mkdir(parents=True)
        (snapshot / "data.jsonl").symlink_to("../../blobs/gone")
        os.environ["HF_HUB_CACHE"] = str(self.root)
        with self.assertRaisesRegex(UserError, "data.jsonl is a link .*./tandem fetch dataset a/d"):
            files.data_files("a/d")

    def test_what_datasets_saved_is_what_it_lists(self):
        for name in ("data-00000-of-00001.arrow", "cache-0f1e.arrow"):
            self.put(f"set/{name}")
        state = self.root / "set" / "state.json"
        state.write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
        self.assertEqual(self.names("set"), ["data-00000-of-00001.arrow"])
        for change, what in (({"_data_files": [{"filename": "gone.arrow"}]}, "lists gone.arrow"), ({"_indices_data_files": [{"filename": "i.arrow"}]}, "flatten_indices")):
            state.write_text(json.dumps(change))
            with self.assertRaisesRegex(UserError, what):
                self.names("set")

    def test_splits_of_shards_are_not_joined(self):
        for name in ("train_sft-00000-of-00001.parquet", "train_gen-00000-of-00001.parquet", "test_sft-00000-of-00001.parquet"):
            self.put(f"set/data/{name}")
        with self.assertRaisesRegex(UserError, "several splits to train on: train_gen, train_sft"):
            self.names("set")
        self.put("test/test.jsonl")
        with self.assertRaisesRegex(UserError, "other splits than train alone .test.jsonl"):
            self.names("test")

    def test_missing_shards_are_said(self):
        self.put("set/train-00000-of-00003.parquet")
        self.put("set/train-00002-of-00003.parquet")
        self.assertIn("has 2 of the 3 shards of train", files.resolved(str(self.root / "set")))
        self.put("set/train-00000-of-00001.parquet")
        self.assertIn("shards of two writings of train, in 1 and 3 parts", files.resolved(str(self.root / "set")))


class Contents(unittest.TestCase):
    def test_a_file_that_is_something_else_is_told_by_its_first_bytes(self):
        cases = ((b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", ".jsonl", "Git LFS.*git lfs pull"),
                 (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", ".parquet", "Git LFS"),
                 ('{"text": "a"}'.encode("utf-16"), ".jsonl", "UTF-16.*iconv"), (b"<!DOCTYPE html><html>", ".json", "web page"),
                 (b"\x28\xb5\x2f\xfdxx", ".jsonl", "zstd -d"), (b"PAR1xx", ".json", "parquet"), (b"x", ".jsonl.zst", "zstd -d"), (b"\n \t<!DocType html>", ".jsonl", "web page"),
                 (b"<HTML>", ".txt", "web page"), (b" <head>", ".csv", "web page"), (b"<?xml version='1.0'?><Error>", ".jsonl", "is XML.*download it again"),
                 (b"<Error><Code>AccessDenied", ".parquet", "error message.*download it again"))
        for content, ending, expected in cases:
            with tempfile.TemporaryDirectory() as root, self.subTest(expected):
                path = Path(root, "data" + ending)
                path.write_bytes(content)
                with self.assertRaisesRegex(UserError, expected):
                    list(files.records(path))


    def test_what_may_well_begin_so_is_read(self):
        with tempfile.TemporaryDirectory() as root:
            for name, text, expected in (("a.txt", "<?xml version='1.0'?>", {"text": "<?xml version='1.0'?>"}), ("a.jsonl", '{"error": "E1", "text": "t"}', {"error": "E1", "text": "t"})):
                path = Path(root, name)
                path.write_text(text)
                self.assertEqual([record.value for record in files.records(path)], [expected])
            path = Path(root, "config.json")
            path.write_text(' {"error": "Repository not found"}')
            with self.assertRaisesRegex(UserError, "server's error message.*download it again"):
                files.read_json(path)


class Tokens(unittest.TestCase):
    def tokenizer(self, config, added=(), prefix_space=False, before=(), merges=(), special_map=None):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        level = {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": True, "use_regex": True}
        vocabulary = {**BYTES, "Ġ": 94, **{left + right: 95 + number for number, (left, right) in enumerate(merges)}}
        whole = {"version": "1.0", "added_tokens": list(added), "normalizer": None, "post_processor": None, "decoder": level,
                 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*before, level]} if before else level,
                 "model": {"type": "BPE", "vocab": vocabulary, "merges": list(merges)}}
        Path(folder.name, "tokenizer.json").write_text(json.dumps(whole))
        Path(folder.name, "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))
        if special_map is not None:
            Path(folder.name, "special_tokens_map.json").write_text(json.dumps(special_map))
        return Path(folder.name)

    def check(self, config, text, expected, **more):
        """By this reader, by the program's, and by Transformers where it is installed."""
        folder = self.tokenizer(config, **more)
        special = "add_bos_token" in config or "add_eos_token" in config
        self.assertEqual(list(Tokenizer(folder).encode([text], special)[0]), expected)
        self.assertEqual(tokens_of_program(folder, text, special), expected)
        try:
            from transformers import AutoTokenizer
        except ImportError:
            return
        self.assertEqual(AutoTokenizer.from_pretrained(folder).encode(text, add_special_tokens=special), expected)

    def test_a_tokenizer_of_another_form_is_named(self):
        """The advice is the program's."""
        advice = "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        for names, said in ((("tokenizer.model",), "of its tokenizer.model with"), (("tekken.json",), "of its tekken.json with"), (("merges.txt", "vocab.json"), "of its vocab.json and merges.txt with"), ((), "make one with")):
            with tempfile.TemporaryDirectory() as root:
                for name in ("config.json", *names):
                    Path(root, name).write_text("{}")
                with self.assertRaises(UserError) as error:
                    Tokenizer(Path(root))
                self.assertIn(said, str(error.exception))
                for text in (str(error.exception), tokens_of_program(root, "a")):
                    self.assertIn(f"{root} has no tokenizer.json; make one", text)
                    self.assertIn(advice, text)

    def test_tokens_of_the_config_alone(self):
        token = {"content": "<t>", "special": False, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
        self.check({"added_tokens_decoder": {"95": token}}, "a<t>b", [64, 95, 65])

    def test_flags_of_the_config_count_before_those_of_the_tokenizer(self):
        token = {"content": "<t>", "special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
        added = [{"id": 95, **token}]
        plain = [BYTES[c] for c in "<t>"]
        for flag, text, expected in (("lstrip", "a <t> b", [64, 95, 94, 65]), ("rstrip", "a <t> b", [64, 94, 95, 65]),
                                     ("single_word", "a<t>b", [64, *plain, 65]), ("normalized", "a<t>b", [64, 95, 65])):
            with self.subTest(flag):
                self.check({"added_tokens_decoder": {"95": {**token, flag: True}}}, text, expected, added=added)
                self.check({"added_tokens_decoder": {"7": {**token, flag: True}}}, text, expected, added=added)

    def test_a_token_that_the_class_would_not_know_is_noted(self):
        added = [{"id": 95, "content": "<t>", "special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}]
        names = dict.fromkeys(("eos_token", "bos_token", "unk_token", "pad_token"), "!")
        for kind, listed, is_noted in (("GPT2Tokenizer", {}, True), ("GPT2Tokenizer", {"96": {"content": "<u>"}}, True), ("GPT2Tokenizer", {"95": {**added[0]}}, False),
                                       ("PreTrainedTokenizerFast", {}, False)):
            with self.subTest(kind=kind, listed=listed):
                folder = self.tokenizer({"tokenizer_class": kind, "added_tokens_decoder": listed, **names}, added=added)
                self.assertEqual([list(Tokenizer(folder).encode(["a<t>"])[0]), tokens_of_program(folder, "a<t>")], [[64, 95]] * 2)
                self.assertEqual("added token <t> counts" in Tokenizer(folder).note, is_noted)
        self.assertNotIn("counts", Tokenizer(self.tokenizer({"tokenizer_class": "GPT2Tokenizer", **names}, added=added)).note)

    def test_additional_special_tokens(self):
        self.check({"additional_special_tokens": ["<t>", "<u>"]}, "a<u>b", [64, 96, 65])

    def test_a_named_token_of_the_vocabulary_is_looked_for(self):
        self.check({"eos_token": "!"}, "a!b", [64, 0, 65])

    def test_every_member_that_ends_in_token_names_one(self):
        self.check({"image_token": "<t>", "eos_token": "!"}, "a<t>!b", [64, 95, 0, 65])
        self.check({"extra_special_tokens": {"eye": "<t>"}, "video_token": "<u>"}, "a<t><u>b", [64, 96, 95, 65])
        self.check({"extra_special_tokens": ["<t>"], "additional_special_tokens": ["<u>"]}, "<u><t>", [*(BYTES[c] for c in "<u>"), 95])

    def test_a_named_token_that_the_vocabulary_lacks_comes_behind_it(self):
        self.check({"pad_token": "[PAD]", "unk_token": "", "additional_special_tokens": ["<t>"]}, "a[PAD]<t>", [64, 95, 96])

    def test_special_tokens_map_counts_where_the_config_lists_no_added_tokens(self):
        token = {"content": "<t>", "special": False, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
        more = {"pad_token": "<p>", "additional_special_tokens": ["<u>"], "image_token": "<i>"}
        self.check({"pad_token": "<q>", "sep_token": "<s>"}, "<p><i><u><s>a", [96, 97, 98, 95, 64], special_map=more)
        self.check({"added_tokens_decoder": {"95": token}}, "<t><p>", [95, *(BYTES[c] for c in "<p>")], special_map=more)
        self.check({"extra_special_tokens": ["<t>"]}, "<u><t><p>", [97, 96, 95], special_map={"pad_token": "<p>", "extra_special_tokens": ["<t>", "<u>"]})
        self.check({"tokenizer_class": "PreTrainedTokenizerFast"}, "a<p>", [64, 95], special_map={"pad_token": "<p>", "tokenizer_class": "Qwen2Tokenizer"})

    def test_added_tokens_in_the_special_tokens_map_do_not_count(self):
        self.check({}, "a<t>", [64, *(BYTES[c] for c in "<t>")], special_map={"added_tokens_decoder": {"95": {"content": "<t>", "special": True}}})

    def test_steps_of_the_file_count_and_other_ones_of_the_class_are_noted(self):
        digits = [{"type": "Digits", "individual_digits": True}]
        for kind, before, is_noted in (("GPT2Tokenizer", digits, True), ("Qwen2Tokenizer", digits, True), ("GPT2Tokenizer", [], False), ("PreTrainedTokenizerFast", digits, False)):
            with self.subTest(kind=kind, before=before):
                folder = self.tokenizer({"tokenizer_class": kind, "eos_token": "!", "bos_token": "!", "unk_token": "!", "pad_token": "!"}, before=before, merges=[["1", "2"]])
                expected = [BYTES["1"], BYTES["2"]] if before else [95]
                self.assertEqual([list(Tokenizer(folder).encode(["12"])[0]), tokens_of_program(folder, "12")], [expected] * 2)
                self.assertEqual(f"others for tokenizer_class {kind}" in Tokenizer(folder).note, is_noted)

    def test_tokens_that_the_class_has(self):
        text = "a<|endoftext|>b"
        self.check({"tokenizer_class": "GPT2Tokenizer"}, text, [64, 95, 65])
        self.check({"tokenizer_class": "GPT2Tokenizer", "bos_token": "!", "eos_token": "!", "unk_token": None}, "a!<b", [64, 0, BYTES["<"], 65])
        self.check({"tokenizer_class": "GPT2Tokenizer"}, "ab", [64, 65], prefix_space=True)
        folder = self.tokenizer({"tokenizer_class": None})
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 96}))
        self.assertEqual([list(Tokenizer(folder).encode([text])[0]), tokens_of_program(folder, text)], [[64, 95, 65]] * 2)
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 95}))  # no row for it
        plain = [BYTES[c] for c in text]
        self.assertEqual([list(Tokenizer(folder).encode([text])[0]), tokens_of_program(folder, text)], [plain] * 2)

    def test_what_gives_other_ids_is_refused(self):
        folder = self.tokenizer({"split_special_tokens": True})
        with self.assertRaisesRegex(UserError, "split_special_tokens is true, which gives other ids"):
            Tokenizer(folder)
        self.assertIn("split_special_tokens is true, which gives other ids", tokens_of_program(folder, "a"))

    def test_flags_in_the_special_tokens_map_are_refused(self):
        folder = self.tokenizer({}, special_map={"add_eos_token": True})
        with self.assertRaisesRegex(UserError, "special_tokens_map.json: add_eos_token gives other ids"):
            Tokenizer(folder)
        self.assertIn("add_eos_token gives other ids", tokens_of_program(folder, "a"))

    def test_punctuation(self):
        merges, level = [["$", "+"], ["!", "!"], ["a", "b"]], {"type": "Punctuation", "behavior": "Isolated"}
        self.check({}, "ab$+!!", [97, 3, 10, 0, 0], merges=merges, before=[level])
        self.check({}, "ab!!", [97, 96], merges=merges)

    def test_the_post_processor_counts_before_flags(self):
        self.check({"eos_token": "!", "bos_token": "#", "add_bos_token": True, "add_eos_token": True}, "a", [64])
        self.check({"eos_token": "!", "bos_token": "#", "add_eos_token": "a text", "extra_special_tokens": ["<u>"]}, "<u>", [95])

    def test_an_id_that_is_not_the_next_one_is_refused(self):
        token = {"content": "<t>", "special": True}
        with self.assertRaisesRegex(UserError, "gives <t> the id 99, and 95 is the next"):
            Tokenizer(self.tokenizer({"added_tokens_decoder": {"99": token}}))

    def test_the_space_before_a_text_by_the_class(self):
        folder = self.tokenizer({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True})
        self.assertEqual(list(Tokenizer(folder).encode(["a"])[0]), [94, 64])
        self.assertEqual(tokens_of_program(folder, "a"), [94, 64])
        folder = self.tokenizer({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}, prefix_space=True)
        self.assertEqual(list(Tokenizer(folder).encode(["a"])[0]), [64])
        self.assertEqual(tokens_of_program(folder, "a"), [64])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
