#!/usr/bin/env python3
"""Training over hosts: namespaces with a network, a name and an address each, beside one host with as many ranks.

Every run over hosts must have the losses, the gradient norms and the saved weights of one host, to the last byte,
whatever the stage, the overlap and the launcher whose variables started it.

    tests/drills/hosts.py            2 and 4 hosts x 1 and 2 ranks, stages 0-3, overlap off and full, fp32 and bf16,
                                     experts spread over the hosts, rows shared by ranks; some sixteen minutes
    tests/drills/hosts.py --quick    7 runs over hosts

Cells over a wire have one between the hosts that delays each frame by 2 to 3 ms, loses one in a hundred and passes 20 MB/s
on to a host (wire.py).

As root, with `ip` and `unshare`; where namespaces are not allowed it says so and ends with exit code 77. The last line
of the output is the summary, one JSON object; exit code 1 where something differs.
"""

import argparse
import itertools
import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from drill import ROOT, Hosts, default_bin, digits, scratch
from wire import Wire, WiredHosts

STEPS = 3
SLOW_WIRE = Wire(delay_s=(0.002, 0.003), loss=0.01, bytes_per_s=20e6)
LIMIT_S = 180
MODEL = "--hidden 32 --layers 2 --heads 2 --kv_heads 1 --head_dim 16 --intermediate 48"
EXPERTS = ("--moe --num-experts 4 --mlp-type residual --noisy-gate-policy RSample --moe-param-group "
           "--moe-aux-loss-coef 0.01").split()


class Cell(NamedTuple):
    hosts: int
    per_host: int
    stage: int
    overlap: str
    dtype: str
    launcher: str = "torchrun"
    experts: int = 0  # ranks that they are spread over
    device: str = "cpu"
    wire: bool = False  # SLOW_WIRE between the hosts
    sharers: int = 1  # ranks that share each row, of one host or of two

    @property
    def world(self):
        return self.hosts * self.per_host

    def text(self):
        experts = f", experts over {self.experts} ranks" if self.experts else ""
        experts += f", rows shared by {self.sharers}" if self.sharers > 1 else ""
        wire = " over a wire" if self.wire else ""
        return (f"{self.hosts} hosts x {self.per_host}{wire}, {self.device}, stage {self.stage}, overlap {self.overlap}, "
                f"{self.dtype}{experts}, by {self.launcher}'s variables")


QUICK = [Cell(2, 1, 0, "full", "fp32"), Cell(2, 1, 3, "off", "fp32", "Slurm"), Cell(2, 2, 3, "full", "bf16", "Open MPI"),
         Cell(2, 2, 1, "off", "bf16", device="sim"), Cell(2, 2, 2, "full", "fp32", experts=4),
         Cell(2, 1, 3, "full", "fp32", sharers=2), Cell(2, 2, 2, "off", "fp32", sharers=2)]


def all_cells():
    launchers = itertools.cycle(("torchrun", "Slurm", "Open MPI"))
    cells = [Cell(hosts, per_host, stage, overlap, dtype, next(launchers))
             for hosts in (2, 4) for per_host in (1, 2) for dtype in ("fp32", "bf16") for stage in range(4)
             for overlap in ("off", "full")]
    cells += [Cell(2, 2, stage, "full", "bf16", device="sim") for stage in range(4)]
    cells += [Cell(hosts, per_host, stage, "full", "fp32", sharers=2) for hosts, per_host in ((2, 1), (2, 2), (4, 1)) for stage in (0, 3)]
    cells += [Cell(hosts, per_host, stage, "full", dtype, wire=True)
              for hosts, per_host, stage, dtype in ((2, 1, 3, "fp32"), (2, 2, 0, "bf16"), (4, 1, 2, "fp32"), (4, 2, 3, "bf16"))]
    cells += [Cell(2, 2, 2, "full", "fp32", experts=4, wire=True)]
    return cells + [Cell(hosts, per_host, stage, "full", "fp32", experts=experts)
                    for hosts, per_host, experts in ((2, 1, 2), (2, 2, 2), (2, 2, 4), (4, 1, 2), (4, 1, 4))
                    for stage in (0, 2)]


def variables(cell, rank, port):
    """Returns the variables that the launcher sets for rank `rank`."""
    host, local = divmod(rank, cell.per_host)
    address = Hosts.address(0) if cell.hosts > 1 else "127.0.0.1"
    if cell.launcher == "torchrun":
        return {"RANK": rank, "WORLD_SIZE": cell.world, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": cell.per_host,
                "MASTER_ADDR": address, "MASTER_PORT": port}
    if cell.launcher == "Slurm":
        nodes = ",".join(Hosts.address(at) for at in range(cell.hosts))
        return {"SLURM_PROCID": rank, "SLURM_NTASKS": cell.world, "SLURM_LOCALID": local, "SLURM_NODEID": host,
                "SLURM_TASKS_PER_NODE": f"{cell.per_host}(x{cell.hosts})", "SLURM_JOB_NODELIST": nodes,
                "SLURM_JOB_ID": port, "SLURM_STEP_ID": 0}
    return {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": cell.world, "OMPI_COMM_WORLD_LOCAL_RANK": local,
            "OMPI_COMM_WORLD_LOCAL_SIZE": cell.per_host, "MASTER_ADDR": address, "MASTER_PORT": port}


