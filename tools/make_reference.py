#!/usr/bin/env python3
"""Makes a folder for `tandem parity`: a checkpoint, and what Transformers computes with it.

  make_reference.py --family llama --out DIR [--tied] [--shards N] [--set KEY=JSON ...]    small, random weights
  make_reference.py --checkpoint MODEL_DIR --out DIR                                       of a checkpoint that is there

DIR gets checkpoint/ (weights as F32), logits, gradients, batches, the losses and final weights of two training traces (with
and without clipping), all computed in float64, and beside each value x the limit that `tandem parity` holds it to. The
config's dropout is off throughout, here and in `tandem parity`: each library draws masks of its own.

Limits come from the arithmetic of float32, not from what processors, threads or libraries happened to differ by:
  1. The model runs --samples more times with each operation off by what float32 may round away there, times NOISE
     (rounding.py says how much that is). x gets sqrt(own + pool), own its mean square deviation in those runs and pool
     row mean * column mean / mean of the tensor's; times FACTOR this is b(x), 8 deviations of an error in float32.
  2. Logits, loss, norms, gradients: |x' - x| <= b(x) (and u |x|, the file's own rounding; u = 2^-24).
  3. Weights: Adam runs with gradients g - b(g) and g + b(g); a step's limit is the farthest of these from the truth, and
     (3 |w| + 16 lr) u of its own rounding. Where g is within its noise Adam moves by lr whatever the sign, and the limit
     is what it can do at all, up to 2 lr (class Companions of rounding.py). So it is some u where g is known.
  4. Such a step changes later gradients: from the second step on the noisy runs have all weights moved as far as Adam's
     farthest run is, each way by chance, so that b(g) holds whichever of them flipped.
  5. Where rounding could change a token's experts (scores of the last chosen and the first other within FACTOR sqrt(2)
     deviations), a limit would say nothing: such micro-batches are drawn anew.
At the end Transformers in plain float32 is held to them, with whatever kernels it has here; its share is printed.
"""

import argparse
import copy
import json
import shutil
import sys
import tempfile
from pathlib import Path

from rounding import NOISE, UNIT, Companions, Rounding, Spread, close_choices

LENGTH = 32
ACCUMULATION = 2
ROWS = 4
BATCH = ("input_ids", "labels", "attention_mask")
CLIP = {"clip": 1.0, "noclip": 0.0}
OPTIMIZER = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
DEEPSPEED = {"optimizer": {"type": "AdamW", "params": OPTIMIZER}}  # what `tandem parity` trains with
TRIES = 50

SMALL = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "hidden_act": "silu", "vocab_size": 331,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_dropout": 0.0, "initializer_range": 0.02,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "output_router_logits": False, "router_aux_loss_coef": 0.001}
# As published files spell it; features on that 32 tokens can show.
FAMILIES = {
    "llama": {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 24}},
    "phi3": {"rms_norm_eps": 1e-5, "pad_token_id": 94, "sliding_window": 11, "embd_pdrop": 0.0, "resid_pdrop": 0.1,
             "partial_rotary_factor": 0.75, "original_max_position_embeddings": 16,
             "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
                              "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 5.0]}},
    "seed_oss": {"head_dim": 32, "attention_bias": True, "attention_out_bias": False, "mlp_bias": False,
                 "attention_dropout": 0.1, "residual_dropout": 0.1, "pad_token_id": 3},
    "qwen3": {"head_dim": 32, "attention_bias": False, "use_sliding_window": True, "sliding_window": 9,
              "max_window_layers": 1},
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 96, "vocab_size": 300, "bos_token_id": 1,
             "eos_token_id": 2, "activation_function": "gelu_new",
             "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "layer_norm_epsilon": 1e-5},
    "qwen3_moe": {"head_dim": 32, "attention_bias": False, "use_sliding_window": False, "num_experts": 8,
                  "moe_intermediate_size": 48, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [1],
                  **EXPERTS},
    "gpt_oss": {"head_dim": 32, "attention_bias": True, "sliding_window": 8, "num_local_experts": 4, "rms_norm_eps": 1e-5,
                "swiglu_limit": 7.0, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                                 "original_max_position_embeddings": 16}, **EXPERTS},
    "qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "mistral": {"head_dim": 32, "sliding_window": 8},
    "mixtral": {"num_local_experts": 4, "intermediate_size": 48, "sliding_window": 12, "rms_norm_eps": 1e-5,
                "rope_theta": 1000000.0, **EXPERTS},
    "gemma3_text": {"head_dim": 32, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24, "pad_token_id": 0,
                    "rms_norm_eps": 1e-4, "sliding_window": 8, "sliding_window_pattern": 3, "rope_theta": 1000000.0,
                    "rope_local_base_freq": 1000.0, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                    "tie_word_embeddings": True, "attn_logit_softcapping": 5.0},  # which Transformers does not use
}  # fmt: skip


