"""One run of numbers.py, drawn by its seed: what is trained, how Tandem trains it, and what torch makes of it in float64."""

import copy
import dataclasses
import hashlib
import json
import math
import random
import shutil
import subprocess
import sys

import torch
import torch.nn.functional as F
import transformers
from drill import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from rounding import FACTOR, UNIT, Rounding, close_choices  # noqa: E402

DEMO = ROOT / "examples" / "demo"  # whose tokenizer all models have
SHUFFLE = 42
VOCABULARY = 768  # of that tokenizer
ROUTER_LOSS = 0.05
NOT_DECAYED = ("bias", "norm", "ln_")  # of the families here, the Trainer's rule
LIMITED = ("loss", "norm", "weights")
torch.set_num_threads(1)  # the tensors are small: a second thread takes four times as long


@dataclasses.dataclass
class Drawn:
    """All that a run is made of."""

    seed: int
    family: str
    config: dict
    records: list
    micro: int
    accumulation: int  # of a rank
    ranks: int
    stage: int
    steps: int
    clip: float
    mean: str
    decays_norms: bool
    optimizer: dict  # DeepSpeed's block
    warmup: int  # steps; 0: the rate is constant
    resumes: bool

    @property
    def of_step(self):
        return self.accumulation * self.ranks

    def text(self):
        kind = self.optimizer["type"]
        return (f"{self.family}, {len(self.records)} records, {self.micro} x {self.accumulation} x {self.ranks} ranks, stage "
                f"{self.stage}, {kind}, clip {self.clip}, {self.mean}{'' if self.decays_norms else ', norms not decayed'}"
                f"{f', warm-up {self.warmup}' if self.warmup else ''}{', resumed' if self.resumes else ''}")


@dataclasses.dataclass
class Result:
    seed: int
    holds: bool
    share: float  # of the bound, the largest
    resumed: bool
    without_labels: bool
    text: str


