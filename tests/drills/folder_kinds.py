"""Model folders and adapter folders of the drill of records: config.json or adapter_config.json with one member changed.

Logits of the program beside those of Transformers and PEFT in this process.
"""

import contextlib
import io
import json
import re
import resource
import shutil
import subprocess
import warnings
from pathlib import Path

from mutations import mutated

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "examples" / "demo"
PAGES = (ROOT / "docs" / "model_keys.md", ROOT / "docs" / "folder_keys.md")
IDS = [5, 17, 3, 44, 9, 9, 61, 2, 30, 7, 11, 28]
MOST_APART = 3e-4
SIZES = {"vocab_size": 1024, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
         "max_position_embeddings": 64, "initializer_range": 0.2, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 3}
GPT2 = {"vocab_size": 1024, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": 3}
FAMILIES = {"llama": SIZES, "qwen2": SIZES, "qwen3": SIZES, "mistral": {**SIZES, "sliding_window": 6}, "phi3": SIZES, "gpt2": GPT2, "gemma3_text": {**SIZES, "sliding_window": 6, "query_pre_attn_scalar": 8}}
CONFIG_NAMES = {"hidden_act": ["silu", "gelu", "gelu_pytorch_tanh", "relu"], "hidden_activation": ["gelu", "silu"], "activation_function": ["gelu_new", "gelu", "relu"], "rms_norm_eps": [1e-5, 0.1], "layer_norm_epsilon": [1e-5, 0.1],
                "rope_theta": [10000.0, 500.0], "rope_scaling": [{"type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32},
                                                                 {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}],
                "rope_parameters": [{"rope_type": "default", "rope_theta": 500.0}, {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}], "attention_bias": [True, False], "mlp_bias": [True, False],
                "tie_word_embeddings": [True, False], "head_dim": [8, 16], "num_key_value_heads": [1, 2, 4], "sliding_window": [4, 64], "use_sliding_window": [True, False], "max_window_layers": [0, 1],
                "layer_types": [["full_attention", "sliding_attention"], ["full_attention", "full_attention"]], "attention_dropout": [0.1], "max_position_embeddings": [8, 256], "hidden_size": [64], "vocab_size": [800, 2048],
                "torch_dtype": ["float16", "bfloat16"], "dtype": ["float32"], "architectures": [["LlamaModel"]], "pad_token_id": [-1, 0], "eos_token_id": [[3, 4], 5], "partial_rotary_factor": [0.5, 1.0],
                "attn_logit_softcapping": [1.0], "final_logit_softcapping": [1.0], "query_pre_attn_scalar": [4, 8], "rope_local_base_freq": [500.0], "pretraining_tp": [2], "logit_scale": [0.5], "num_hidden_layers": [1, 3],
                "quantization_config": [{"quant_method": "gptq", "bits": 4}], "use_cache": [False], "scale_attn_weights": [False], "scale_attn_by_inverse_layer_idx": [True], "reorder_and_upcast_attn": [True],
                "use_bidirectional_attention": [True], "sliding_window_pattern": [2], "embd_pdrop": [0.1], "stranger": ["x"], "model_type": ["llama", "mistral", "qwen2"]}
LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False, "task_type": "CAUSAL_LM"}
ADAPTER_NAMES = {"r": [2, 8], "lora_alpha": [1, 16], "use_rslora": [True], "use_dora": [True], "bias": ["all", "lora_only"], "rank_pattern": [{"q_proj": 2}, {"q_proj": 4}], "alpha_pattern": [{"q_proj": 1}, {"layers.0.self_attn.q_proj": 2}],
                 "target_modules": [["q_proj"], ["q_proj", "v_proj", "o_proj"], "all-linear", ".*_proj"], "modules_to_save": [["lm_head"], ["input_layernorm"]], "layers_to_transform": [[0], 1], "layers_pattern": ["layers"], "fan_in_fan_out": [True],
                 "exclude_modules": [["v_proj"]], "init_lora_weights": ["pissa", "olora", True], "lora_dropout": [0.5], "peft_type": ["IA3", "LOHA"], "task_type": ["SEQ_CLS"], "inference_mode": [False], "lora_bias": [True],
                 "target_parameters": [["mlp.down_proj.weight"]], "layer_replication": [[[0, 1], [0, 2]]], "trainable_token_indices": [[1]], "use_qalora": [True], "base_model_name_or_path": ["x"], "revision": ["main"],
                 "alora_invocation_tokens": [[3]], "megatron_config": [{"a": 1}], "loftq_config": [{"bits": 4}], "ensure_weight_tying": [True], "stranger": ["x"]}


@contextlib.contextmanager
def bounded_memory(more_bytes=8 << 30):
    """Within it this process gets at most so many addresses more: the reference makes a model of any size that a config asks for."""
    old = resource.getrlimit(resource.RLIMIT_AS)
    now_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + more_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)


def listed():
    """All members that our pages list."""
    return set(re.findall(r"^\| `([^`]+)` \|", "\n".join(page.read_text(encoding="utf-8") for page in PAGES), re.MULTILINE))


