#!/usr/bin/env python3
"""DeepSpeed's own checkpoints, there and back: real DeepSpeed processes train, save, and go on; Tandem must go on the same.

    tests/drills/deepspeed_checkpoints.py --deepspeed PYTHON [--worlds 1,2,3]
    tests/drills/deepspeed_checkpoints.py --deepspeed PYTHON --record FOLDER

PYTHON is an interpreter with deepspeed, torch and transformers (exit code 77 without one). A tiny Qwen3 is trained by 1, 2 and 3 ranks on the CPU:
stages 0 to 3, fp32 and bf16; tied, frozen, and two parameter groups. Then
- test_models reads each folder (every master and moment, bit for bit) and makes DeepSpeed's next three steps;
- each folder goes through `tandem convert --to tandem`, then `--to universal`, and DeepSpeed loads that on one rank more
  or fewer: its next losses must be those of the run that was not interrupted.
The last line is the summary, one JSON object; exit code 1 where something differs.
With --record, the cases of RECORDED, of a smaller model, and a run with Muon stay in FOLDER (tests/data/deepspeed).
"""

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

from drill import default_bin, scratch

SAVED, AFTER, ACCUMULATION, ROWS, TOKENS = 4, 3, 2, 6, 16
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 53, "hidden_size": 16,
          "intermediate_size": 28, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1,
          "head_dim": 6, "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
          "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": False, "attention_dropout": 0.0,
          "use_sliding_window": False, "torch_dtype": "float32"}
SMALL = {"vocab_size": 13, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4}
RECORDED = {2: ["stage1_fp32_w2", "stage2_bf16_w2", "tied_stage3_fp32_w2"]}
MUON = {"type": "Muon", "params": {"lr": 0.01, "adam_lr": 0.002, "momentum": 0.9, "weight_decay": 0.05, "betas": [0.9, 0.99], "eps": 1e-8,
                                   "ns_method": "gram"}}
SHAPES = {"plain": ("fp32", "bf16"), "tied": ("fp32",), "frozen": ("fp32",), "groups": ("fp32",)}


def cases(world):
    for stage in range(4):
        for shape, types in SHAPES.items():
            for dtype in types:
                # Stage 0 has no list of shapes, so that what is frozen or grouped cannot be told from its files.
                if stage > 0 or shape in ("plain", "tied"):
                    name = f"stage{stage}_{dtype}_w{world}"
                    yield (name if shape == "plain" else f"{shape}_{name}"), shape, stage, dtype


def config_of(stage, dtype, world):
    return {"train_micro_batch_size_per_gpu": ROWS // world, "gradient_accumulation_steps": ACCUMULATION,
            "gradient_clipping": 0.5, "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
            "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "betas": [0.9, 0.99], "eps": 1e-8,
                                                      "weight_decay": 0.05, "torch_adam": True}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-4, "warmup_max_lr": 2e-3,
                                                         "warmup_num_steps": 10}},
            **({"bf16": {"enabled": True}} if dtype == "bf16" else {})}