def flags(cell, output, model, steps=STEPS):
    common = ["--steps", steps, "--stage", cell.stage, "--overlap", cell.overlap, "--dtype", cell.dtype,
              "--no-tensorboard", "--output_dir", output, "--compute_threads", 1, "--optimizer_threads", 1]
    if cell.experts:
        return ["cifar10", *EXPERTS, "--ep-world-size", cell.experts, *common]
    data = ROOT / "examples/demo/instructions.json"
    return ["finetune_zero3", "--model_name", model, "--dataset_name", data, "--batch_size", 2, "--lr", 0.003, "--progress", "off",
            "--no-samples", "--device", cell.device, "--sequence_parallel", cell.sharers,
            "--sequence_blocks", 2 * cell.sharers if cell.sharers > 1 else 0, *common]


def start(cell, command, on_host, port=None, more=None):
    """The processes of the ranks; `on_host(host, command)` is what runs there, `more` are variables beside its launcher's."""
    port = port or 20000 + int.from_bytes(os.urandom(2), "big") % 10000
    secret = secrets.token_hex(32)
    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith(("SLURM_", "OMPI_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_"))}
    processes = []
    for rank in range(cell.world):
        own = {name: str(value) for name, value in variables(cell, rank, port).items()}
        where = command if cell.hosts == 1 else on_host(rank // cell.per_host, command)
        processes.append(subprocess.Popen(
            list(map(str, where)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**inherited, **own, "TANDEM_RUN_SECRET": secret, "OMP_NUM_THREADS": "1", **(more or {})}))
    return processes


def finish(processes, limit_s=LIMIT_S):
    """Exit codes and what was said on stderr, by rank; one that does not end is killed, and says so."""
    end = time.monotonic() + limit_s
    said = []
    for process in processes:
        try:
            said.append(process.communicate(timeout=max(1, end - time.monotonic()))[1])
        except subprocess.TimeoutExpired:
            process.kill()
            said.append(process.communicate()[1] + "it was killed after its time")
    return [process.returncode for process in processes], said


def train(programs, hosts, cell, output, model):
    """Trains, and returns the faults as text; empty: there are none."""
    program, *arguments = flags(cell, output, model)
    codes, said = finish(start(cell, [programs / program, *arguments], hosts.command))
    return "; ".join(f"rank {rank} ended with {code}: {said[rank].strip()[-400:]}"
                     for rank, code in enumerate(codes) if code != 0)


def compare(programs, hosts, cells, folder):
    model = folder / "model"
    subprocess.run([programs / "make_model", "--config", ROOT / "examples/demo/config.json", "--tokenizer",
                    ROOT / "examples/demo", "--seed", "1", "--output", model, *MODEL.split()], check=True,
                   stdout=subprocess.DEVNULL)
    references = {}
    failed = []
    for number, cell in enumerate(cells):
        key = (cell.world, cell.dtype, cell.experts, cell.sharers)
        if key not in references:
            alone = Cell(1, cell.world, 3 if not cell.experts else 2, "full", cell.dtype, experts=cell.experts, sharers=cell.sharers)
            output = folder / "-".join(map(str, ("one", *key)))
            fault = train(programs, hosts, alone, output, model)
            if fault:
                sys.exit(f"one host with {cell.world} ranks: {fault}")
            references[key] = digits(output)
            assert len(set(references[key][0])) == STEPS, "it moves"
        output = folder / str(number)
        begun = time.monotonic()
        fault = train(programs, hosts, cell, output, model)
        if not fault and digits(output) != references[key]:
            fault = f"it has {digits(output)}, one host {references[key]}"
        print(f"{number + 1:3d}/{len(cells)} {cell.text()}: {fault or 'equal'}, {time.monotonic() - begun:.1f} s", flush=True)
        if fault:
            failed.append({"cell": cell.text(), "fault": fault})
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=default_bin(), help="the folder of the programs")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="cells whose text contains this, as 'stage 3'")
    arguments = parser.parse_args()
    cells = [cell for cell in (QUICK if arguments.quick else all_cells())
             if not arguments.only or arguments.only in cell.text()]
    begun = time.monotonic()
    failed = []
    for is_wired in (False, True):
        some = [cell for cell in cells if cell.wire == is_wired]
        if not some:
            continue
        count = max(cell.hosts for cell in some)
        with WiredHosts(count, SLOW_WIRE) if is_wired else Hosts(count) as hosts, scratch() as folder:
            if hosts.problem:
                print(f"skipped: no namespaces as hosts: {hosts.problem}")
                return 77
            failed += compare(arguments.bin, hosts, some, Path(folder))
    print(json.dumps({"drill": "hosts", "cells": len(cells), "equal": len(cells) - len(failed), "failed": failed,
                      "seconds": round(time.monotonic() - begun, 1)}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