def published_config(arguments, transformers):
    """config.json of a small model, as published files spell it."""
    family = arguments.family
    values = dict(FAMILIES[family]) if family == "gpt2" else {**SMALL, **FAMILIES[family]}
    values["model_type"] = family
    if arguments.tied or family == "gpt2":
        values["tie_word_embeddings"] = True
    for assignment in arguments.set:
        key, _, value = assignment.partition("=")
        values[key] = json.loads(value)
    fresh = json.loads(json.dumps({k: v for k, v in values.items() if k != "model_type"}))
    config = transformers.AutoConfig.for_model(family, **fresh)
    architecture = transformers.AutoModelForCausalLM._model_mapping[type(config)].__name__
    return {"architectures": [architecture], **values, "torch_dtype": "float32"}, config


def draw_weights(model, seed, torch):
    """In name order from one generator: norms scale by about one, the rest keeps activations in range."""
    generator = torch.Generator().manual_seed(seed)
    norm = 0 if model.config.model_type == "gemma3_text" else 1  # the weight that scales by one
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            owner, _, last = name.rpartition(".")
            if last == "weight" and ("norm" in owner.rsplit(".", 1)[-1] or ".ln_" in "." + owner):
                parameter.copy_(norm + 0.2 * noise)
            elif last == "sinks":
                parameter.copy_(noise)
            elif last == "bias" or last.endswith("_bias"):
                parameter.copy_(0.1 * noise)
            elif owner.endswith((".router", "mlp.gate")):
                parameter.copy_(0.4 * noise)  # so that two experts are rarely as good as each other
            else:
                parameter.copy_(0.08 * noise)


class Data:
    """Micro-batches, one after another from one generator."""

    def __init__(self, vocabulary, seed, torch):
        self.torch, self.vocabulary, self.generator = torch, vocabulary, torch.Generator().manual_seed(seed)

    def draw(self, rows):
        """tokens, labels (-100 on a prompt and on right padding), attention_mask: int64 [rows, LENGTH]."""
        torch = self.torch
        tokens = torch.randint(self.vocabulary, (rows, LENGTH), generator=self.generator)
        prompt = torch.randint(3, 13, (rows, 1), generator=self.generator)
        padding = torch.randint(0, 7, (rows, 1), generator=self.generator)
        position = torch.arange(LENGTH)
        mask = (position < LENGTH - padding).long()
        labels = torch.where((position < prompt) | (mask == 0), torch.tensor(-100), tokens)
        return tokens, labels, mask

    def where_routes_are_clear(self, rows, evaluate):
        """A micro-batch, and evaluate's answer: (anything, [(choices of the truth, choices of noisy runs), ...])."""
        for _ in range(TRIES):
            batch = self.draw(rows)
            answer, choices = evaluate(batch)
            if not any(close_choices(*some) for some in choices):
                return batch, answer
        raise SystemExit(f"error: [routing] in {TRIES} draws some token's experts were within rounding of a tie; "
                         f"take another --seed or fewer --steps")  # fmt: skip


def loss_of(model, tokens, labels, mask, torch):
    logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