class Trainer:
    """One rank of one case."""

    def __init__(self, folder, shape, stage, dtype, world, universal=False, optimizer=None):
        import deepspeed
        from transformers import AutoModelForCausalLM
        self.world, self.rank, self.shape = world, int(os.environ["RANK"]), shape
        origin = folder / ("checkpoint_tied" if shape == "tied" else "checkpoint")
        model = AutoModelForCausalLM.from_pretrained(origin, attn_implementation="eager")
        if shape == "frozen":
            for name, parameter in model.named_parameters():
                parameter.requires_grad_("embed_tokens" not in name and "layers.0.mlp" not in name)
        groups = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if shape == "groups":
            groups = [{"params": [p for p in groups if p.dim() > 1]},
                      {"params": [p for p in groups if p.dim() == 1], "weight_decay": 0.0}]
        self.config = config_of(stage, dtype, world)
        if optimizer:
            self.config = {name: value for name, value in self.config.items() if name != "scheduler"} | {"optimizer": optimizer}
        if universal:
            self.config["checkpoint"] = {"load_universal": True}
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=dict(self.config))

    def step(self, tokens, labels):
        """(mean loss over ranks and micro-batches, learning rate, gradient norm)"""
        import torch
        import torch.distributed as dist
        rows = ROWS // self.world
        own = slice(self.rank * rows, (self.rank + 1) * rows)
        losses, rate = [], self.engine.get_lr()
        for part in range(ACCUMULATION):
            loss = self.engine(input_ids=tokens[part][own], labels=labels[part][own]).loss
            self.engine.backward(loss)
            self.engine.step()
            losses.append(loss.detach().double())
        total = torch.stack(losses).mean()
        dist.all_reduce(total)
        return {"loss": total.item() / self.world, "lr": rate,
                "grad_norm": float(self.engine.get_global_grad_norm() or 0)}

    def state(self, kinds):
        """By kind and name, of what is trained; on every rank."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
        found = {}
        stage = self.config["zero_optimization"]["stage"]
        for name, parameter in self.engine.module.named_parameters():
            if not parameter.requires_grad:
                continue
            for kind in kinds:
                if kind != "fp32" and self.hides_moments(stage, parameter):
                    continue
                if stage == 0:
                    master, state = self.stage_0(parameter)
                    value = master if kind == "fp32" else state[kind]
                else:
                    value = safe_get_full_fp32_param(parameter) if kind == "fp32" else \
                        safe_get_full_optimizer_state(parameter, kind)
                found[f"{kind}.{name}"] = value.detach().float().reshape(self.shape_of(parameter)).clone().contiguous()
        return found

    def hides_moments(self, stage, parameter):
        """DeepSpeed's call raises for the second of two groups at stages 1 and 2; its files are right."""
        return self.shape == "groups" and stage in (1, 2) and parameter.dim() == 1

    def stage_0(self, parameter):
        """(master, torch's state of it), which DeepSpeed's own calls do not show"""
        optimizer = self.engine.optimizer
        if not hasattr(optimizer, "fp32_groups"):
            return parameter, optimizer.state[parameter]
        for low, full in zip(optimizer.fp16_groups, optimizer.fp32_groups):
            for one, master in zip(low, full):
                if one is parameter:
                    return master, optimizer.optimizer.state[master]
        raise KeyError(parameter.shape)

    @staticmethod
    def shape_of(parameter):
        return getattr(parameter, "ds_shape", parameter.shape)


def batches_of(folder):
    from safetensors.torch import load_file
    both = load_file(folder / "batches.safetensors")
    return list(zip(both["tokens"], both["labels"]))


