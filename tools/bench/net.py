#!/usr/bin/env python3
"""Collectives between two hosts beside Gloo's and Open MPI's, and frames beside UCX's own program, on one network.

    ./tandem bench net [--rounds 5] [--peers gloo mpi mpi_ucx] [--operations all_gather ...] [--sizes 4K 64K 1M 8M 64M]
    ./tandem bench net --frames [Google Benchmark's flags]    frames between two processes of this host: bench_net

The hosts are two network namespaces on a bridge, each with half of the machine's CPUs, so it wants root. A size is the block's: what both ranks' parts make
together, of an all-reduce what each rank has. In each round the libraries take turns at every operation and
size, and ratios are of one round: above 1 ours is faster. `busbw` counts the bytes that a link must carry at least: half of the
block each way, of an all-reduce twice half. `latency` is the time of the least size.
gloo: torch.distributed of .venv. mpi, mpi_ucx: Open MPI (Debian's openmpi-bin, libopenmpi-dev) over its own TCP and over UCX's.
"""

import argparse
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/drills"))
from drill import Hosts  # noqa: E402

OPERATIONS = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
CARRIED = {"all_reduce": 1.0}  # of the block, one way; of the others half
SIZES = ["4K", "64K", "1M", "8M", "64M"]
PEERS = ["gloo", "mpi", "mpi_ucx"]
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}
DEVICE = "lan"  # what Hosts calls each host's interface
BATCH_S = 0.04


class Missing(Exception):
    """A peer that is not installed, and why."""


def bytes_of(text):
    match = re.fullmatch(r"(\d+)([KM]?)", text)
    if not match or int(match[1]) * UNITS[match[2]] % 4096:
        raise argparse.ArgumentTypeError(f"{text} is no size; a multiple of 4K such as 64K or 8M")
    return int(match[1]) * UNITS[match[2]]


def text_of(size):
    return f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"


def on_host(hosts, at, command):
    """Each host has its part of the machine's CPUs."""
    command = [str(word) for word in command]
    cpus = sorted(os.sched_getaffinity(0))
    part = cpus[len(cpus) * at // 2:len(cpus) * (at + 1) // 2] or cpus
    return hosts.command(at, ["taskset", "-c", ",".join(map(str, part)), *command])


class Library:
    """Processes that all read "OPERATION BYTES TIMES" and answer with seconds."""

    def __init__(self, name, processes):
        self.name = name
        self.processes = processes

    def _line(self, process):
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: a rank ended with exit code {process.wait()}")
        return line.strip()

    def wait_ready(self):
        return [self._line(process) for process in self.processes]

    def say(self, text):
        for process in self.processes:
            process.stdin.write(text + "\n")
            process.stdin.flush()

    def run(self, operation, size, times):
        """Returns the seconds of one operation."""
        self.say(f"{operation} {size} {times}")
        return max(float(self._line(process)) for process in self.processes) / times

    def end(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.terminate()  # mpirun ends its ranks


def start(command):
    return subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def tandem(hosts, build):
    program = build / "bin/bench_net"
    made = Library("tandem", [start(on_host(hosts, rank, [program, "--rank", rank, "--device", DEVICE])) for rank in range(2)])
    made.say(" ".join(made.wait_ready()))
    return made


def gloo(hosts, _folder):
    python = ROOT / ".venv/bin/python"
    if not python.exists():
        raise Missing(".venv is not there; ./tandem setup")
    script = ROOT / "bench/net/gloo.py"
    made = Library("gloo", [start(on_host(hosts, rank, [python, script, rank, hosts.address(0), 29400, DEVICE])) for rank in range(2)])
    made.wait_ready()
    return made


def mpi_program(folder):
    program = folder / "mpi_peer"
    if not program.exists():
        if not shutil.which("mpirun") or not shutil.which("mpicc"):
            raise Missing("no mpirun or mpicc; apt-get install openmpi-bin libopenmpi-dev")
        subprocess.run(["mpicc", "-O2", "-o", program, ROOT / "bench/net/mpi_peer.c"], check=True)
    return program


def open_mpi(name, hosts, folder, flags):
    program = mpi_program(folder)
    agent = folder / "agent"  # in ssh's place: ADDRESS COMMAND...
    cases = "".join(f'{hosts.address(at)}) exec {shlex.join(map(str, on_host(hosts, at, ["sh", "-c"])))} "$*";;\n'
                    for at in range(2))
    agent.write_text(f"#!/bin/sh\nto=$1; shift\ncase $to in\n{cases}esac\n")
    agent.chmod(0o755)
    command = ["mpirun", "--allow-run-as-root", "--host", ",".join(f"{hosts.address(at)}:1" for at in range(2)), "-np", "2",
               "--bind-to", "none", "--mca", "plm_rsh_agent", agent, "--mca", "orte_keep_fqdn_hostnames", "1",
               "--mca", "oob_tcp_if_include", DEVICE, *flags, program]
    made = Library(name, [start(on_host(hosts, 0, command))])
    made.wait_ready()
    return made


def mpi(hosts, folder):
    return open_mpi("mpi", hosts, folder, ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", DEVICE])


def mpi_ucx(hosts, folder):
    return open_mpi("mpi_ucx", hosts, folder, ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any",
                                               "-x", "UCX_TLS=tcp,self", "-x", f"UCX_NET_DEVICES={DEVICE}"])  # fmt: skip


def start_peers(names, hosts, folder):
    peers = []
    for name in names:
        try:
            peers.append({"gloo": gloo, "mpi": mpi, "mpi_ucx": mpi_ucx}[name](hosts, folder))
        except (Missing, RuntimeError, subprocess.CalledProcessError) as error:
            print(f"without {name}: {error}", file=sys.stderr)
    return peers


def times_for(library, operation, size):
    """How many make a batch of about BATCH_S, once all is warm."""
    times = 2
    while (once := library.run(operation, size, times)) * times < BATCH_S / 4 and times < 2000:
        times *= 4
    return max(2, min(2000, int(BATCH_S / once)))


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} .. {max(values):.2f})"


