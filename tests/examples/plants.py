"""Copies of a folder of tools/make_reference.py, each with one mistake in what the engine is given.

  plants.py REFERENCE OUT NAME ...    makes OUT/NAME for each; files without a mistake are links
"""

import json
import sys
from pathlib import Path

import numpy
from safetensors.numpy import load_file, save_file


def in_json(name, edit):
    def plant(folder):
        file = folder / name
        values = json.loads(file.read_text())
        edit(values)
        file.unlink()
        file.write_text(json.dumps(values))

    return plant


def in_config(**edits):
    def edit(values):
        for key, change in edits.items():
            if key in values:
                values[key] = change(values[key])

    return in_json("checkpoint/config.json", edit)


def in_optimizer(**changes):
    return in_json("losses.json", lambda values: values["deepspeed"]["optimizer"]["params"].update(changes))


def in_tensors(name, edit):
    def plant(folder):
        for file in sorted(folder.glob(name)):
            tensors = load_file(file)
            edit(tensors)
            file.unlink()
            save_file(tensors, file)

    return plant


def shift_labels(tensors):
    tensors["labels"] = numpy.roll(tensors["labels"], 1, axis=-1)


def swap_experts(tensors):
    apart = "model.layers.0.mlp.experts.{}.gate_proj.weight"
    if apart.format(0) in tensors:
        tensors.update({apart.format(0): tensors[apart.format(1)], apart.format(1): tensors[apart.format(0)]})
    else:
        joined = tensors["model.layers.0.mlp.experts.gate_up_proj"]
        joined[[0, 1]] = joined[[1, 0]]


def one_element(tensors):
    name = sorted(name for name in tensors if name.endswith("proj.weight"))[0]
    tensors[name][3, 5] *= 1.01


PLANTS = {
    "adam_eps": in_optimizer(eps=1e-7),
    "beta2": in_optimizer(betas=[0.9, 0.998]),
    "bias_correction": in_optimizer(bias_correction=False),
    "weight_decay": in_optimizer(weight_decay=0.0),
    "clipping": in_json("losses.json", lambda values: values["traces"]["clip"].update(gradient_clipping=0.0)),
    "labels": in_tensors("batches.safetensors", shift_labels),
    "norm_eps": in_config(rms_norm_eps=lambda x: 1.2 * x, layer_norm_epsilon=lambda x: 1.2 * x),
    "rope_theta": in_config(rope_theta=lambda x: 1.001 * x),
    "window": in_config(sliding_window=lambda x: x + 1),
    "routing": in_config(norm_topk_prob=lambda x: not x),
    "chosen": in_config(num_experts_per_tok=lambda x: x - 1),
    "expert": in_tensors("checkpoint/*.safetensors", swap_experts),
    "element": in_tensors("checkpoint/*.safetensors", one_element),
}


def main():
    reference, out = Path(sys.argv[1]), Path(sys.argv[2])
    for name in sys.argv[3:]:
        folder = out / name
        (folder / "checkpoint").mkdir(parents=True)
        for file in reference.rglob("*"):
            if file.is_file() and file.name != "config.transformers5.json":  # it would tell of edits in the other spelling
                (folder / file.relative_to(reference)).symlink_to(file.resolve())
        PLANTS[name](folder)


if __name__ == "__main__":
    main()
