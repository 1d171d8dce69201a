"""What the makers of small references share: models in double, the data they see, and files.

A reference is computed in float64 and kept as F32. Its limits are constants of float32's arithmetic; the maker runs the same
computation in float32, too, and refuses to write a reference of which that takes more than HALF of a limit.
"""

import json
import sys
from pathlib import Path

import torch

DATA = Path(__file__).resolve().parent
sys.path.insert(0, str(DATA.parents[1] / "tools"))
from rounding import Rounding  # noqa: E402  (runs a model's float32 casts in float64)

IGNORED = -100
HALF = 0.5
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def checkpoint(name):
    return DATA / "references" / name / "checkpoint"


def base_model(name, dtype):
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint(name), attn_implementation="eager", dtype=torch.float32)
    return model.to(dtype).eval()  # without dropout


def exactly(dtype):
    """The mode under which a model of this type computes."""
    return Rounding() if dtype == torch.float64 else torch.enable_grad()


def loss_sum(model, tokens, labels, mask=None):
    logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum")


def counted(labels):
    return int((labels[:, 1:] != IGNORED).sum())


def clipped(gradients, clip):
    """The L2 norm of all; above `clip` they are scaled in place."""
    norm = torch.stack([g.norm() for g in gradients]).norm()
    if clip > 0:
        for gradient in gradients:
            gradient.mul_(torch.clamp(clip / (norm + 1e-6), max=1.0))
    return norm.item()


def apart(values, truths):
    """The greatest L2 distance of a tensor, over what training changed in it: {name: (truth, before)}."""
    return max(float((values[n].double() - t).norm() / (t - b.detach().double()).norm()) for n, (t, b) in truths.items())


def require(measured, limits):
    """Refuses limits that float32 here nearly takes."""
    for name, value in measured.items():
        if not value <= HALF * limits[name]:
            raise SystemExit(f"error: {name}: float32 is {value:.3g} from float64, and the limit is {limits[name]:.3g}")


def save(path, tensors):
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({n: (t.detach().float() if t.is_floating_point() else t).contiguous() for n, t in tensors.items()}, path)
    path.chmod(0o644)


def save_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def target(file):
    """The folder that a maker writes: its first argument, else the one it lies in."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    return Path(sys.argv[1]) if len(sys.argv) > 1 else Path(file).resolve().parent
