"""The common part of the drills: a run of several ranks under `tandem launch`, watched line by line."""

import hashlib
import json
import os
import secrets
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def default_bin():
    return Path(os.environ.get("TANDEM_BIN", ROOT / "build/release/bin"))


def processes():
    """(pid, state, environment) of every process that may be read."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                yield int(folder.name), state, (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                pass


class Run:
    """A launcher with its ranks. Every process of it carries a mark in its environment."""

    def __init__(self, programs, ranks, flags, variables=None, grace_s=5, starter=()):
        """`ranks`: how many on this host, or the flags of the launcher that say where. `starter`: before the program."""
        self.mark = f"TANDEM_DRILL_MARK={secrets.token_hex(8)}"
        self.lines = []  # (time, text), stdout and stderr
        self.is_deaf = False  # the reader goes with the next line
        self.changed = threading.Condition()
        environment = dict(os.environ, **(variables or {}))
        environment["TANDEM_DRILL_MARK"] = self.mark.partition("=")[2]
        where = ranks if isinstance(ranks, list) else ["-n", str(ranks)]
        command = [programs / "tandem", "launch", *where, "--grace_s", str(grace_s), "--", *starter,
                   programs / "finetune_zero3", *map(str, flags)]
        self.begun = time.monotonic()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append((time.monotonic(), line.decode("utf-8", "replace").rstrip("\n")))
                self.changed.notify_all()
            if self.is_deaf:
                break
        self.process.stdout.close()

    def wait_line(self, text, limit_s):
        """When the first line with `text` came; None if it did not, or the launcher ended."""
        end = time.monotonic() + limit_s
        seen = 0
        while True:
            with self.changed:
                for at, line in self.lines[seen:]:
                    if text in line:
                        return at
                seen = len(self.lines)
                if time.monotonic() >= end or not self.reader.is_alive():
                    return None
                self.changed.wait(0.05)

    def rank_process(self, rank):
        mark, number = self.mark.encode(), f"RANK={rank}".encode()
        for pid, _, variables in processes():
            if mark in variables and number in variables:
                return pid
        return None

    def left(self):
        mark = self.mark.encode()
        return [pid for pid, state, variables in processes() if mark in variables and state != "Z"]

    def send(self, rank, number):
        """When the signal was sent; a rank that is gone gets none."""
        pid = self.rank_process(rank)
        at = time.monotonic()
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        return at

    def finish(self, limit_s):
        """The exit code; None: it still ran after that time, and was killed."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
            self.end()
        self.reader.join(5)
        return code

    def end(self):
        """Kills whatever is left of this run, by its mark."""
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def text(self):
        return "\n".join(line for _, line in self.lines)


class Hosts:
    """Network namespaces as hosts, each with a name and an address of its own, on one bridge. As root; `problem` says
    why there are none."""

    def __init__(self, count):
        mark = f"td{os.getpid() % 100000}"
        self.bridge = f"{mark}s"
        # fake_ssh works addresses out from the last letter.
        self.spaces = [f"{mark}{chr(ord('a') + at)}" for at in range(count)]
        self.problem = None
        try:
            self._ip("netns", "add", self.bridge)
            self._ip("-n", self.bridge, "link", "add", "bridge", "type", "bridge")
            self._ip("-n", self.bridge, "link", "set", "bridge", "up")
            for at, space in enumerate(self.spaces):
                self._ip("netns", "add", space)
                self._join(space)
                self._ip("-n", space, "addr", "add", self.address(at) + "/24", "dev", "lan")
                self._ip("-n", space, "link", "set", "lan", "up")
                self._ip("-n", space, "link", "set", "lo", "up")
            self._run(self.command(0, ["true"]))
        except (OSError, subprocess.CalledProcessError) as error:
            output = getattr(error, "stdout", None) or str(error)
            self.problem = output.strip().splitlines()[-1] if output.strip() else "`ip netns` or `unshare` failed"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for space in [*self.spaces, self.bridge]:
            subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL, check=False)

    def _join(self, space):
        """Its device `lan`, on the bridge."""
        self._ip("link", "add", "lan", "netns", space, "type", "veth", "peer", "name", space, "netns", self.bridge)
        self._ip("-n", self.bridge, "link", "set", space, "master", "bridge", "up")

    @staticmethod
    def _run(command):
        subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def _ip(self, *arguments):
        self._run(["ip", *arguments])

    def stall(self, host):
        """Nothing comes from the host or goes there; it sees no difference."""
        self._ip("-n", self.bridge, "link", "set", self.spaces[host], "nomaster")

    def restore(self, host):
        self._ip("-n", self.bridge, "link", "set", self.spaces[host], "master", "bridge")

    @staticmethod
    def address(host):
        return f"10.213.7.{host + 1}"

    @staticmethod
    def name(host):
        return f"host-{chr(ord('a') + host)}"

    def command(self, host, command, disk=None, place=None):
        """One process there, no shell around it. `disk`: a folder that it sees at `place`, in its stead."""
        if disk is None:
            return ["ip", "netns", "exec", self.spaces[host], "unshare", "--uts", "sh", "-c",
                    'hostname "$0" && exec "$@"', self.name(host), *map(str, command)]
        return ["ip", "netns", "exec", self.spaces[host], "unshare", "--uts", "--mount", "sh", "-c",
                'hostname "$0" && mount --bind "$1" "$2" && shift 2 && exec "$@"', self.name(host), disk, place,
                *map(str, command)]


def demo_flags(output, steps, more=(), progress="off"):
    return ["--output_dir", output, "--steps", steps, "--batch_size", 2, "--progress", progress, "--no-tensorboard",
            "--no-samples", *more]


def losses(output):
    try:
        lines = (Path(output) / "metrics.jsonl").read_text().splitlines(keepends=True)
    except OSError:
        return []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be on its way
    return [row["loss"] for row in rows if "loss" in row]


def weight_hashes(output):
    files = sorted((Path(output) / "model").rglob("*.safetensors")) or sorted(Path(output).glob("model.safetensors"))
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def digits(output):
    """Losses and norms as they are written, and the weights' hashes."""
    lines = (Path(output) / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_float=str) for line in lines]
    weights = weight_hashes(output)
    if not weights:
        raise FileNotFoundError(f"{output} has no weights")
    return [(row["loss"], row["grad_norm"]) for row in rows if "loss" in row], weights


def percentiles(values):
    ordered = sorted(values)
    if not ordered:
        return {}

    def at(share):
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    return {"n": len(ordered), "min": at(0), "p50": at(0.5), "p90": at(0.9), "max": round(ordered[-1], 3)}


def scratch():
    return tempfile.TemporaryDirectory(prefix="tandem-drill-")
