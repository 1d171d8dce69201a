#!/usr/bin/env python3
"""Checkpoints that the trainer and `merge` save, loaded by Transformers: for each family one whose head is its own, one
whose head is the embedding, one with the names of Transformers' memory and half of them without the base's prefix, and
one with merged adapters. Logits are compared with those of the source (PEFT's, where it has adapters) and with the
program's own. Prints a table of the largest differences; exit 1 where one is too large.

saved_models.py FOLDER_OF_PROGRAMS [FAMILY...]
"""

import argparse
import copy
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo"
SKIPPED = 77
MOST_APART = 2e-4
IDS = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38]
SETTINGS = {"vocab_size": 768, "bos_token_id": None, "eos_token_id": 767, "pad_token_id": None}
TARGETS = {"gpt2": ["c_attn", "c_proj"], "phi3": ["qkv_proj", "o_proj"]}
WAYS = ("untied", "tied", "renamed", "merged")
# Nothing moves at such a rate, so the saved weights are the source's.
TRAINING = ["--lr", "1e-30", "--weight_decay", "0", "--batch_size", "1", "--max_length", "64", "--loss_on", "all", "--steps", "1", "--dtype", "fp32",
            "--dataset_name", DEMO / "instructions.json", "--progress", "off", "--no-tensorboard", "--overlap", "off"]

sys.path.insert(0, str(ROOT / "tools"))


class Failed(Exception):
    """A program's or a library's words."""


def run(*command, text=""):
    done = subprocess.run([str(part) for part in command], input=text, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise Failed(f"{Path(command[0]).name} {command[1]}: exit {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


class Saved:
    def __init__(self, programs, folder):
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.torch, self.transformers = torch, transformers
        self.programs, self.folder = programs, folder

    def source(self, family, tied):
        """A model in memory with weights that are drawn."""
        import make_reference

        flags = argparse.Namespace(family=family, tied=tied, set=[f"{key}={json.dumps(value)}" for key, value in {**SETTINGS, "tie_word_embeddings": tied}.items()])
        _, config = make_reference.published_config(flags, self.transformers)
        model = self.transformers.AutoModelForCausalLM.from_config(config, dtype=self.torch.float32, attn_implementation="eager")
        make_reference.draw_weights(model, 7, self.torch)
        return model.eval()

    def logits(self, model):
        with self.torch.no_grad():
            return model(self.torch.tensor([IDS])).logits[0].float()

    def write(self, model, renamed):
        """The model in a folder, by save_pretrained or as its memory names its tensors."""
        place = self.folder / "source"
        shutil.rmtree(place, ignore_errors=True)
        model.save_pretrained(place)
        if renamed:
            import safetensors.torch

            for path in place.glob("model*"):
                path.unlink()
            prefix = f"{model.base_model_prefix}."
            tensors = {name: value.contiguous().clone() for name, value in model.state_dict().items() if not (name == "lm_head.weight" and model.config.tie_word_embeddings)}
            safetensors.torch.save_file({name.removeprefix(prefix) if at % 2 else name: value for at, (name, value) in enumerate(tensors.items())}, place / "model.safetensors", {"format": "pt"})
        for path in DEMO.glob("tokenizer*.json"):
            shutil.copy(path, place)
        return place

    def saved(self, source):
        out = self.folder / "run"
        shutil.rmtree(out, ignore_errors=True)
        run(self.programs / "finetune_zero3", "--model_name", source, "--output_dir", out, *TRAINING)
        return out / "model"

    def merged(self, model, family, source):
        """(the folder, PEFT's logits)"""
        import peft

        config = peft.LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", init_lora_weights=False, target_modules=TARGETS.get(family, ["q_proj", "v_proj", "o_proj"]), fan_in_fan_out=family == "gpt2")
        adapted = peft.get_peft_model(copy.deepcopy(model), config).eval()
        place, out = self.folder / "adapter", self.folder / "merged"
        for old in (place, out):
            shutil.rmtree(old, ignore_errors=True)
        adapted.save_pretrained(place)
        run(self.programs / "tandem", "merge", place, "--into", source, "--output", out)
        return out, self.logits(adapted)

    def apart(self, family, way):
        """The largest difference between the logits of the saved model, of the source, and of the program."""
        model = self.source(family, way == "tied" or way == "renamed" and family in ("gpt2", "gemma3_text"))
        source = self.write(model, way == "renamed")
        out, wanted = self.merged(model, family, source) if way == "merged" else (self.saved(source), self.logits(model))
        loaded, info = self.transformers.AutoModelForCausalLM.from_pretrained(out, dtype=self.torch.float32, attn_implementation="eager", output_loading_info=True)
        wrong = {kind: sorted(names) for kind, names in info.items() if names}
        if wrong:
            raise Failed(f"Transformers says {wrong}")
        found = self.logits(loaded.eval())
        own = self.torch.tensor(json.loads(run(self.programs / "tandem", "logits", "--model_name", out, text=json.dumps(IDS))))
        return max(float((found - wanted).abs().max()), float((found - own).abs().max()))


def cell(saved, family, way):
    """(text, whether it is right)"""
    try:
        apart = saved.apart(family, way)
    except Failed as failed:
        return str(failed), False
    return f"{apart:.1e}", apart <= MOST_APART


def main():
    missing = [name for name in ("torch", "transformers", "peft") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} missing; requirements-test.txt lists it")
        return SKIPPED
    import make_reference

    code = 0
    print(" | ".join(["family", *WAYS]), flush=True)
    with tempfile.TemporaryDirectory(prefix="tandem-saved-") as folder:
        saved = Saved(Path(sys.argv[1]).resolve(), Path(folder))
        for family in sys.argv[2:] or sorted(make_reference.FAMILIES):
            cells = [cell(saved, family, way) for way in WAYS]
            code = code if all(right for _, right in cells) else 1
            print(" | ".join([family, *(text for text, _ in cells)]), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
