"""Adapters of each kind that PEFT makes, merged by ./tandem merge and used by ./tandem logits: both
have PEFT's logits. And each field of PEFT's LoraConfig is in a list of models/io/adapter_keys.hpp.

peft_kinds.py FOLDER_OF_PROGRAMS [KIND...]
"""

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

KEYS = Path(__file__).resolve().parents[3] / "models" / "io" / "adapter_keys.hpp"
MOST_APART = 2e-4
SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=320, max_position_embeddings=256,
             bos_token_id=None, eos_token_id=319, pad_token_id=None, initializer_range=0.08)
IDS = [[3, 14, 15, 92, 65, 35, 89, 79]]

# kind: the base, the LoraConfig, and what the refusal says where it is one
KINDS = {
    "plain": ("llama", dict(target_modules=["q_proj", "v_proj"]), None),
    "head": ("llama", dict(target_modules=["q_proj", "lm_head"]), None),
    "embedding": ("llama", dict(target_modules=["q_proj", "embed_tokens"]), None),
    "embedding_dora": ("llama", dict(target_modules=["q_proj", "embed_tokens"], use_dora=True), None),
    "patterns": ("llama", dict(target_modules=["q_proj", "v_proj", "down_proj"],
                               rank_pattern={"^model.layers.1.mlp.down_proj": 6, "q_proj": 2},
                               alpha_pattern={"q_proj": 16, r"layers\.\d+\.mlp\..*": 3}), None),
    "rslora_patterns": ("llama", dict(target_modules=["q_proj", "v_proj"], use_rslora=True,
                                      rank_pattern={"q_proj": 2}), None),
    "dora": ("llama", dict(target_modules=["q_proj", "down_proj"], use_dora=True), None),
    "dora_conv1d": ("gpt2", dict(target_modules=["c_attn", "c_proj"], use_dora=True,
                                 fan_in_fan_out=True), None),
    "bias_all": ("qwen2_untied", dict(target_modules=["q_proj", "v_proj"], bias="all"), None),
    "lora_bias": ("qwen2_untied", dict(target_modules=["q_proj", "v_proj"], lora_bias=True), None),
    "tied_both": ("qwen2", dict(target_modules=["q_proj"],
                                modules_to_save=["embed_tokens", "lm_head"]), None),
    "tied_embedding": ("qwen2", dict(target_modules=["q_proj"],
                                     modules_to_save=["embed_tokens"]), None),
    "tied_lora_head": ("qwen2", dict(target_modules=["q_proj", "lm_head"]), None),
    "tied_lora_embedding": ("qwen2", dict(target_modules=["q_proj", "embed_tokens"]), None),
    "norms": ("llama", dict(target_modules=["q_proj"], modules_to_save=["input_layernorm"]), None),
    "names_in_memory": ("llama", dict(target_modules=["q_proj", "embed_tokens"]), None),
    "fewer_targets": ("llama", dict(target_modules=["q_proj", "v_proj"]), "target_modules"),
    "wider_targets": ("llama", dict(target_modules=["q_proj"]), None),
    "wider_gaussian": ("gpt2", dict(target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights="gaussian"), None),
    "wider_orthogonal": ("llama", dict(target_modules=["q_proj"], init_lora_weights="orthogonal"), None),
    "wider_in_one_layer": ("llama", dict(target_modules=["q_proj"], layers_to_transform=[0]), None),
    "wider_random": ("llama", dict(target_modules=["q_proj"], init_lora_weights=False), "random values"),
    "wider_random_layers": ("llama", dict(target_modules=["q_proj"], layers_to_transform=[0], init_lora_weights=False), "layers.1.self_attn.q_proj"),
    "wider_random_head": ("llama", dict(target_modules=["q_proj"], init_lora_weights=False), "lm_head"),
    "random_of_all": ("llama", dict(target_modules=["q_proj", "down_proj"], init_lora_weights=False), None),
    "head_of_all_linear": ("llama", dict(target_modules=["q_proj", "lm_head"]), "leaves out"),
    "loftq": ("llama", dict(target_modules=["q_proj"]), "loftq"),
    "parameters": ("llama", dict(target_modules=["q_proj"],
                                 target_parameters=["mlp.down_proj.weight"]), "target_parameters"),
    "own_tokenizer": ("llama", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"]), None),
    "tokens": ("llama", dict(target_modules=["q_proj"], trainable_token_indices=[3, 14]),
               "trainable_token_indices"),
}

# kind: members of adapter_config.json that were changed behind PEFT. It passes over tensors that target_modules leaves out, and
# gives modules that the file lacks what init_lora_weights says.
CHANGED = {
    "fewer_targets": {"target_modules": ["q_proj"]},
    "wider_targets": {"target_modules": ["q_proj", "v_proj", "down_proj", "lm_head"]},
    "wider_gaussian": {"target_modules": ["c_attn", "c_fc", "wte", "wpe"]},
    "wider_orthogonal": {"target_modules": r".*\.(q_proj|up_proj)"},
    "wider_in_one_layer": {"layers_to_transform": None},
    "wider_random": {"target_modules": "all-linear"},
    "wider_random_layers": {"layers_to_transform": None},
    "wider_random_head": {"target_modules": ["q_proj", "lm_head"]},
    "head_of_all_linear": {"target_modules": "all-linear"},
    "loftq": {"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4}},
}


def base_of(kind):
    from transformers import GPT2Config, LlamaConfig, Qwen2Config
    from transformers import AutoModelForCausalLM
    if kind == "gpt2":
        config = GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=320, n_positions=256,
                            bos_token_id=319, eos_token_id=319, initializer_range=0.08)
    elif kind == "llama":
        config = LlamaConfig(**SIZES, head_dim=8)
    else:
        config = Qwen2Config(**SIZES, tie_word_embeddings=kind == "qwen2")
    return AutoModelForCausalLM.from_config(config).float()


def save_tokenizer(folder, *more):
    """One of bytes, which the programs ask for beside a model; `more`: tokens added to it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(list(more))
    tokenizer.save(str(folder / "tokenizer.json"))


def make(kind, folder):
    """The adapter in FOLDER/adapter beside FOLDER/base; PEFT's logits."""
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM
    torch.manual_seed(7)
    name, settings, _ = KINDS[kind]
    base = base_of(name)
    base.save_pretrained(folder / "base")
    save_tokenizer(folder / "base")
    base.name_or_path = str(folder / "base")
    model = get_peft_model(base, LoraConfig(**{"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM",
                                               **settings}))
    with torch.no_grad():
        for _, value in sorted(model.named_parameters()):
            if value.requires_grad:
                value.add_(0.1 * torch.randn_like(value))
    model.eval()
    model.save_pretrained(folder / "adapter")
    change(kind, folder / "adapter")
    if KINDS[kind][2] is None and kind in CHANGED:  # as PEFT loads what was changed
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32), folder / "adapter").eval()
    with torch.no_grad():
        return model(torch.tensor(IDS)).logits[0].tolist()