def compare(args, ours, peers):
    libraries = [ours, *peers]
    print("| operation | size | time | busbw | " + " | ".join(f"times {peer.name}" for peer in peers) + " |")
    print("|---" * (4 + len(peers)) + "|")
    for operation in args.operations:
        for size in args.sizes:
            counts = {library: times_for(library, operation, size) for library in libraries}
            seconds = {library: [] for library in libraries}
            for number in range(args.rounds):
                first = number % len(libraries)  # not always the same one after the same one
                for library in libraries[first:] + libraries[:first]:
                    seconds[library].append(library.run(operation, size, counts[library]))
            mine = statistics.median(seconds[ours])
            rate = size * CARRIED.get(operation, 0.5) / mine
            ratios = [spread([theirs / own for own, theirs in zip(seconds[ours], seconds[peer])]) for peer in peers]
            time = f"{mine * 1e6:.0f} us" if mine < 1e-2 else f"{mine * 1e3:.1f} ms"
            print(f"| {operation.replace('_', '-')} | {text_of(size)} | {time} | {rate / 1e6:.0f} MB/s | " + " | ".join(ratios) + " |",
                  flush=True)


def main():
    if "--frames" in sys.argv[1:]:
        flags = [flag for flag in sys.argv[1:] if flag != "--frames"]
        return subprocess.run([ROOT / "build/release/bin/bench_net", *flags], check=False).returncode
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS)
    parser.add_argument("--operations", nargs="+", default=OPERATIONS, choices=OPERATIONS)
    parser.add_argument("--sizes", nargs="+", type=bytes_of, default=[bytes_of(size) for size in SIZES])
    args = parser.parse_args()
    with Hosts(2) as hosts, tempfile.TemporaryDirectory() as folder:
        if hosts.problem:
            print(f"error: [bench] two network namespaces cannot be made: {hosts.problem}; run it as root", file=sys.stderr)
            return 2
        print(f"{os.cpu_count()} CPUs, {args.rounds} rounds, medians (range)", flush=True)
        libraries = []
        try:
            libraries.append(tandem(hosts, args.build))
            libraries += start_peers(args.peers, hosts, Path(folder))
            compare(args, libraries[0], libraries[1:])
        finally:
            for library in libraries:
                library.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
