"""Makes a machine without a GPU look like one with it: a folder of stand-ins for PATH, and configs of tiny models.

Invariant: a stand-in says that it is one, and no figure of a rehearsal is a measurement.
"""

import json

from kit import HERE

# The GPU's query, and the two that ask for one thing each.
NVIDIA_SMI = """case "$*" in
  *memory.used*) echo 0 ;;
  *--query-gpu=name*) echo "stand-in for a GPU, 0.0, 0 MiB, 0.0" ;;
  *--query-gpu*) echo "0, 0, 0 MHz, 0 MHz, 0 W" ;;
  *) echo "CUDA Version: 0.0 (stand-in)" ;;
esac"""
# Both pass over their own flags and run the program; a flag's value never looks like a program's name.
SANITIZER = """while [ "$1" != "--error-exitcode" ]; do shift; done
shift 2
"$@" || exit $?
echo '========= ERROR SUMMARY: 0 errors (stand-in)'
echo '========= RACECHECK SUMMARY: 0 hazards (stand-in)'"""
NCU = """while [ "$1" != "-c" ]; do shift; done
shift 2
"$@" || exit $?
echo "  stand_in (1, 1, 1)x(1, 1, 1)"
echo '    Duration us 0 (stand-in)'"""
STAND_INS = {"nvidia-smi": NVIDIA_SMI, "compute-sanitizer": SANITIZER, "ncu": NCU}

TINY = {"vocab_size": 768, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "max_window_layers": 2, "bos_token_id": None,
        "eos_token_id": 767}
TINY_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def write_stand_ins(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in STAND_INS.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)


def write_tiny_configs(folder):
    """Each config of the kit with its own keys and the sizes of a model of a few kilobytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in (HERE / "configs").glob("*.json"):
        values = json.loads(path.read_text(encoding="utf-8"))
        tiny = TINY | (TINY_EXPERTS if "num_experts" in values else {})
        shrunk = values | {key: value for key, value in tiny.items() if key in values}
        (folder / path.name).write_text(json.dumps(shrunk, indent=1), encoding="utf-8")