class Runs:
    """The model in float64: once as it is, and `samples` times with rounding errors, from weights that move() displaced."""

    def __init__(self, model, samples, torch):
        self.torch = torch
        self.generator = torch.Generator().manual_seed(0)
        self.models = [copy.deepcopy(model).double() for _ in range(samples + 1)]
        self.modes = [Rounding()] + [Rounding(seed) for seed in range(samples)]
        for noisy in self.models[1:]:
            for name, buffer in noisy.named_buffers():
                if name.endswith("inv_freq"):  # a power: libraries differ in the last digit
                    buffer.mul_(1 + NOISE * UNIT * self.signs(buffer))
        self.parameters = dict(self.models[0].named_parameters())

    def signs(self, like):
        return self.torch.randint(0, 2, like.shape, generator=self.generator) * 2.0 - 1

    def move(self, reach):
        with self.torch.no_grad():
            for noisy in self.models[1:]:
                for name, parameter in noisy.named_parameters():
                    parameter.copy_(self.parameters[name] + reach[name] * self.signs(parameter))

    def each(self, compute):
        """compute(model) of the truth and of all noisy runs, and their choices."""
        results = []
        for model, mode in zip(self.models, self.modes):
            mode.choices = []
            with mode:
                results.append(compute(model))
        return results, (self.modes[0].choices, [mode.choices for mode in self.modes[1:]])

    def gradients(self, batch, parts=1, before=None):
        """[(loss, {name: gradient of loss / parts, added to that of `before`})] and choices."""
        torch = self.torch
        sums = iter([some[1] for some in before] if before else [{}] * len(self.models))

        def compute(model):
            loss = loss_of(model, *batch, torch)
            names, parameters = zip(*model.named_parameters())
            new, old = torch.autograd.grad(loss / parts, parameters, allow_unused=True), next(sums)
            total = {n: g if old.get(n) is None else old[n] if g is None else old[n] + g for n, g in zip(names, new)}
            return loss.detach(), total

        return self.each(compute)


class Trace:
    """AdamW steps of the truth, each with the limits of what it shows."""

    def __init__(self, model, samples, clip, torch):
        self.torch, self.clip = torch, clip
        self.runs = Runs(model, samples, torch)
        self.adam = Companions(self.runs.parameters, OPTIMIZER)
        self.shown = {"gradient_clipping": clip, "loss": [], "grad_norm": [], "loss_limit": [], "grad_norm_limit": []}
        self.results, self.losses = None, []

    def evaluate(self, batch):
        return self.runs.gradients(batch, ACCUMULATION, self.results)

    def keep(self, results):
        self.results = results
        self.losses.append([loss for loss, _ in results])

    def clipped(self, gradients):
        norm = self.torch.stack([g.norm() for g in gradients.values() if g is not None]).norm()
        scale = min(1.0, self.clip / (norm.item() + 1e-6)) if self.clip > 0 else 1.0
        return norm, {n: None if g is None else g * scale for n, g in gradients.items()}

    def show(self, name, values, limit):
        """A limit covers earlier ones: they are of the same size, and their draws few."""
        self.shown[name].append(values)
        self.shown[name + "_limit"].append(max([limit.item(), *self.shown[name + "_limit"][-1:]]))

    def step(self):
        torch = self.torch
        runs = [self.clipped(gradients) for _, gradients in self.results]
        spread = Spread()
        for noisy in list(zip(*self.losses))[1:]:
            spread.add(torch.stack(noisy), torch.stack([losses[0] for losses in self.losses]))
        self.show("loss", [losses[0].item() for losses in self.losses], spread.limit().max())
        self.show("grad_norm", runs[0][0].item(), limit_of([norm.reshape(1) for norm, _ in runs]))
        truth = runs[0][1]
        self.adam.step(truth, {n: None if g is None else limit_of([r[n] for _, r in runs]) for n, g in truth.items()})
        self.runs.move(self.adam.reach())
        self.results, self.losses = None, []


def limit_of(values):
    """Returns the limit of the error, from the true value and noisy values of it."""
    spread = Spread()
    for value in values[1:]:
        spread.add(value, values[0])
    return spread.limit() + UNIT * values[0].abs()  # as float32 in a file


