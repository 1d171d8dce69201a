#!/usr/bin/env python3
"""Collects the peers' wheels for the image of the GPU machine into .whl, where pack.py finds them.

    python3 tools/gpu/wheels.py [--torchao] [--python-version 3.12] [--into .whl]

Needs the network of the machine that packs, none there. Only what that image lacks is collected; torch, transformers and what
they bring are its own. DeepSpeed's wheel is made here without its C++ parts, which are compiled there with that machine's torch.
Invariant: .whl holds exactly one version of each package, since two of them stop the whole installation.
Exit code 0; 1 where a wheel is missing or all are too large.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from kit import ROOT

DEEPSPEED = "deepspeed==0.19.8"
PYTHON = "3.12"  # of the image
PACKAGES = ["liger-kernel==0.8.5", "hjson==3.1.0", "pydantic==2.14.3", "pydantic-core==2.50.4", "annotated-types==0.8.0",
            "typing-inspection==0.4.5", "typing-extensions==4.16.0"]
TORCHAO = "torchao==0.18.0"
PLATFORMS = ["manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64",
             "manylinux2014_x86_64", "any"]
MOST_MIB = 24


class Fault(Exception):
    """A wheel is not here; the text says which."""


def pip(python, *arguments, cwd=None):
    environment = os.environ | {"DS_BUILD_OPS": "0"}
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["pip says nothing"]
        raise Fault(said[-1])


def download(flags, packages):
    platforms = [part for name in PLATFORMS for part in ("--platform", name)]
    pip(flags.python, "download", "-q", "--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version",
        flags.python_version, *platforms, "-d", flags.into, *packages)


def make_deepspeed(into):
    """DeepSpeed is published as sources. Without its operations the wheel is Python alone: no torch and no compiler is needed."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        venv.create(work / "venv", with_pip=True)
        python = work / "venv/bin/python"
        pip(python, "install", "-q", "wheel", "setuptools", "ninja", "packaging")
        pip(python, "wheel", "-q", "--no-deps", "--no-binary=:all:", "--no-build-isolation", "-w", work / "wheel", DEEPSPEED,
            cwd=work)
        for wheel in (work / "wheel").glob("*.whl"):
            (into / wheel.name).write_bytes(wheel.read_bytes())


def distribution(path):
    return path.name.split("-")[0].replace("_", "-").lower()


def collect(flags):
    packages = PACKAGES + ([TORCHAO] if flags.torchao else [])
    flags.into.mkdir(parents=True, exist_ok=True)
    for old in flags.into.glob("*.whl"):
        old.unlink()
    download(flags, packages)
    make_deepspeed(flags.into)
    wheels = sorted(flags.into.glob("*.whl"))
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 2**20:8.2f} MiB  {wheel.name}")
    found, wanted = sorted(map(distribution, wheels)), sorted(name.split("==")[0] for name in [*packages, DEEPSPEED])
    if found != wanted:
        raise Fault(f"the wheels are {', '.join(found)}, and should be {', '.join(wanted)}")
    size = sum(wheel.stat().st_size for wheel in wheels) / 2**20
    if size > MOST_MIB:
        raise Fault(f"{size:.1f} MiB of wheels leave no room for the programs; at most {MOST_MIB}")
    print(f"{size:8.2f} MiB  in all")


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torchao", action="store_true", help="torchao, too")
    parser.add_argument("--python-version", default=PYTHON, help="of the image")
    parser.add_argument("--into", type=Path, default=ROOT / ".whl", help="its wheels are replaced")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with pip")
    flags = parser.parse_args(argv)
    try:
        collect(flags)
    except Fault as fault:
        print(f"wheels: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
