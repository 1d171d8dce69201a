#!/usr/bin/env python3
"""Packs what a machine with a GPU needs into .gpu: programs, their libraries, this kit, the peers' wheels, the CUPTI library.

    python3 tools/gpu/pack.py [--bin build/release/bin] [--into .gpu]

The folder is a tree of its own: ./tandem test --gpu --queue runs in a copy of it, and in a whole tree that has it as .gpu.
Invariant: a pack above 60 MiB is not left behind, so that whatever is there can travel.
Exit code 0; 1 where something is missing or too large; 2 for wrong flags.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from kit import ARCHIVE, HERE, PACKED, ROOT, TRACE

import frame
import trust
from items import PROGRAMS

MIB = 2**20
# Beside tools/gpu: what the frame and the steps read.
FILES = ["tandem", "tools/setup.sh", "tools/gpu_record.py", "tools/trust.py", "tools/trust_campaigns.py",
         *(f"examples/demo/{name}" for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"))]
# The C and C++ runtime is the image's, which is newer; LibTorch and CUDA come with its torch.
OF_THE_IMAGE = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|gcc_s|stdc\+\+|gomp))\.so|lib(cuda|nvidia|nccl|torch|c10)")


class Fault(Exception):
    """Nothing was packed; the text says why."""


class Foreign(Fault):
    """The folder has other files and stays as it is."""


def say(text):
    print(f"pack: {text}", flush=True)


def libraries_of(program):
    """The system's libraries that travel with a program; Fault where it lacks one here already."""
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    absent = re.findall(r"^\s*(\S+) => not found", done.stdout, re.MULTILINE)
    if absent:
        raise Fault(f"{program.name} lacks {', '.join(absent)} here already")
    found = re.findall(r"=> (/(?:usr/)?lib\S+)", done.stdout)
    return [Path(path) for path in found if not OF_THE_IMAGE.match(Path(path).name)]


def pack_programs(source, into):
    """Strips the programs and puts them with their libraries into one archive."""
    absent = [name for name in PROGRAMS if not (source / name).is_file()]
    if absent:
        raise Fault(f"{', '.join(absent)} not in {source}; ./tandem build makes them")
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        for part in ("bin", "lib"):
            (stage / part).mkdir()
        libraries = set()
        for name in PROGRAMS:
            libraries |= set(libraries_of(source / name))
            strip = ["strip", "-o", str(stage / "bin" / name), str(source / name)]
            if subprocess.run(strip, capture_output=True, check=False).returncode != 0:  # no object file: as it is
                shutil.copy(source / name, stage / "bin" / name)
        for library in libraries:
            shutil.copy(library, stage / "lib" / library.name)
        with tarfile.open(into / ARCHIVE, "w:gz", compresslevel=6) as archive:
            for part in ("bin", "lib"):
                archive.add(stage / part, part)
        bare = sum(path.stat().st_size for path in (stage / "bin").iterdir())
    say(f"{len(PROGRAMS)} programs ({bare / MIB:.0f} MiB stripped), {len(libraries)} libraries: "
        f"{(into / ARCHIVE).stat().st_size / MIB:.1f} MiB")


def pack_kit(into):
    for name in FILES:
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, into / name)
    shutil.copytree(HERE, into / HERE.relative_to(ROOT), ignore=shutil.ignore_patterns("__pycache__"))


def pack_wheels(into):
    wheels = sorted((ROOT / ".whl").glob("*.whl"))
    (into / "wheels").mkdir()
    for wheel in wheels:
        shutil.copy(wheel, into / "wheels")
    say(f"{len(wheels)} wheels of the peers" + ("" if wheels else ": tools/gpu/wheels.py first, or they are left out"))


def build_trace(python, into):
    """The CUPTI library, where CUPTI's headers are here: in the wheel beside torch, or in a toolkit."""
    folders = [frame.torch_of(python)[0].parent / "nvidia/cu13", Path(frame.TOOLKIT), Path(frame.TOOLKIT) / "extras/CUPTI"]
    headers = [f"-I{folder / 'include'}" for folder in folders if (folder / "include").is_dir()]
    for folder in folders:
        libraries = [path for part in ("lib64", "lib") for path in (folder / part).glob("libcupti.so.13")]
        if not (folder / "include/cupti.h").is_file() or not libraries:
            continue
        command = ["g++", "-O2", "-std=c++20", "-shared", "-fPIC", f"-I{ROOT}", f"-I{folder / 'include'}", *headers,
                   str(HERE / "cupti_trace.cpp"), "-o", str(into / TRACE), f"-L{libraries[0].parent}", "-l:libcupti.so.13", "-s"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            say(f"{TRACE}: built")
            return
        say(f"{TRACE}: {(done.stderr.strip().splitlines() or ['g++ says nothing'])[0]}")
    say(f"{TRACE}: not built: Q2 and Q7 go without traces")


def pack(flags):
    into = flags.into
    if into.exists() and not (into / PACKED).is_file() and any(into.iterdir()):
        raise Foreign(f"{into} is no pack: name a folder that is not there")
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    facts = {"commit": trust.commit(), "torch": frame.torch_of(flags.python)[1], "python": flags.python}
    (into / PACKED).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    pack_programs(flags.bin, into)
    pack_kit(into)
    pack_wheels(into)
    build_trace(flags.python, into)
    size = frame.size_of(into) / MIB
    if size > flags.most_mib:
        raise Fault(f"{size:.1f} MiB are more than the {flags.most_mib:g} that travel")
    say(f"{into}: {size:.1f} MiB of the {flags.most_mib:g} that travel")


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin", help="folder of the programs")
    parser.add_argument("--into", type=Path, default=ROOT / ".gpu", help="made anew")
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"), help="interpreter with the torch of the programs")
    parser.add_argument("--most-mib", type=float, default=frame.MOST_MIB, help=argparse.SUPPRESS)
    flags = parser.parse_args(argv)
    try:
        pack(flags)
    except (Fault, frame.Stop) as fault:
        if not isinstance(fault, Foreign):
            shutil.rmtree(flags.into, ignore_errors=True)
        print(f"pack: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
