"""Runs a command within a time limit and ends all that it started; measures memory beside it.

Invariant: after run() returns, no process of the command's group is left, so that the next command has the machine alone.
"""

import dataclasses
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

GIB = 2**30
GRACE_S = 4


@dataclasses.dataclass(frozen=True)
class Ended:
    """`code` is None where the time limit ended the command, and 127 where it did not start."""

    code: int | None
    out: str
    err: str
    seconds: float

    def why(self):
        """The last line that explains a failure."""
        said = (self.err.strip() or self.out.strip() or "it printed nothing").splitlines()
        return ("ended by its limit" if self.code is None else f"exit code {self.code}") + f": {said[-1][:300]}"


def end_group(process):
    """Workers outlive a parent that was killed, so the signal goes to the group: first SIGTERM, then SIGKILL. Between them a
    program has the time to end groups of its own, which no signal of ours reaches, and to print what it has."""
    for name in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, name)
        except ProcessLookupError:
            break
        until = time.monotonic() + GRACE_S
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
    process.wait()


def start(command, out, err, environment=None, cwd=None):
    return subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=environment, cwd=cwd,
                            start_new_session=True)


def run(command, limit, environment=None, cwd=None):
    """Runs a list of arguments for at most `limit` seconds."""
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        try:
            process = start(command, out, err, environment, cwd)
        except OSError as error:
            return Ended(127, "", str(error), 0.0)
        code = None
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_group(process)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return Ended(code, *texts, time.monotonic() - begin)


def memory_available():
    """MemAvailable of the host in bytes; 0 where the kernel does not say."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def device_used_mib():
    """The MiB that are used on the fullest GPU, or None where nvidia-smi does not answer."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, text=True, capture_output=True, timeout=5, check=False)
        return max(int(line) for line in done.stdout.split())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


class MemoryWatch(threading.Thread):
    """Keeps the least MemAvailable and the most device memory while a command runs, for all commands in the same way."""

    def __init__(self):
        super().__init__(daemon=True)
        self.at_start = self.least = memory_available()
        self.device_mib = device_used_mib()
        self.ended = threading.Event()
        self.start()

    def run(self):
        turn = 0
        while not self.ended.wait(0.2):
            self.least = min(self.least, memory_available())
            turn += 1
            if turn % 5 == 0 and self.device_mib is not None:
                self.device_mib = max(self.device_mib, device_used_mib() or 0)

    def stop(self):
        self.ended.set()
        self.join(6)
        device = None if self.device_mib is None else self.device_mib / 1024
        return {"host_gib": (self.at_start - self.least) / GIB, "device_gib": device}