def references(model, arguments, torch):
    """Returns the content of the files: {"logits": {...}, "grads": {...}, "batches": [...], "traces": {...}, "final": {...}}."""
    start, vocabulary = Runs(model, arguments.samples, torch), model.config.vocab_size
    out = {"batches": [], "traces": {}, "final": {}}
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[1, -9:] = 0

    def logits(batch):
        inputs = {"input_ids": batch[0], "attention_mask": mask, "use_cache": False}
        with torch.no_grad():
            values, choices = start.each(lambda ready: ready(**inputs).logits)
        return values, [choices]

    def gradients(batch):
        results, choices = start.gradients(batch)
        return results, [choices]

    (tokens, _, _), values = Data(vocabulary, arguments.seed + 1, torch).where_routes_are_clear(2, logits)
    out["logits"] = {"input_ids": tokens, "attention_mask": mask, "logits": values[0], "limit.logits": limit_of(values)}
    batch, results = Data(vocabulary, arguments.seed + 2, torch).where_routes_are_clear(ROWS, gradients)
    names = [n for n, g in results[0][1].items() if g is not None]
    out["grads"] = {**dict(zip(BATCH, batch)), "loss": results[0][0].reshape(1),
                    "limit.loss": limit_of([loss.reshape(1) for loss, _ in results])}  # fmt: skip
    out["grad"] = {n: results[0][1][n] for n in names}
    out["limit.grad"] = {n: limit_of([some[n] for _, some in results]) for n in names}

    traces = {name: Trace(model, arguments.samples, clip, torch) for name, clip in CLIP.items()}
    data = Data(vocabulary, arguments.seed + 3, torch)
    for step in range(arguments.steps):
        apart = list(traces.values()) if step > 0 else [traces["clip"]]  # the first step's gradients are the same

        def evaluate(batch):
            return zip(*(trace.evaluate(batch) for trace in apart))

        for _ in range(ACCUMULATION):
            batch, answers = data.where_routes_are_clear(ROWS, evaluate)
            out["batches"].append(batch)
            for number, trace in enumerate(traces.values()):
                trace.keep(answers[number % len(apart)])
        for trace in traces.values():
            trace.step()
    for name, trace in traces.items():
        out["traces"][name] = trace.shown
        weights = {n: p.detach() for n, p in trace.adam.truth.items()}
        out["final"][name] = (weights, {n: limit + UNIT * weights[n].abs() for n, limit in trace.adam.limits.items()})
    # The first step's losses are of the same weights and shape, and more draws than one batch's.
    first = max(trace.shown["loss_limit"][0] for trace in traces.values())
    out["grads"]["limit.loss"].clamp_(min=first)
    return out


def as_in_checkpoint(model, values, torch):
    """Values under the model's own names as tensors under the checkpoint's (some families store experts apart)."""
    from safetensors.torch import load_file

    carrier = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in carrier.named_parameters():
            parameter.copy_(torch.zeros_like(parameter) if values[name] is None else values[name])
    with tempfile.TemporaryDirectory() as folder:
        carrier.save_pretrained(folder)
        tensors = {}
        for file in sorted(Path(folder).glob("*.safetensors")):
            tensors.update(load_file(file))
    return tensors


def write_checkpoint(model, config_json, shards, folder):
    size = sum(p.numel() * 4 for p in model.parameters())
    model.save_pretrained(folder, max_shard_size=f"{size // shards // 1000 + 2}KB")
    (folder / "config.json").rename(folder / "config.transformers5.json")
    (folder / "config.json").write_text(json.dumps(config_json, indent=2) + "\n")


def beside(values, limits, prefix, limit_prefix):
    return {**{prefix + n: t for n, t in values.items()}, **{limit_prefix + n: t for n, t in limits.items()}}


def write_outputs(model, out, folder, torch):
    """Floating values as F32, with `limit.NAME` beside each; limits of losses and norms stand in losses.json."""
    from safetensors.torch import save_file

    def save(tensors, name):
        single = {n: (t.float() if t.is_floating_point() else t).contiguous() for n, t in tensors.items()}
        save_file(single, folder / name)

    def of_checkpoint(values):
        return as_in_checkpoint(model, values, torch)

    save(out["logits"], "logits.safetensors")
    gradients = beside(of_checkpoint(out["grad"]), of_checkpoint(out["limit.grad"]), "grad.", "limit.grad.")
    save({**out["grads"], **gradients}, "grads.safetensors")
    shape = (-1, ACCUMULATION, ROWS, LENGTH)
    batches = (torch.stack(some).reshape(shape) for some in zip(*out["batches"]))
    save(dict(zip(("tokens", "labels", "attention_mask"), batches)), "batches.safetensors")
    lists = {"gradient_accumulation": ACCUMULATION, "deepspeed": DEEPSPEED, "traces": out["traces"]}
    (folder / "losses.json").write_text(json.dumps(lists, indent=1) + "\n")
    for trace, (weights, limits) in out["final"].items():
        save(beside(of_checkpoint(weights), of_checkpoint(limits), "", "limit."), f"final_{trace}.safetensors")


