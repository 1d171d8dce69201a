#!/usr/bin/env python3
"""Model folders as people have them, made small here: what Transformers computes of them is what the program computes.

usage: model_files_test.py BIN, the folder with the program `tandem`; skips where torch or transformers is missing
"""

import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SKIPPED = 77  # ctest's SKIP_RETURN_CODE
PROGRAM = sys.argv.pop(1) + "/tandem"
TOKENIZER = Path(__file__).resolve().parents[2] / "examples" / "demo"
try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(f"skipped: {missing}; requirements-test.txt lists it")
    sys.exit(SKIPPED)

IDS = [5, 17, 3, 44, 9, 9, 61, 2, 30, 7, 11, 28]
LIMIT = 2e-4
SIZES = {"vocab_size": 1024, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 8, "max_position_embeddings": 256, "initializer_range": 0.2, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 3}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GPT2 = {"vocab_size": 1024, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": 3}


class Models(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()), "model")

    def make(self, family, **changes):
        """A model of the family with random weights, saved as Transformers does."""
        torch.manual_seed(1)
        sizes = GPT2 if family == "gpt2" else SIZES
        config = transformers.AutoConfig.for_model(family, **{**sizes, **changes})
        transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(self.folder)
        for path in TOKENIZER.glob("*token*.json"):
            shutil.copy(path, self.folder)

    def change_config(self, change):
        path = self.folder / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    def change_weights(self, change):
        """`change` gives the tensors anew."""
        path = self.folder / "model.safetensors"
        tensors = {name: tensor.contiguous().clone() for name, tensor in change(load_file(path)).items()}
        save_file(tensors, path, {"format": "pt"})

    def run_program(self, *arguments, **options):
        return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, **options)

    def logits(self, folder=None):
        """(logits, what was said) of the program."""
        done = self.run_program("logits", "--model_name", folder or self.folder, input=json.dumps(IDS))
        self.assertEqual(done.returncode, 0, done.stderr)
        return torch.tensor(json.loads(done.stdout)), done.stderr

    def expected(self, folder=None):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder or self.folder, dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():
            return model.eval()(torch.tensor([IDS])).logits[0]

    def check(self, expected=None, says=""):
        found, said = self.logits()
        expected = self.expected() if expected is None else expected
        self.assertLess(float((found - expected).abs().max()), LIMIT)
        self.assertIn(says, said)
        return said

    def refused(self, expected):
        done = self.run_program("logits", "--model_name", self.folder, input=json.dumps(IDS))
        self.assertEqual(done.returncode, 2, done.stdout[:200])
        self.assertRegex(done.stderr, expected)