def make(folder, world, names):
    """A rank: every case of this world, or those that are named."""
    from safetensors.torch import save_file
    batches = batches_of(folder)
    for name, shape, stage, dtype in cases(world):
        if names and name not in names:
            continue
        out = folder / name
        trainer = Trainer(folder, shape, stage, dtype, world)
        before = [trainer.step(*batch) for batch in batches[:SAVED]]
        trainer.engine.save_checkpoint(str(out), client_state={"note": "oracle", "epoch": 2})
        held = trainer.state(("fp32", "exp_avg", "exp_avg_sq"))
        record = {"case": name, "dtype": dtype, "config": trainer.config, "world_size": world, "before": before,
                  "scheduler_at_save": {"last_batch_iteration": trainer.engine.lr_scheduler.last_batch_iteration},
                  "global_steps": trainer.engine.global_steps, "global_samples": trainer.engine.global_samples,
                  "skipped_steps": trainer.engine.skipped_steps, "loss_scale": 1.0, "shape": shape,
                  "tied": {"lm_head.weight": "model.embed_tokens.weight"} if shape == "tied" else {}}
        record["next"] = [trainer.step(*batch) for batch in batches[SAVED:]]
        after = trainer.state(("fp32",))
        if trainer.rank == 0:
            save_file(held, out / "state_at_save.safetensors")
            save_file(after, out / "weights_after_next.safetensors")
            (out / "record.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
            print(f"made {name}", flush=True)
        trainer.engine.destroy()


def run_of_muon(folder):
    """A rank that is alone: DeepSpeed's Muon over all batches, and the weights behind them."""
    from safetensors.torch import save_file
    out = folder / "runs" / "muon_stage2_w1"
    trainer = Trainer(folder, "plain", 2, "fp32", 1, optimizer=MUON)
    steps = [trainer.step(*batch) for batch in batches_of(folder)]
    out.mkdir(parents=True)
    save_file(trainer.state(("fp32",)), out / f"weights_after_step_{len(steps)}.safetensors")
    record = {"config": trainer.config, "checkpoint": "../../checkpoint", "batches": "../../batches.safetensors", "steps": steps}
    (out / "record.json").write_text(json.dumps(record, indent=1), encoding="utf-8")


def go_on(folder, world, names):
    """A rank: loads what Tandem made of each case, and prints how far its next losses are from DeepSpeed's own."""
    batches = batches_of(folder)
    for name in names:
        record = json.loads((folder / name / "record.json").read_text(encoding="utf-8"))
        # DeepSpeed's stage 0 reads no universal checkpoint.
        stage = max(1, record["config"]["zero_optimization"]["stage"])
        trainer = Trainer(folder, record["shape"], stage, record["dtype"], world, universal=True)
        path, client_state = trainer.engine.load_checkpoint(str(folder / "universal" / name))
        assert path is not None, f"{name}: DeepSpeed found nothing to load"
        losses = [trainer.step(*batch)["loss"] for batch in batches[SAVED:]]
        off = max(abs(one - two["loss"]) for one, two in zip(losses, record["next"]))
        if trainer.rank == 0:
            print(f"off {name} {off:.3g} {client_state.get('note')}", flush=True)
        trainer.engine.destroy()


def run_rank(arguments):
    import deepspeed
    import torch
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", verbose=False)
    if arguments.role == "make":
        make(arguments.folder, arguments.world, arguments.names)
    elif arguments.role == "muon":
        run_of_muon(arguments.folder)
    else:
        go_on(arguments.folder, arguments.world, arguments.names)


def launch(python, role, folder, world, names=()):
    """Runs the ranks of one world and returns their output."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(world):
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), DS_ACCELERATOR="cpu",
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", LOCAL_SIZE=str(world))
        ranks.append(subprocess.Popen([python, __file__, "--role", role, "--folder", folder, "--world", str(world), "--names",
                                       *names], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    texts = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(f"DeepSpeed's ranks ended with {[rank.returncode for rank in ranks]}:\n{texts[0][-3000:]}")
    return texts[0]


def prepare(folder, sizes, length):
    """First weights and data, in a process of the same interpreter."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, Qwen3Config
    for name, tied in (("checkpoint", False), ("checkpoint_tied", True)):
        torch.manual_seed(5)
        made = {**CONFIG, **sizes, "tie_word_embeddings": tied}
        model = AutoModelForCausalLM.from_config(Qwen3Config(**made))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        model.save_pretrained(folder / name)
        (folder / name / "config.json").write_text(json.dumps(made), encoding="utf-8")
    tokens = torch.randint(3, {**CONFIG, **sizes}["vocab_size"], (SAVED + AFTER, ACCUMULATION, ROWS, length))
    labels = tokens.clone()
    labels[..., :3] = -100  # each row has as many labels, so that the number of ranks does not matter
    save_file({"tokens": tokens, "labels": labels}, folder / "batches.safetensors")


def repacked(source, target, change):
    """A copy of torch's archive, each of its files as change(name, bytes) has it."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            name, data = change(info.filename, old.read(info))
            new.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)


def files_of_torch(folder):
    """pytorch_model.bin in one file and in two, and files that were made to do harm."""
    import torch
    from safetensors.torch import load_file
    weights = load_file(folder / "checkpoint" / "model.safetensors")
    names = sorted(weights)
    halves = {f"pytorch_model-{part + 1:05}-of-00002.bin": names[part::2] for part in range(2)}
    for kind, files in {"single": {"pytorch_model.bin": names}, "sharded": halves}.items():
        out = folder / "pytorch_bin" / kind
        out.mkdir(parents=True)
        shutil.copy(folder / "checkpoint" / "config.json", out)
        for file, some in files.items():
            torch.save({name: weights[name] for name in some}, out / file)
    index = {"metadata": {}, "weight_map": {name: file for file, some in halves.items() for name in some}}
    (folder / "pytorch_bin" / "sharded" / "pytorch_model.bin.index.json").write_text(json.dumps(index), encoding="utf-8")

    hostile, good = folder / "hostile", folder / "good.bin"
    hostile.mkdir()
    torch.save({"a": torch.arange(201.0)}, good)
    system = b"\x80\x02cos\nsystem\nX\x1a\x00\x00\x00touch /tmp/PWNED_by_pickle\x85R."
    repacked(good, hostile / "os_system.bin", lambda name, data: (name, system if name.endswith("data.pkl") else data))
    repacked(good, hostile / "huge_size.bin", lambda name, data: (name, data.replace(b"K\xc9", b"J\xff\xff\xff\x7f")))
    repacked(good, hostile / "storage_short.bin", lambda name, data: (name, data[:40] if name.endswith("data/0") else data))
    repacked(good, hostile / "zip_traversal.bin", lambda name, data: ("../" * 8 + "tmp/PWNED_by_name" if name.endswith("data/0") else name, data))
    (hostile / "truncated.bin").write_bytes(good.read_bytes()[:700])
    good.unlink()


def record(python, folder):
    """The folders that tests read where no DeepSpeed is."""
    folder.mkdir(parents=True)
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # Muon would be compiled, for minutes
    subprocess.run([python, __file__, "--role", "prepare", "--small", "--folder", folder], check=True)
    subprocess.run([python, __file__, "--role", "torch", "--folder", folder], check=True)
    for world, names in RECORDED.items():
        print(launch(python, "make", folder, world, names), flush=True)
    launch(python, "muon", folder, 1)
    for program in folder.glob("*/zero_to_*.py"):  # DeepSpeed's own
        program.unlink()


def convert(programs, folder, name):
    for source, target, form in ((folder / name, folder / "tandem" / name, "tandem"),
                                 (folder / "tandem" / name, folder / "universal" / name, "universal")):
        target.parent.mkdir(exist_ok=True)
        subprocess.run([programs / "tandem", "convert", source, target, "--to", form], check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=default_bin(), help="the folder of the programs")
    parser.add_argument("--deepspeed", help="an interpreter that has deepspeed", default=os.environ.get("DEEPSPEED_PYTHON"))
    parser.add_argument("--worlds", default="1,2,3")
    for hidden in ("--role", "--world"):
        parser.add_argument(hidden, help=argparse.SUPPRESS, type=int if hidden == "--world" else str)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="a new folder for the recorded cases")
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "prepare":
        return prepare(arguments.folder, SMALL if arguments.small else {}, TOKENS // 2 if arguments.small else TOKENS)
    if arguments.role == "torch":
        return files_of_torch(arguments.folder)
    if arguments.role:
        return run_rank(arguments)
    python = arguments.deepspeed
    if python is None or subprocess.run([python, "-c", "import deepspeed"], env=dict(os.environ, DS_ACCELERATOR="cpu", PYTHONSAFEPATH="1"),
                                        capture_output=True, check=False).returncode != 0:
        print("[deepspeed] --deepspeed (or DEEPSPEED_PYTHON) names no interpreter that has deepspeed; pip install it into one")
        return 77
    if arguments.record:
        return record(python, arguments.record)
    worlds = [int(world) for world in arguments.worlds.split(",")]
    with scratch() as name:
        folder = Path(name) / "made"
        folder.mkdir()
        subprocess.run([python, __file__, "--role", "prepare", "--folder", folder], check=True)
        for world in worlds:
            print(launch(python, "make", folder, world), flush=True)
        tests = subprocess.run([arguments.bin / "test_models", "--gtest_filter=Golden/GoOn.*:ImportGolden.EveryMaster*"],
                               env=dict(os.environ, TANDEM_DEEPSPEED_CHECKPOINTS=str(folder)), text=True, stdout=subprocess.PIPE, check=False)
        passed = len(re.findall(r"^\[       OK \] Golden/GoOn", tests.stdout, re.MULTILINE))
        if tests.returncode:
            print(tests.stdout, flush=True)
        off, asked = {}, 0
        for world in worlds:
            # DeepSpeed's stage 3 gives all groups of a universal checkpoint one tensor of steps, which torch's Adam
            # then counts up once for each of them.
            names = [name for name, shape, stage, _ in cases(world) if (shape, stage) != ("groups", 3)]
            asked += len(names)
            for case in names:
                convert(arguments.bin, folder, case)
            other = world + 1 if world < max(worlds) else max(1, world - 1)
            said = launch(python, "go_on", folder, other, names)
            off.update({found[0]: float(found[1]) for found in re.findall(r"^off (\S+) (\S+) oracle$", said, re.MULTILINE)})
    made = sum(len(list(cases(world))) for world in worlds)
    limits = {"fp32": 2e-6, "bf16": 1e-3}
    apart = sorted(case for case, value in off.items() if value > limits["bf16" if "bf16" in case else "fp32"])
    good = tests.returncode == 0 and passed == made and len(off) == asked and not apart
    print(json.dumps({"drill": "deepspeed checkpoints", "folders": made, "gone_on": passed, "back_in_deepspeed": len(off),
                      "apart": apart, "worst_fp32": max((v for c, v in off.items() if "fp32" in c), default=None),
                      "passed": good}), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