def trained(model, batches, clip, torch):
    """As Trace, but as it stands in any program: float32, torch's own rounding."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False, **OPTIMIZER)
    for micro, batch in enumerate(batches):
        (loss_of(model, *batch, torch) / ACCUMULATION).backward()
        if micro % ACCUMULATION == ACCUMULATION - 1:
            if clip > 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip, foreach=False)
            optimizer.step()
            optimizer.zero_grad()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def float32_shares(model, out, torch):
    """How much of the limits Transformers itself takes in float32: {what: greatest share}."""

    def share(value, truth, limit):
        away = (value.detach().double() - truth).abs()
        return torch.where(away == 0, 0, away / limit).max().item()

    def worst(values, truths, limits):
        return max(share(values[n], truths[n], limits[n]) for n in truths)

    with torch.no_grad():
        part = out["logits"]
        logits = model(input_ids=part["input_ids"], attention_mask=part["attention_mask"], use_cache=False).logits
    seen = part["attention_mask"] == 1
    shares = {"logits": share(logits[seen], part["logits"][seen], part["limit.logits"][seen])}
    ready = copy.deepcopy(model)
    loss = loss_of(ready, *(out["grads"][name] for name in BATCH), torch)
    loss.backward()
    shares["loss"] = share(loss, out["grads"]["loss"], out["grads"]["limit.loss"])
    shares["grads"] = worst({n: p.grad for n, p in ready.named_parameters()}, out["grad"], out["limit.grad"])
    for trace, clip in CLIP.items():
        weights = trained(copy.deepcopy(model), out["batches"], clip, torch)
        shares[f"final weights {trace}"] = worst(weights, *out["final"][trace])
    return shares


def parsed(command_line):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--family", choices=sorted(FAMILIES))
    which.add_argument("--checkpoint", type=Path, help="folder in Hugging Face format")
    parser.add_argument("--out", type=Path, required=True, help="folder to make; must not exist")
    parser.add_argument("--tied", action="store_true", help="the output matrix is the embedding")
    parser.add_argument("--shards", type=int, default=1, help="files of weights, about")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="in config.json")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=int, default=8, help="noisy runs; fewer tell a single value's deviation less well")
    parser.add_argument("--steps", type=int, default=5, help="of each training trace; limits grow with them")
    return parser.parse_args(command_line)


def main(command_line=None):
    arguments = parsed(command_line)
    if arguments.out.exists():
        print(f"error: [--out] {arguments.out} is there already; name a new folder", file=sys.stderr)
        return 2
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    implementations = {"attn_implementation": "eager", "experts_implementation": "eager"}
    if arguments.family:
        config_json, config = published_config(arguments, transformers)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **implementations)
        draw_weights(model, arguments.seed, torch)
    else:
        config_json = json.loads((arguments.checkpoint / "config.json").read_text())
        config_json.pop("quantization_config", None)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            arguments.checkpoint, dtype=torch.float32, **implementations)  # fmt: skip
    model.eval()  # nothing is dropped then
    out = references(model, arguments, torch)
    shares = float32_shares(model, out, torch)
    told = ", ".join(f"{name} {share:.2g}" for name, share in shares.items())
    if not all(share <= 1 for share in shares.values()):
        print(f"error: [limits] Transformers in float32 takes more than all of its limits ({told}); take fewer --steps",
              file=sys.stderr)  # fmt: skip
        return 1
    partial = arguments.out.with_name(arguments.out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "checkpoint").mkdir(parents=True)
    write_checkpoint(model, config_json, arguments.shards, partial / "checkpoint")
    write_outputs(model, out, partial, torch)
    partial.rename(arguments.out)
    print(f"{arguments.out}: {sum(p.numel() for p in model.parameters())} parameters, float32's share of the limits: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