class Ties(Models):
    def test_a_head_of_its_own_counts_before_the_config(self):
        for family in ("qwen2", "gemma3_text", "gpt2"):
            with self.subTest(family):
                self.make(family, tie_word_embeddings=True)
                tied = self.expected()
                head = torch.randn(1024, 32, generator=torch.Generator().manual_seed(2))
                self.change_weights(lambda tensors: {**tensors, "lm_head.weight": head})
                self.assertGreater(float((self.expected() - tied).abs().max()), 0.1)
                self.check(says="two different matrices")

    def test_a_copy_of_the_embedding_stays_tied(self):
        self.make("llama", tie_word_embeddings=True)
        self.change_weights(lambda tensors: {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]})
        self.assertNotIn("two different", self.check())

    def test_a_tied_model_may_hold_its_head_alone(self):
        self.make("llama", tie_word_embeddings=True)
        expected = self.expected()
        self.change_weights(lambda tensors: {name.replace("model.embed_tokens", "lm_head"): tensor for name, tensor in tensors.items()})
        self.check(expected)

    def test_a_head_that_is_missing_is_refused_with_the_key(self):
        self.make("llama", tie_word_embeddings=False)
        self.change_weights(lambda tensors: {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"})
        self.refused("lm_head.weight.*tie_word_embeddings")


class Saved(Models):
    def train(self):
        """The folder of a model after a step that changes next to nothing."""
        output = self.folder.parent / "out"
        done = subprocess.run([str(Path(PROGRAM).parent / "finetune_zero3"), "--model_name", self.folder, "--dataset_name", TOKENIZER / "instructions.json",
                               "--steps", "1", "--lr", "1e-9", "--weight_decay", "0", "--batch_size", "1", "--max_length", "32", "--device", "cpu",
                               "--no-tensorboard", "--progress", "off", "--output_dir", output], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output / "model", done.stdout

    def test_two_matrices_stay_two(self):
        self.make("qwen2", tie_word_embeddings=True)
        head = torch.randn(1024, 32, generator=torch.Generator().manual_seed(2))
        self.change_weights(lambda tensors: {**tensors, "lm_head.weight": head})
        saved, said = self.train()
        self.assertIn("two different matrices", said)
        self.assertFalse(json.loads((saved / "config.json").read_text())["tie_word_embeddings"])
        self.assertLess(float((self.expected(saved) - self.expected()).abs().max()), LIMIT)
        self.assertLess(float((self.logits(saved)[0] - self.expected()).abs().max()), LIMIT)

    def test_what_had_other_names_and_no_optional_keys(self):
        self.make("llama", tie_word_embeddings=True, num_key_value_heads=4)
        expected = self.expected()
        self.change_weights(lambda tensors: {name.removeprefix("model."): tensor for name, tensor in tensors.items()})
        self.change_config(lambda config: [config.pop(key) for key in ("hidden_act", "max_position_embeddings", "num_key_value_heads")])
        saved, said = self.train()
        self.assertIn("leaves out", said)
        self.assertLess(float((self.expected(saved) - expected).abs().max()), LIMIT)


class Names(Models):
    def test_without_the_prefix_of_a_model_with_a_head(self):
        for family in ("llama", "qwen3", "phi3", "gpt2"):
            with self.subTest(family):
                self.make(family, tie_word_embeddings=True)
                expected = self.expected()
                self.change_weights(lambda tensors: {name.removeprefix("model.").removeprefix("transformer."): tensor for name, tensor in tensors.items()})
                self.check(expected)

    def test_the_text_part_of_another_model_in_a_mixture_of_names(self):
        self.make("gemma3_text", tie_word_embeddings=True)
        expected = self.expected()
        prefixes = ("language_model.model.", "model.language_model.", "language_model.", "model.", "")

        def mixed(tensors):
            return {prefixes[number % len(prefixes)] + name.removeprefix("model."): tensor for number, (name, tensor) in enumerate(sorted(tensors.items()))}

        self.change_weights(mixed)
        self.change_weights(lambda tensors: {**tensors, "model.vision_tower.x": torch.ones(1), "multi_modal_projector.y": torch.ones(1)})
        self.check(expected)

    def test_stacked_experts_and_experts_one_by_one(self):
        for family in ("qwen3_moe", "mixtral"):
            with self.subTest(family):
                self.make(family, tie_word_embeddings=False, **EXPERTS)
                expected = self.expected()
                self.check(expected)  # one by one, as Transformers saves
                model = transformers.AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
                memory = dict(model.state_dict())
                self.assertTrue(any(name.endswith("experts.gate_up_proj") for name in memory), sorted(memory)[:5])
                first = {name: tensor for name, tensor in memory.items() if ".layers.0." in name}
                rest = {name: tensor for name, tensor in load_file(self.folder / "model.safetensors").items() if ".layers.0." not in name}
                self.change_weights(lambda _: {**first, **rest})  # a mixture
                self.check(expected)
                self.change_weights(lambda _: memory)
                self.check(expected)
                self.change_weights(lambda _: {name: tensor[:3] if name.endswith("experts.down_proj") else tensor for name, tensor in memory.items()})
                self.refused(r"experts.down_proj\" has shape \[3, ")


class Configs(Models):
    def test_layer_types_of_mistral(self):
        self.make("ministral", tie_word_embeddings=False, sliding_window=4, layer_types=["full_attention", "sliding_attention"])
        self.change_config(lambda config: config.update(model_type="mistral", architectures=["MistralForCausalLM"]))
        self.check()

    def test_what_is_left_out_has_the_defaults_of_transformers(self):
        for family, keys in (("llama", ("hidden_act", "max_position_embeddings", "num_key_value_heads", "attention_bias", "head_dim", "rms_norm_eps")),
                             ("qwen3", ("hidden_act", "max_position_embeddings", "num_key_value_heads", "use_sliding_window", "layer_types")),
                             ("mistral", ("hidden_act", "num_key_value_heads", "sliding_window")), ("phi3", ("hidden_act", "num_key_value_heads")),
                             ("gpt2", ("activation_function", "n_head", "layer_norm_epsilon", "n_inner"))):
            with self.subTest(family):
                more = {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 4} if family == "qwen3" else {"num_key_value_heads": 4}
                more = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 4} if family == "mistral" else more
                self.make(family, **({"n_head": 12, "n_embd": 48} if family == "gpt2" else {**more, "tie_word_embeddings": False}))
                self.change_config(lambda config: [config.pop(key, None) for key in keys])
                self.check(says="leaves out" if {"hidden_act", "n_head"} & set(keys) else "")

    def test_other_names_of_keys(self):
        self.make("gpt2")
        self.change_config(lambda config: config.update(hidden_size=config.pop("n_embd"), num_hidden_layers=config.pop("n_layer")))
        self.check()
        self.change_config(lambda config: config.update(n_embd=64))
        self.refused("hidden_size.*n_embd.*64")

    def test_what_would_change_the_result_is_refused_by_name(self):
        self.make("llama")
        for key, value in (("is_causal", False), ("per_layer_config", {"0": {}}), ("pruned_heads", {"0": [1]})):
            with self.subTest(key):
                self.change_config(lambda config: config.update({key: value}))
                self.refused(key)
                self.change_config(lambda config: config.pop(key))

    def test_what_nothing_reads_is_named(self):
        self.make("llama")
        self.change_config(lambda config: config.update(my_own_key=3, layer_types=["full_attention"] * 2))
        self.check(says="my_own_key")

    def test_padding_below_zero_and_ends_beyond_the_vocabulary(self):
        self.make("llama")
        expected = self.expected()
        self.change_config(lambda config: config.update(pad_token_id=-1, eos_token_id=[3, 5000], bos_token_id=-1))
        self.check(expected, says="row 1023")

    def test_dynamic_positions(self):
        self.make("llama")
        self.change_config(lambda config: config.update(rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}))
        self.check()
        self.change_config(lambda config: config.update(max_position_embeddings=8))
        self.refused("dynamic.*--max_length 8")


class Shards(Models):
    def setUp(self):
        super().setUp()
        self.make("llama", tie_word_embeddings=False)
        self.whole = self.expected()  # Transformers asks for "metadata" in an index, other readers do not
        tensors = load_file(self.folder / "model.safetensors")
        names = sorted(tensors)
        self.files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for file, held in self.files.items():
            save_file({name: tensors[name] for name in held}, self.folder / file, {"format": "pt"})
        (self.folder / "model.safetensors").rename(self.folder / "whole")
        self.map = {name: file for file, held in self.files.items() for name in held}

    def write_index(self, **more):
        (self.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": self.map, **more}))

    def test_the_index_says_which_files_there_are(self):
        for metadata in ({}, {"metadata": None}, {"metadata": {}}, {"metadata": {"total_size": 1}}, {"metadata": {"total_parameters": 5}}, {"metadata": []}):
            with self.subTest(metadata):
                self.write_index(**metadata)
                self.check(self.whole)

    def test_the_shards_say_what_is_in_them(self):
        first, second = self.files
        del self.map[self.files[first][0]]
        self.map[self.files[second][0]] = first
        self.map["model.nowhere"] = second
        self.write_index()
        said = self.check(self.whole)
        for words in ("does not name tensors", "the shards count", "no shard holds"):
            self.assertIn(words, said)

    def test_other_names_and_shards_beside_them(self):
        first, second = self.files
        shutil.copy(self.folder / first, self.folder / "model-00003-of-00002.safetensors")
        self.write_index()
        self.check(self.whole, says="is not read")
        (self.folder / first).rename(self.folder / "a.safetensors")
        self.map = {name: "a.safetensors" if file == first else file for name, file in self.map.items()}
        self.write_index()
        self.check(self.whole)

    def test_a_parameter_that_is_missing_stays_an_error(self):
        first, _ = self.files
        tensors = load_file(self.folder / first)
        tensors.pop("model.norm.weight" if "model.norm.weight" in tensors else sorted(tensors)[-1])
        save_file(tensors, self.folder / first, {"format": "pt"})
        self.write_index()
        self.refused("no tensor")


class Contents(Models):
    def test_files_that_are_something_else(self):
        self.make("llama")
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        for name, content, expected in (("model.safetensors", pointer, "Git LFS.*git lfs pull"), ("tokenizer.json", pointer, "Git LFS"),
                                        ("config.json", '{"a": 1}'.encode("utf-16"), "UTF-16.*iconv"),
                                        ("config.json", b"<!DOCTYPE html>", "web page"),
                                        ("model.safetensors", b"GGUF\x03\0\0\0" + bytes(64), "llama.cpp"),
                                        ("model.safetensors", b"PK\x03\x04" + bytes(64), "tandem convert")):
            with self.subTest(name=name, expected=expected):
                kept = (self.folder / name).read_bytes()
                (self.folder / name).write_bytes(content)
                self.refused(expected)
                (self.folder / name).write_bytes(kept)

    def test_folders_that_are_something_else(self):
        self.make("llama")
        (self.folder / "model.safetensors").rename(self.folder / "__0_0.distcp")
        self.refused("tandem convert")
        for names, expected in ((("global_step4", "global_step12"), "global_step4, global_step12.*global_step12.*latest"), ((), "FSDP.*dcp_to_torch")):
            source = self.folder / "source"
            source.mkdir(exist_ok=True)
            if not names:
                (source / "__0_0.distcp").write_bytes(b"")
            for name in names:
                (source / name).mkdir()
                (source / name / "mp_rank_00_model_states.pt").write_bytes(b"")
            done = self.run_program("convert", source, self.folder / "made", "--to", "hf")
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, expected)
            self.assertFalse((self.folder / "made").exists())
            shutil.rmtree(source)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