class Folders:
    """What both kinds share: the program's logits, and how they are judged."""

    def __init__(self, program, folder):
        import torch
        import transformers

        warnings.filterwarnings("ignore")
        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.torch, self.transformers = torch, transformers
        self.program, self.folder, self.listed = program, folder, listed()
        folder.mkdir(exist_ok=True)

    def model(self, family):
        """A folder with random weights, made once."""
        folder = self.folder / family
        if not folder.is_dir():
            self.torch.manual_seed(1)
            config = self.transformers.AutoConfig.for_model(family, **FAMILIES[family])
            self.transformers.AutoModelForCausalLM.from_config(config, dtype=self.torch.float32).save_pretrained(folder)
            shutil.copy(folder / "config.json", folder / "whole.json")
            for path in TOKENIZER.glob("*token*.json"):
                shutil.copy(path, folder)
        return folder

    def logits_of(self, model):
        with self.torch.no_grad():
            return model.eval()(self.torch.tensor([IDS])).logits[0]

    def ours(self, *flags):
        """(logits or None, what was said)"""
        done = subprocess.run([self.program, "logits", *map(str, flags)], input=json.dumps(IDS), capture_output=True, text=True, timeout=120)
        if done.returncode not in (0, 2):
            return None, f"exit {done.returncode}: {done.stderr}"
        return (self.torch.tensor(json.loads(done.stdout)) if done.returncode == 0 else None), done.stderr

    def judged(self, mutation, ours, said, theirs):
        """(outcome, detail); `theirs`: None where the reference does not read it."""
        named = any(name.lower() in said.lower() for name in mutation.names)
        if ours is None:
            return ("refusal", "") if named or mutation.operation in ("remove", "rename", "null") and "error: [" in said else ("DIFFERENCE", f"it does not name the member: {said.strip()}")
        if theirs is None:
            return "value that the reference does not read", ""
        apart = float((ours - theirs).abs().max()) if ours.shape == theirs.shape else float("inf")
        if not apart <= MOST_APART:
            return ("note", "") if named else ("DIFFERENCE", f"logits are {apart:.3g} apart")
        new, operation = mutation.names[-1], mutation.operation
        if operation in ("add", "rename") and new not in self.listed and not named and mutation.is_top and mutation.value.get(new) is not None:
            return "DIFFERENCE", f"{new} changed nothing and nobody was told"
        return ("note" if "note" in said and named else "value"), ""


class Configs(Folders):
    def __call__(self, draw):
        family = draw.choice(sorted(FAMILIES))
        folder = self.model(family)
        mutation = mutated(draw, json.loads((folder / "whole.json").read_text()), CONFIG_NAMES, deep=draw.random() < 0.2)
        (folder / "config.json").write_text(json.dumps(mutation.value))
        try:
            with bounded_memory(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                model, info = self.transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=self.torch.float32, attn_implementation="eager", output_loading_info=True)
            theirs = None if info["missing_keys"] or info["mismatched_keys"] else self.logits_of(model)
        except Exception:  # whatever its classes raise
            theirs = None
        outcome, detail = self.judged(mutation, *self.ours("--model_name", folder), theirs)
        return outcome, mutation, f"{family}: {detail} of {json.dumps({name: mutation.value.get(name) for name in mutation.names})}"


class Adapters(Folders):
    def __call__(self, draw):
        import peft

        base, adapter = self.model(draw.choice(("llama", "qwen2"))), self.folder / "adapter"
        whole = self.folder / f"lora-{base.name}"
        shutil.copy(base / "whole.json", base / "config.json")
        if not whole.is_dir():
            self.torch.manual_seed(2)
            peft.get_peft_model(self.base(base), peft.LoraConfig(**LORA)).save_pretrained(whole)
        shutil.rmtree(adapter, ignore_errors=True)
        shutil.copytree(whole, adapter)
        config = json.loads((whole / "adapter_config.json").read_text())
        mutation = mutated(draw, config, ADAPTER_NAMES, deep=draw.random() < 0.2)
        (adapter / "adapter_config.json").write_text(json.dumps(mutation.value))
        out = self.folder / "merged"
        shutil.rmtree(out, ignore_errors=True)
        theirs = self.expected(peft, base, adapter)
        done = subprocess.run([self.program, "merge", adapter, "--into", base, "--output", out], capture_output=True, text=True, timeout=120)
        ours, said = (None, done.stderr) if done.returncode else self.ours("--model_name", out)
        outcome, detail = self.judged(mutation, ours, said + done.stderr + done.stdout, theirs)
        return outcome, mutation, f"{base.name}: {detail} of {json.dumps({name: mutation.value.get(name) for name in mutation.names})}"

    def base(self, folder):
        return self.transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=self.torch.float32, attn_implementation="eager")

    def expected(self, peft, base, adapter):
        """PEFT's logits; None where it raises, or a tensor of the adapter has no place or is missing."""
        try:
            with bounded_memory(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                model = peft.PeftModel.from_pretrained(self.base(base), adapter)
                logits = self.logits_of(model)
            return None if any("missing adapter keys" in str(one.message) for one in said) else logits
        except Exception:  # whatever its classes raise
            return None