def draw_config(draw, family):
    heads = draw.choice([2, 4])
    size = {"vocab_size": VOCABULARY, "hidden_size": 8 * heads * draw.choice([1, 2]), "num_hidden_layers": draw.choice([1, 2, 3]),
            "num_attention_heads": heads, "num_key_value_heads": draw.choice([1, heads]), "max_position_embeddings": 128,
            "intermediate_size": draw.choice([24, 40, 64]), "initializer_range": 0.1, "pad_token_id": None, "bos_token_id": None,
            "eos_token_id": 3, "tie_word_embeddings": draw.random() < 0.4}
    if family == "gpt2":
        return {"vocab_size": VOCABULARY, "n_embd": size["hidden_size"], "n_layer": size["num_hidden_layers"], "n_head": heads,
                "n_positions": 128, "initializer_range": 0.1, "bos_token_id": None, "eos_token_id": 3, "resid_pdrop": 0.0,
                "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    if family in ("qwen3", "gemma3_text", "qwen3_moe"):
        size["head_dim"] = 8
    if family == "gemma3_text":
        size |= {"query_pre_attn_scalar": 12, "sliding_window": 8}
    if family in ("mixtral", "qwen3_moe"):
        size |= {"num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": ROUTER_LOSS}
        size |= {"num_local_experts": 4} if family == "mixtral" else {"num_experts": 4, "moe_intermediate_size": 24}
    return size


def draw_records(draw):
    """Rows of uneven lengths; prompts and, of some, ends that have no labels; of some runs one record without any."""
    ends = draw.random() < 0.5
    count = draw.randint(20, 30)
    empty = draw.randrange(count) if draw.random() < 0.4 else None
    records = []
    for number in range(count):
        length = draw.randint(4, 48)
        ids = [draw.randint(5, VOCABULARY - 1) for _ in range(length)]
        begin = draw.randint(0, length - 2)
        end = length - draw.randint(0, (length - begin - 2) // 2) if ends else length
        labels = [i if begin <= at < end and number != empty else -100 for at, i in enumerate(ids)]
        records.append({"input_ids": ids, "labels": labels})
    return records


def draw_optimizer(draw):
    decay = draw.choice([0, 0.1, 0.5])
    # eps keeps gradients that are but noise from moving their weights by the whole rate.
    kinds = [("AdamW", {"lr": 1e-3, "betas": [0.9, draw.choice([0.95, 0.999])], "eps": 1e-6}),
             ("Adam", {"lr": 1e-3, "eps": 1e-6, "adam_w_mode": False}),
             ("SGD", {"lr": 0.1, "momentum": draw.choice([0, 0.9]), "nesterov": False}),
             ("Adagrad", {"lr": 1e-2, "eps": 1e-6})]
    kind, parameters = draw.choice(kinds)
    return {"type": kind, "params": {**parameters, "weight_decay": decay}}


def drawn(seed):
    draw = random.Random(seed)
    family = draw.choice(["llama", "qwen2", "qwen3", "mistral", "gpt2", "gemma3_text", "mixtral", "mixtral", "qwen3_moe"])
    ranks = draw.choice([1, 1, 2])
    return Drawn(seed=seed, family=family, config=draw_config(draw, family), records=draw_records(draw), micro=draw.randint(1, 3),
                 accumulation=draw.randint(1, 3), ranks=ranks, stage=draw.choice([0, 1, 2, 3]), steps=draw.randint(3, 5),
                 clip=draw.choice([0, 0.3, 1.0]), mean=draw.choice(["micro_batches", "tokens"]),
                 decays_norms=draw.random() < 0.6, optimizer=draw_optimizer(draw), warmup=draw.choice([0, 0, 1, 2, 3]),
                 resumes=draw.random() < 0.4)


def make_model(run, folder):
    torch.manual_seed(run.seed)
    config = transformers.AutoConfig.for_model(run.family, **run.config)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases, too, are no round numbers
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    for path in DEMO.glob("*token*.json"):
        shutil.copy(path, folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                             experts_implementation="eager")


# ---- torch


def micro_batches(run, step):
    """The records of each micro-batch of a step, as the loader deals them."""
    blocks = -(-len(run.records) // run.micro)
    epoch, inner = divmod(step, -(-blocks // run.of_step))
    order = torch.randperm(len(run.records), generator=torch.Generator().manual_seed(SHUFFLE + epoch)).tolist()
    for number in range(run.of_step):
        begin = (inner * run.of_step + number) % blocks * run.micro
        yield [run.records[at] for at in order[begin : begin + run.micro]]


def padded(records):
    longest = max(len(record["input_ids"]) for record in records)
    rows = [(r["input_ids"], r["labels"], longest - len(r["labels"])) for r in records]
    return {"input_ids": torch.tensor([ids + [0] * more for ids, _, more in rows]),
            "labels": torch.tensor([labels + [-100] * more for _, labels, more in rows]),
            "attention_mask": torch.tensor([[1] * len(ids) + [0] * more for ids, _, more in rows])}


def labels_of(records):
    return sum(label != -100 for record in records for label in record["labels"][1:])


def loss_of(model, records):
    """What Tandem says a micro-batch's loss is: without a label 0, and the routers' own in any case."""
    batch = padded(records)
    out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False)
    labels = batch["labels"][:, 1:].flatten()
    loss = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels, ignore_index=-100, reduction="sum")
    loss = loss / max(1, labels_of(records))
    aux = getattr(out, "aux_loss", None)
    return loss if aux is None else loss + ROUTER_LOSS * aux


def make_optimizer(run, model):
    values = dict(run.optimizer["params"])
    decay = values.pop("weight_decay")
    kind = {"AdamW": torch.optim.AdamW, "Adam": torch.optim.Adam, "SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad}
    values.pop("adam_w_mode", None)
    groups = [{"params": [], "weight_decay": decay}, {"params": [], "weight_decay": decay if run.decays_norms else 0.0}]
    for name, parameter in model.named_parameters():
        groups[any(word in name for word in NOT_DECAYED)]["params"].append(parameter)
    return kind[run.optimizer["type"]]([g for g in groups if g["params"]], foreach=False, **values)


def rate_of(run, step):
    """DeepSpeed's WarmupLR, linear: the first two steps stand at its beginning, and one step of warm-up is two."""
    top = run.optimizer["params"]["lr"]
    return top * min(1.0, max(0, step - 1) / max(2, run.warmup)) if run.warmup else top


def train(run, model, mode):
    """(losses, norms, weights) in float64, with the mode's errors."""
    model = copy.deepcopy(model).double()
    losses, norms = [], []
    with mode:
        optimizer = make_optimizer(run, model)
        for step in range(run.steps):
            batches = list(micro_batches(run, step))
            labels = [labels_of(records) for records in batches]
            optimizer.zero_grad()
            total = 0.0
            for records, count in zip(batches, labels, strict=True):
                share = 1 / len(batches) if run.mean == "micro_batches" else count / max(1, sum(labels))
                loss = loss_of(model, records) * share
                loss.backward()
                total += loss.item()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            norm = torch.stack([g.norm() for g in gradients]).norm()
            if run.clip and norm.item() > run.clip:
                for gradient in gradients:
                    gradient.mul_(run.clip / (norm + 1e-6))
            for group in optimizer.param_groups:
                group["lr"] = rate_of(run, step)
            optimizer.step()
            losses.append(total)
            norms.append(norm.item())
    return losses, norms, {name: parameter.detach() for name, parameter in model.state_dict().items()}


# ---- Tandem


def write_data(run, folder):
    source, tokens = folder / "records.jsonl", folder / "records.tokens"
    source.write_text("".join(json.dumps(record) + "\n" for record in run.records))
    done = subprocess.run([ROOT / "tandem", "prepare", "--model_name", folder / "model", "--dataset_name", source, "--output", tokens],
                          text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"[numbers] seed {run.seed}: {done.stdout}{done.stderr}")
    return tokens


def tandem(run, programs, folder, name, ranks, stage, more=()):
    """The folder of one run of the trainer."""
    config = {"train_micro_batch_size_per_gpu": run.micro, "gradient_accumulation_steps": run.of_step // ranks,
              "optimizer": run.optimizer, "gradient_clipping": run.clip, "decay_norms": run.decays_norms,
              "zero_optimization": {"stage": stage}}
    if run.warmup:
        config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_num_steps": run.warmup, "warmup_type": "linear"}}
    (folder / f"{name}.json").write_text(json.dumps(config))
    command = [programs / "finetune_zero3", "--model_name", folder / "model", "--dataset_name", folder / "records.tokens",
               "--deepspeed_config", folder / f"{name}.json", "--dtype", "fp32", "--loss_mean", run.mean, "--output_dir",
               folder / name, "--steps", str(run.steps), "--no-tensorboard", "--seed", str(SHUFFLE), *more]
    if not run.warmup:
        command += ["--lr_scheduler", "constant", "--warmup", "0"]
    if ranks > 1:
        command = [programs / "tandem", "launch", "-n", str(ranks), "--", *command]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"[numbers] seed {run.seed}, {run.text()}: exit {done.returncode}: {done.stdout[-600:]}{done.stderr[-600:]}")
    return folder / name


def figures_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "loss" in line]
    # Through Transformers, since published names of experts are not those of its modules.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    return [s["loss"] for s in steps], [s["grad_norm"] for s in steps], model.state_dict()


def resumes_alike(run, programs, folder):
    """Whether a run that is resumed elsewhere ends with the bits of the one in folder/whole."""
    at = max(1, run.steps // 2)
    tandem(run, programs, folder, "begun", run.ranks, run.stage, ["--save_every", str(at), "--keep", str(run.steps)])
    ranks = 2 if run.ranks == 1 and run.of_step % 2 == 0 else 1
    tandem(run, programs, folder, "resumed", ranks, (run.stage + 1) % 4,
           ["--resume", str(folder / f"begun/checkpoints/step-{at:08d}")])
    sums = {hashlib.sha256((folder / name / "model/model.safetensors").read_bytes()).digest() for name in ("whole", "resumed")}
    return len(sums) == 1 and figures_of(folder / "whole")[0][at:] == figures_of(folder / "resumed")[0]


# ---- both


def distances(ours, theirs, start):
    """(of losses, of norms, relative; of weights, over how far they moved)"""
    relative = [max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(x, y, strict=True) if b != 0 or a != 0)
                if any(y) else 0.0 for x, y in zip(ours[:2], theirs[:2], strict=True)]
    apart = moved = size = 0.0
    for name, value in ours[2].items():
        truth = theirs[2][name].double()
        apart += (value.double() - truth).square().sum().item()
        moved += (truth - start[name].double()).square().sum().item()
        size += truth.square().sum().item()
    moved = math.sqrt(max(moved, 1e-60))
    return *relative, math.sqrt(apart) / moved, 4 * UNIT * math.sqrt(size) / moved


def try_run(programs, folder, seed):
    """The result of the seed's run; None where rounding could decide which experts a token goes to."""
    run = drawn(seed)
    work = folder / f"run-{seed}"
    model = make_model(run, work / "model")
    start = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [Rounding(), Rounding(2 * seed), Rounding(2 * seed + 1)]
    truth, *noisy = [train(run, model, mode) for mode in modes]
    if close_choices(modes[0].choices, [mode.choices for mode in modes[1:]]):
        shutil.rmtree(work)
        return None
    write_data(run, work)
    whole = figures_of(tandem(run, programs, work, "whole", run.ranks, run.stage))
    got = distances(whole, truth, start)
    noise = [max(some) for some in zip(*(distances(n, truth, start) for n in noisy), strict=True)]
    floors = [4 * UNIT, 4 * UNIT, noise[3]]
    shares = [g / (FACTOR * n + floor) for g, n, floor in zip(got[:3], noise[:3], floors, strict=True)]
    alike = not run.resumes or resumes_alike(run, programs, work)
    shutil.rmtree(work)
    holds = max(shares) <= 1 and alike
    said = ", ".join(f"{name} {g:.1e} of {g / max(s, 1e-30):.1e}" for name, g, s in zip(LIMITED, got[:3], shares, strict=True))
    return Result(seed=seed, holds=holds, share=max(shares), resumed=run.resumes,
                  without_labels=any(labels_of([record]) == 0 for record in run.records),
                  text=f"{'as torch' if holds else 'BEYOND'} seed {seed}: {run.text()}: {said}"
                       f"{'' if alike else ', RESUMED OTHERWISE'}")
