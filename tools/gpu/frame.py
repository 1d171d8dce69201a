"""Looks at the machine and at the programs before a minute is spent: GPU, its other users, programs, libraries, versions.

Invariant: whatever is wrong ends the queue with one line and an exit code of its own, before the first step begins.
"""

import json
import platform
import re
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path

from kit import ARCHIVE, PACKED, ROOT, TOOLKIT

import gpu_record
import trust
from processes import GIB, device_used_mib, memory_available

NO_GPU, NO_PROGRAM = 3, 4
MOST_MIB = 60  # of a pack
MOST_USED_MIB = 1024  # more in others' hands once spoilt an 8B run


class Stop(Exception):
    """Ends the queue with `code`."""

    def __init__(self, code, why):
        super().__init__(why)
        self.code = code


def look_at_gpu():
    """The facts of the GPU; Stop where there is none or it is in use."""
    found, why = gpu_record.gpus()
    if not found:
        raise Stop(NO_GPU, f"no GPU here: {why}")
    used = device_used_mib()
    if used is None or used > MOST_USED_MIB:
        raise Stop(NO_GPU, f"{used} MiB of the GPU are in use by others, at most {MOST_USED_MIB}")
    more = "pcie.link.gen.max,pcie.link.width.max,clocks.sm,clocks.max.sm,power.limit"
    said = trust.output_of("nvidia-smi", f"--query-gpu={more}", "--format=csv,noheader").splitlines() or ["not known"]
    return [f"GPU ({gpu_record.QUERY}): {'; '.join(found)}", f"{more}: {'; '.join(said)}"]


def look_at_host(pack):
    shared = shutil.disk_usage("/dev/shm").free / GIB if Path("/dev/shm").exists() else 0
    commit = packed(pack).get("commit") or trust.commit()
    return [f"Host: {trust.machine()}, kernel {platform.release()}, {memory_available() / GIB:.0f} GiB of memory available, "
            f"{shared:.0f} GiB free in shared memory. {gpu_record.cuda_versions()}. Commit {commit}."]


def packed(pack):
    """What pack.py wrote of the pack; nothing where the programs are those of the tree."""
    path = pack / PACKED
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def size_of(folder, without=None):
    """The bytes of a folder's files, but for those below `without`."""
    files = (path for path in folder.rglob("*") if path.is_file() and not (without and path.is_relative_to(without)))
    return sum(path.stat().st_size for path in files)


def look_at_pack(kit):
    if not packed(kit.pack):
        return ["Nothing is packed here: the programs are those of the tree."]
    size = size_of(kit.pack, kit.out) / 2**20
    return [f"Pack: {size:.1f} MiB of the {MOST_MIB} that travel, {len(kit.wheels())} wheels of the peers."]


def unpacked(kit):
    """The folder of the programs: unpacked once on a machine, or the tree's own."""
    archive = kit.pack / ARCHIVE
    if not archive.is_file():
        return ROOT / "build/release/bin"
    folder = kit.work / "programs"
    stamp, wanted = folder / "stamp", f"{archive.stat().st_size} {archive.stat().st_mtime_ns}"
    if not stamp.is_file() or stamp.read_text(encoding="ascii") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tarfile.open(archive) as file:
            file.extractall(folder)
        stamp.write_text(wanted, encoding="ascii")
    return folder / "bin"


def torch_of(python):
    """(folder of torch, its version, its CUDA), without importing it; Stop where the interpreter has none."""
    code = ("import importlib.util, os; found = importlib.util.find_spec('torch'); "
            "folder = os.path.dirname(found.origin) if found else ''; print(folder); "
            "print(open(os.path.join(folder, 'version.py')).read() if folder else '')")
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    folder, _, text = done.stdout.partition("\n")
    if done.returncode != 0 or not folder:
        raise Stop(NO_PROGRAM, f"{python} has no torch, whose LibTorch the programs use; --python names another")
    version = re.search(r"__version__ = '([^']*)'", text)
    cuda = re.search(r"cuda: Optional\[str\] = '([^']*)'", text)
    return Path(folder), version[1] if version else "", cuda[1] if cuda else ""


def look_at_torch(kit):
    """The library folders that the programs need; Stop where torch is not the one that they were linked with."""
    folder, version, cuda = torch_of(kit.python)
    wanted = packed(kit.pack).get("torch", version)
    if version.split("+")[0].rsplit(".", 1)[0] != wanted.split("+")[0].rsplit(".", 1)[0]:
        raise Stop(NO_PROGRAM, f"torch is {version}, and the programs were linked with {wanted}")
    driver = re.search(r"CUDA Version: (\d+)", trust.output_of("nvidia-smi"))
    if driver and cuda and not kit.rehearse and int(driver[1]) < int(cuda.split(".")[0]):
        raise Stop(NO_PROGRAM, f"the driver knows CUDA {driver[1]}, and torch is made with {cuda}")
    nvidia = sorted(folder.parent.glob("nvidia/*/lib"))
    libraries = [kit.work / "programs/lib", folder / "lib", *nvidia, Path(TOOLKIT) / "lib64"]
    return libraries, f"torch {version} with CUDA {cuda or 'none'}"


def missing_libraries(program, libraries):
    said = trust.output_of("env", f"LD_LIBRARY_PATH={libraries}", "ldd", str(program))
    return re.findall(r"^\s*(\S+) => not found", said, re.MULTILINE)


def look_at_programs(kit, names):
    """Makes a starter for each program, which finds its libraries; Stop where a program is absent, lacks one or does not start."""
    folder = unpacked(kit)
    libraries, torch = look_at_torch(kit)
    path = ":".join(str(library) for library in libraries)
    starters = kit.work / "run"
    shutil.rmtree(starters, ignore_errors=True)
    starters.mkdir(parents=True)
    for name in sorted(names):
        program = folder / name
        if not program.is_file():
            raise Stop(NO_PROGRAM, f"{name} is not in {kit.shown(str(folder))}: build it and pack again")
        absent = missing_libraries(program, path)
        if absent:
            raise Stop(NO_PROGRAM, f"{name} lacks {', '.join(absent)}")
        starter = starters / name
        start = f'LD_LIBRARY_PATH={shlex.quote(path)} exec {shlex.quote(str(program))} "$@"'
        starter.write_text(f"#!/bin/sh\n{start}\n", encoding="utf-8")
        starter.chmod(0o755)
    if "bench_step" in names:
        command = [str(starters / "bench_step"), "--benchmark_list_tests"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
            raise Stop(NO_PROGRAM, f"bench_step does not start (exit code {done.returncode}): {said[-1]}")
    return [f"Programs: {', '.join(sorted(names))}; {torch}."]


def facts(kit, names):
    """Lines for the record."""
    return [*look_at_gpu(), *look_at_pack(kit), *look_at_programs(kit, names), *look_at_host(kit.pack)]
