#!/usr/bin/env python3
"""The restart drill: a run of two hosts loses one at a random step, goes on with what is left, and ends equal.

    tests/drills/restart.py --trials 10
    tests/drills/restart.py --trials 10 --namespaces

Both hosts are this one, by the tests' stand-in for ssh. In turn the second host is lost, the first one (with rank 0)
is, and a rank is killed while its host stays. `tandem launch --max_restarts` starts the ranks again, on one host where
one was lost; losses and weights must have the bits of a run that nothing disturbs. Without --namespaces the ranks take
each other for ranks of one host and meet in shared memory; with it (as root) each host is a network namespace with an
address of its own. The last line is the summary, one JSON object; exit code 1 where something is wrong.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from drill import Run, default_bin, demo_flags, losses, scratch

STEPS = 40
SAVE_EVERY = 5
LIMIT_S = 180
SETTINGS = {"TANDEM_COLLECTIVE_TIMEOUT_S": "20", "TANDEM_RENDEZVOUS_TIMEOUT_S": "60"}
# Ranks of both hosts are told that they are of one.
AS_ONE_HOST = ["sh", "-c", 'LOCAL_RANK=$RANK LOCAL_WORLD_SIZE=$WORLD_SIZE GROUP_RANK=0 exec "$@"', "rank"]
FAULTS = ("second host", "first host", "rank")


def flags(output):
    return demo_flags(output, STEPS, ("--max_length", 48, "--save_every", SAVE_EVERY, "--resume", "auto"))


def result_of(output):
    model = Path(output) / "model/model.safetensors"
    return losses(output), hashlib.sha256(model.read_bytes()).hexdigest() if model.exists() else None


@contextlib.contextmanager
def cable():
    """The names of two network namespaces with a cable between them, as tests/launch_alone/fake_ssh.cpp knows them."""
    name = f"tr{os.getpid() % 100000}"

    def run(*commands):
        for command in commands:
            subprocess.run(command.format(name), shell=True, check=True, env=dict(
                os.environ, PATH=os.environ["PATH"] + ":/usr/sbin"))

    try:
        run("ip netns add {0}a", "ip netns add {0}b", "ip link add {0}a netns {0}a type veth peer name {0}b netns {0}b")
        for side, number in ("a", 1), ("b", 2):
            run(f"ip -n {{0}}{side} addr add 10.213.7.{number}/24 dev {{0}}{side}",
                f"ip -n {{0}}{side} link set {{0}}{side} up", f"ip -n {{0}}{side} link set lo up")
        yield name
    finally:
        run("ip netns del {0}a; ip netns del {0}b; true")


def disturbed(programs, folder, fault, step, namespaces):
    """Whether it ended well after one restart, and what the launcher said of that."""
    folder.mkdir()
    (folder / "ssh").symlink_to(programs / "fake_ssh")
    a, b = (f"apart-{namespaces}a", f"apart-{namespaces}b") if namespaces else ("a", "b")
    hosts = {"second host": f"{a}:1,cut-{b}:1", "first host": f"cut-{a}:1,{b}:1", "rank": f"{a}:1,{b}:1"}[fault]
    cut = folder / "cut"
    launch = ["--hosts", hosts, "--max_restarts", "1"]
    if not namespaces:
        launch += ["--master_addr", "127.0.0.1"]
    run = Run(programs, launch, flags(folder / "run"),
              {**SETTINGS, "PATH": f"{folder}:{os.environ['PATH']}", "FAKE_SSH_CUT": str(cut), "SSH_CONNECTION": ""},
              starter=() if namespaces else AS_ONE_HOST)
    end = time.monotonic() + LIMIT_S
    while len(losses(folder / "run")) < step and run.process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)
    if fault == "rank":
        run.send(step % 2, signal.SIGKILL)
    else:
        cut.touch()
    code = run.finish(LIMIT_S)
    said = [line for _, line in run.lines if re.match(r"launch: .*; restart 1 of 1 with", line)]
    left = bool(run.left())
    if code != 0 or len(said) != 1 or left:
        print(run.text(), flush=True)
    if left:
        run.end()
    return code == 0 and len(said) == 1 and not left, said[0] if said else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=default_bin(), help="the folder of the programs")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--namespaces", action="store_true", help="each host is a network namespace")
    arguments = parser.parse_args()
    programs = arguments.bin.resolve()
    chance = random.Random(arguments.seed)
    equal = 0
    with scratch() as name, cable() if arguments.namespaces else contextlib.nullcontext() as namespaces:
        folder = Path(name)
        straight = Run(programs, 2, flags(folder / "straight"), SETTINGS)
        if straight.finish(LIMIT_S) != 0:
            sys.exit(f"the undisturbed run failed:\n{straight.text()}")
        wanted = result_of(folder / "straight")
        for trial in range(arguments.trials):
            fault, step = FAULTS[trial % len(FAULTS)], chance.randrange(1, STEPS - 5)
            whole, said = disturbed(programs, folder / str(trial), fault, step, namespaces)
            same = whole and result_of(folder / str(trial) / "run") == wanted
            equal += same
            print(f"{trial:3d}  {fault} lost after step {step}: {'equal' if same else 'NOT EQUAL'}; {said}", flush=True)
    good = equal == arguments.trials and len(wanted[0]) == STEPS and wanted[1] is not None
    print(json.dumps({"drill": "restart", "trials": arguments.trials, "steps": STEPS, "save_every": SAVE_EVERY,
                      "namespaces": bool(namespaces), "equal": equal, "passed": good}), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