def change(kind, adapter):
    """What some kinds have beside what PEFT saves."""
    from safetensors.torch import load_file, save_file
    path = adapter / "adapter_config.json"
    if kind in CHANGED:
        path.write_text(json.dumps({**json.loads(path.read_text()), **CHANGED[kind]}))
    if kind == "own_tokenizer":  # as trainers save it, with tokens for which the base has rows
        save_tokenizer(adapter, "<think>", "</think>")
    if kind == "names_in_memory":
        path = adapter / "adapter_model.safetensors"
        save_file({re.sub(r"(\.lora_\w+)", r"\1.default", name): value
                   for name, value in load_file(path).items()}, path)


def run(command, text=""):
    return subprocess.run([str(part) for part in command], input=text, capture_output=True, text=True)


def difference(tandem, model, wanted):
    done = run([tandem, "logits", "--model_name", model], json.dumps(IDS[0]) + "\n")
    if done.returncode != 0:
        return f"exit {done.returncode}: {done.stderr.strip()}"
    got = json.loads(done.stdout)
    worst = max(abs(a - b) for x, y in zip(wanted, got, strict=True) for a, b in zip(x, y, strict=True))
    return "" if worst <= MOST_APART else f"logits are {worst:.2e} from PEFT's"


def fault_of(tandem, kind):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        wanted = make(kind, folder)
        merge = run([tandem, "merge", folder / "adapter", "--into", folder / "base",
                     "--output", folder / "merged"])
        refusal = KINDS[kind][2]
        if refusal:
            ok = merge.returncode == 2 and refusal in merge.stderr
            return "" if ok else f"not refused by {refusal}: {merge.returncode} {merge.stderr}"
        if merge.returncode != 0:
            return f"merge: exit {merge.returncode}: {merge.stderr.strip()}"
        return (difference(tandem, folder / "merged", wanted)
                or difference(tandem, folder / "adapter", wanted)
                or (other_tokenizer(tandem, folder) if kind == "own_tokenizer" else ""))


def other_tokenizer(tandem, folder):
    """The adapters, asked for by name, give their tokenizer; training them on beside the base is refused."""
    adapter = folder / "adapter"
    if (folder / "merged" / "tokenizer.json").read_bytes() != (adapter / "tokenizer.json").read_bytes():
        return "the merged model has not the tokenizer of the adapters"
    said = run([tandem, "generate", "--model_name", adapter, "--prompt", "<think>", "--max_new_tokens", "1"])
    if said.returncode != 0 or "258 tokens, and the model's 256" not in said.stdout + said.stderr:
        return f"generate: exit {said.returncode}: {said.stdout}{said.stderr}"
    data = folder / "data.jsonl"
    data.write_text('{"instruction": "a", "output": "b"}\n')
    on = run([tandem.parent / "finetune_zero3", "--model_name", folder / "base", "--lora_from", adapter, "--dataset_name", data, "--lr", "1e-3",
              "--batch_size", "1", "--output_dir", folder / "out"])
    return "" if on.returncode == 2 and "merge the adapters" in on.stderr else f"--lora_from: exit {on.returncode}: {on.stderr}"


def unlisted_fields():
    from peft import LoraConfig
    listed = set(re.findall(r'"(\w+)"', KEYS.read_text()))
    return sorted({field.name for field in dataclasses.fields(LoraConfig)} - listed)


def main():
    if importlib.util.find_spec("peft") is None:
        print("skipped: this Python has no peft")
        return 77
    tandem = Path(sys.argv[1]) / "tandem"
    faults = [f"{field} of LoraConfig is in no list of {KEYS.name}" for field in unlisted_fields()]
    for kind in sys.argv[2:] or KINDS:
        fault = fault_of(tandem, kind)
        print(f"{kind}: {fault or 'as PEFT'}", flush=True)
        faults += [f"{kind}: {fault}"] if fault else []
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
