"""Copies of a folder of tools/make_reference.py, each with one mistake in what the engine is given.

  plants.py REFERENCE OUT NAME ...    makes OUT/NAME for each; files without a mistake are links
"""

import json
import re
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
    of_gate = r"model\.layers\.0\..*experts\.[01]\.(gate_proj|w1)\.weight"
    apart = [name for name in sorted(tensors) if re.fullmatch(of_gate, name)]
    if len(apart) == 2:  # in the shard that has them
        first, second = apart
        tensors.update({first: tensors[second], second: tensors[first]})
    elif "model.layers.0.mlp.experts.gate_up_proj" in tensors:  # one of the shards has it
        joined = tensors["model.layers.0.mlp.experts.gate_up_proj"]
        joined[[0, 1]] = joined[[1, 0]]


def one_element(tensors):
    name = sorted(name for name in tensors if name.endswith("proj.weight"))[0]
    tensors[name][3, 5] *= 1.01


def with_eyes(folder):
    """The same text model as part of one that sees."""
    in_json("checkpoint/config.json", wrap_config)(folder)
    in_tensors("checkpoint/*.safetensors", wrap_tensors)(folder)


def wrap_config(values):
    text = dict(values)
    values.clear()
    values.update(model_type="gemma3", text_config=text, vision_config={"hidden_size": 8}, torch_dtype=text.pop("torch_dtype"))


def wrap_tensors(tensors):
    text = dict(tensors)
    tensors.clear()
    tensors.update({"language_model." + name: tensor for name, tensor in text.items()})
    tensors["vision_tower.head.probe"] = numpy.zeros((1, 8), numpy.float32)


PLANTS = {
    "adam_eps": in_optimizer(eps=1e-7),
    "beta2": in_optimizer(betas=[0.9, 0.998]),
    "bias_correction": in_optimizer(bias_correction=False),
    "weight_decay": in_optimizer(weight_decay=0.0),
    "clipping": in_json("losses.json", lambda values: values["traces"]["clip"].update(gradient_clipping=0.0)),
    "labels": in_tensors("batches.safetensors", shift_labels),
    "norm_eps": in_config(rms_norm_eps=lambda x: 1.2 * x, layer_norm_epsilon=lambda x: 1.2 * x),
    "rope_theta": in_config(rope_theta=lambda x: 1.001 * x),
    "window_theta": in_config(rope_local_base_freq=lambda x: 1.001 * x),
    "score_scale": in_config(query_pre_attn_scalar=lambda x: x + 1),
    "with_eyes": with_eyes,  # no mistake
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
