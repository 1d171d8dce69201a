"""Counts the floating-point operations of a training token from a model's config.json.

Invariant: both sides of a comparison use this one formula, so that a ratio of TFLOPS is a ratio of tokens per second.
"""

import json
from pathlib import Path


def read_config(path, layers=None):
    """Returns the values of a config.json, cut to its first layers; ValueError where it has fewer."""
    values = json.loads(Path(path).read_text(encoding="utf-8"))
    whole = values["num_hidden_layers"]
    if layers is not None and not 1 <= layers <= whole:
        raise ValueError(f"--layers {layers}: {path} has {whole}")
    return values | {"num_hidden_layers": layers or whole}


def matmul_weights(values):
    """Counts the weights of a block that one token is multiplied with: attention, then the MLP or the chosen experts."""
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    head_dim = values.get("head_dim") or hidden // heads
    queries = hidden * heads * head_dim
    keys_and_values = 2 * hidden * head_dim * values.get("num_key_value_heads", heads)
    attention = 2 * queries + keys_and_values  # the output projection is as large as that of the queries
    experts = values.get("num_experts") or values.get("num_local_experts") or 0
    if not experts:
        return attention + 3 * hidden * values["intermediate_size"]
    width = values.get("moe_intermediate_size") or values["intermediate_size"]
    return attention + hidden * experts + 3 * hidden * width * values["num_experts_per_tok"]


def flops_of_token(values, length, checkpointing):
    """Returns (executed, of the model): forward and backward of one token in rows of `length`.

    The scores of causal attention count half. Backward is twice forward. Recomputed blocks count once more as executed, and
    not for the model; whatever fused attention computes again in its backward counts nowhere.
    """
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    head_dim = values.get("head_dim") or hidden // heads
    block = 2 * matmul_weights(values) + 2 * length * heads * head_dim
    blocks = values["num_hidden_layers"] * block
    model = 3 * (blocks + 2 * hidden * values["vocab_size"])
    return model + (blocks if checkpointing else 0), model
