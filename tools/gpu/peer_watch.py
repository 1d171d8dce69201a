"""Keeps a peer within its time and the host's memory, and times its steps.

Invariant: a peer always ends with one JSON line on stdout, also where the watch ends it from its own thread.
"""

import json
import os
import signal
import statistics
import threading
import time
from pathlib import Path

from processes import GIB, memory_available

OK, FAILED, OUT_OF_MEMORY, UNUSABLE, TIMED_OUT = 0, 1, 3, 4, 124
ATTENTION = ("_scaled_dot_product", "_flash_attention", "_efficient_attention", "_cudnn_attention", "flash_attn")


def status_bytes(name, pid="self"):
    """A size of /proc/PID/status in bytes; 0 where the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def descendants():
    """The process ids of the processes that this one started, and of theirs."""
    started_by = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        started_by.setdefault(parent, []).append(int(entry.name))
    found = list(started_by.get(os.getpid(), []))
    for pid in found:  # grows while it is walked
        found += started_by.get(pid, [])
    return found


def end_descendants():
    """Ends the workers, but not multiprocessing's resource tracker, which removes what is left in /dev/shm and then ends."""
    for pid in descendants():
        try:
            if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        except OSError:
            continue


class Watch:
    """A thread that ends the process at its limit, or before the host's memory is used up. `phase` says where it was then.

    It keeps the least MemAvailable: a run's pinned memory, shared memory and worker processes are all in that.
    """

    def __init__(self, args, line):
        self.line, self.limit, self.wanted = line, args.limit, args.min_host_gib * GIB
        self.begin = time.monotonic()
        self.at_start = self.least = memory_available()
        self.phase = "start"
        threading.Thread(target=self.keep_watch, daemon=True).start()

    def keep_watch(self):
        while True:
            self.least = min(self.least, memory_available())
            if self.limit and self.seconds() > self.limit:
                self.end(TIMED_OUT, f"no end within {self.limit:g} s")
            if self.least < self.wanted:
                self.end(OUT_OF_MEMORY, f"{self.least / GIB:.1f} GiB of the host's memory left, {self.wanted / GIB:.1f} wanted")
            time.sleep(0.2)

    def end(self, code, why):
        last = {"error": f"{why}, in: {self.phase}", "seconds": self.seconds(), "host_taken_bytes": self.taken()}
        print(json.dumps(self.line | last), flush=True)
        end_descendants()
        os._exit(code)

    def seconds(self):
        return round(time.monotonic() - self.begin, 1)

    def taken(self):
        return self.at_start - self.least

    def memory(self):
        return {"vm_hwm_bytes": status_bytes("VmHWM"), "host_taken_bytes": self.taken(),
                "vm_hwm_of_children_bytes": [status_bytes("VmHWM", pid) for pid in descendants()]}


class Clock:
    """Warm-up, then timed steps. A step ends when its loss is on the host, as a step of bench_step does; the timed region ends
    when the device has nothing left to do."""

    def __init__(self, args, watch):
        import torch

        self.args, self.watch, self.torch = args, watch, torch
        self.on_gpu = args.device == "cuda"
        self.losses, self.norms = [], []

    def wait_for_device(self):
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def one(self, kind, number, step, norm):
        self.watch.phase = f"{kind} step {number + 1}"
        self.losses.append(round(step(), 4))
        value = norm()
        self.norms.append(None if value is None else round(float(value), 5))

    def run(self, step, tokens_of_step, norm=lambda: None):
        """`step` returns the loss as a number; `norm` the norm of its gradients, or None."""
        if self.on_gpu:
            self.torch.cuda.reset_peak_memory_stats()
        for number in range(self.args.warmup):
            self.one("warm-up", number, step, norm)
        self.wait_for_device()
        ends = [time.perf_counter()]
        for number in range(self.args.steps):
            self.one("timed", number, step, norm)
            ends.append(time.perf_counter())
        self.wait_for_device()
        whole = time.perf_counter() - ends[0]
        ms = [round(1e3 * (end - begin), 2) for begin, end in zip(ends, ends[1:])]
        return {"tokens_per_s": round(tokens_of_step * self.args.steps / whole, 1), "ms_median": statistics.median(ms), "ms": ms,
                "losses": self.losses, "grad_norms": self.norms, **self.device_memory()}

    def device_memory(self):
        if not self.on_gpu:
            return {}
        free, whole = self.torch.cuda.mem_get_info()
        return {"peak_device_bytes": self.torch.cuda.max_memory_allocated(),
                "peak_reserved_bytes": self.torch.cuda.max_memory_reserved(), "device_used_bytes": whole - free}


def attention_operations(step):
    """How often a step calls each attention operation of ATen, by the host's own records: the device is not traced."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    names = [event.name.removeprefix("aten::") for event in profile.events()]
    called = [name for name in names if any(part in name for part in ATTENTION)]
    return {name: called.count(name) for name in dict.fromkeys(called)} or "none seen: not fused, or in compiled code"
