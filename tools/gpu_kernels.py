#!/usr/bin/env python3
"""Checks ptxas's report on every CUDA kernel: a spill fails the build, and docs/kernels.md has the table.

    tools/gpu_kernels.py compile NVCC ARGS... -o OBJECT      what the build calls (cmake/Cuda.cmake)
    tools/gpu_kernels.py page [--update] BUILD               compares the table with that build's kernels, or writes it

`compile` runs nvcc and writes OBJECT.kernels.json. The object is there only where no kernel spills, so what is built has
been checked: nothing of it comes out of a compiler's cache. `page` ends with 77 where another nvcc built than wrote it.
"""

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import page_block

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/kernels.md"
COMMAND = "tools/gpu_kernels.py page --update BUILD"
PTX_OF = "90"  # the architecture whose PTX is counted
FLOPS = re.compile(r"^\s*(?:@!?%p\d+ )?(add|sub|mul|fma|div|sqrt|rsqrt|rcp)\.(?:\w+\.)*f(32|64)\s", re.MULTILINE)
SKIPPED = 77


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Public figures: NVIDIA's data sheets; instructions of a thread are 128 for each multiprocessor and cycle."""

    name: str
    arch: str
    bytes_per_s: float
    fp32: float
    fp64: float
    instructions: float


GPUS = [Gpu("A100 80GB SXM", "sm_80", 2.039e12, 19.5e12, 9.7e12, 19.5e12),
        Gpu("H100 SXM", "sm_90", 3.35e12, 67e12, 34e12, 33.5e12), Gpu("B200", "sm_100", 8e12, 75e12, 37e12, 37.5e12)]
REGISTERS, THREADS, WARP, GRAIN = 65536, 2048, 32, 256  # of a multiprocessor; registers come by so many for a warp


def short_name(mangled):
    """update_elements<AdamRule<true>, float, false>"""
    name = subprocess.run(["c++filt", mangled], text=True, capture_output=True, check=True).stdout.strip()
    name = re.sub(r"^void |tandem::|_GLOBAL__N__\w+::|\(anonymous namespace\)::|N_ONE_LANE::", "", name)
    depth = 0
    for i, letter in enumerate(name):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            return name[:i]
    return name


def flops_of(ptx):
    """Kernel -> floating-point operations that its code has, by their bits, each path counted."""
    found = {}
    for name, body in re.findall(r"\.entry (\w+)\((.*?)^\}$", ptx, re.DOTALL | re.MULTILINE):
        counts = {"32": 0, "64": 0}
        for operation, bits in FLOPS.findall(body):
            counts[bits] += 2 if operation == "fma" else 1
        found[name] = counts
    return found


def kernels_of(log):
    """Reads the output of `ptxas -v`: a dict for each kernel and architecture."""
    kernels = []
    for name, arch, rest in re.findall(r"Compiling entry function '(\w+)' for '(\w+)'\n(.*?)(?=ptxas info *: Compiling|\Z)", log,
                                       re.DOTALL):
        def number(what, text=rest):
            found = re.search(rf"(\d+) {what}", text)
            return int(found.group(1)) if found else 0

        kernels.append({"kernel": name, "arch": arch, "registers": number("registers"), "stack": number("bytes stack frame"),
                        "spilled": number("bytes spill stores") + number("bytes spill loads"), "shared": number("bytes smem")})
    return kernels


def compile_object(command):
    target = Path(command[command.index("-o") + 1])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*command, "--resource-usage", "--keep", "--keep-dir", folder], text=True, capture_output=True,
                              errors="replace", check=False)
        ptx = "".join(path.read_text(encoding="utf-8") for path in Path(folder).glob(f"*compute_{PTX_OF}.ptx"))
    log = done.stdout + done.stderr
    said = re.sub(r"^(ptxas info.*| +\d+ bytes stack frame.*)\n", "", log, flags=re.MULTILINE)
    sys.stderr.write(said)
    if done.returncode != 0:
        return done.returncode
    kernels, flops = kernels_of(log), flops_of(ptx)
    for kernel in kernels:
        kernel["flops"] = flops.get(kernel["kernel"])
        kernel["kernel"] = short_name(kernel["kernel"])
    spilling = [k for k in kernels if k["spilled"]]
    for k in spilling:
        print(f"error: [kernel] {k['kernel']} for {k['arch']} spills {k['spilled']} bytes at {k['registers']} registers, "
              "0 are allowed; make it smaller, or its thread blocks", file=sys.stderr)
    if spilling:
        target.unlink(missing_ok=True)
        return 1
    version = re.search(r"release ([\d.]+)", subprocess.run([command[0], "--version"], text=True, capture_output=True,
                                                            check=False).stdout)
    Path(f"{target}.kernels.json").write_text(json.dumps({"nvcc": version.group(1) if version else "?", "kernels": kernels}, indent=1),
                                              encoding="utf-8")
    return 0


def constant(path, name):
    return int(re.search(rf"\b{name} = (\d+)", (ROOT / path).read_text(encoding="utf-8")).group(1))


def states_of(rule):
    """The moments of a rule, by its header: a number, or one where its first template argument says momentum."""
    name = re.match(r"(\w+)Rule", rule).group(1).lower()
    said = re.search(r"kStates = (.*);", (ROOT / f"actors/kernels/optimizers/{name}_rule-inl.hpp").read_text(encoding="utf-8")).group(1)
    return int(said) if said.isdigit() else int("Rule<true" in rule)


def per_element(name):
    """(bytes that are read and written for an element, elements of a pass through the code), in place, of a model in bf16
    with bf16 gradients; of an activation's result, a logit, an element of a norm or a head, in the kernel's type, and None, since
    their code has a path for each kind of model; None: a kernel without elements."""
    kernel, _, arguments = name.partition("<")
    split = arguments.endswith("true>")
    weight = 2 * 2 + 2 * 2 if split else 2 * 4 + 2  # master read and written; the weight that is cast from it
    if kernel == "update_elements":
        moment = 2 if "Bf16" in arguments else 4
        return 2 + weight + 2 * moment * states_of(arguments), 1
    if kernel == "update_blocks":
        block = constant("actors/kernels/state_layout.hpp", "kScaleGroup")
        return 2 + weight + states_of(arguments) * (2 + 2 / block), block // WARP
    if kernel == "restore_elements":
        return 4 + 2, 1
    of_rows = {"activate": 3, "activate_back": 5, "norm_rows": 2, "norm_rows_back": 4, "take_losses": 3, "turn_heads": 2,
               "turn_heads_back": 3}  # elements that are moved for one
    if kernel in of_rows:
        return of_rows[kernel] * (4 if "F32" in arguments else 2), None
    if kernel in ("add_with_norm", "add_alone"):  # one rank's gradient, to what the accumulator holds
        return (4 if arguments == "float>" else 2) + 2 * 4, 1
    return None


def occupancy(registers, threads):
    warps = -(-registers * WARP // GRAIN) * GRAIN
    blocks = min(THREADS // threads, REGISTERS // (warps * threads // WARP))
    return blocks * threads / THREADS


def row(name, of_arch, source):
    registers = [of_arch[gpu.arch]["registers"] for gpu in GPUS]
    threads = constant(source, "kThreads")
    cells = [f"`{name}`", " ".join(map(str, registers)), str(max(k["stack"] for k in of_arch.values())),
             str(of_arch[GPUS[0].arch]["shared"]), f"{100 * min(occupancy(r, threads) for r in registers):.0f} %"]
    element = per_element(name)
    if element is None:
        return [*cells, "", "", "", "", ""]
    size, elements = element
    memory = [size / gpu.bytes_per_s for gpu in GPUS]
    times = " ".join(f"{1e12 * m:.2f}" for m in memory)
    if elements is None:
        return [*cells, f"{size:.3g}", "", "", "", times]
    flops = {bits: of_arch[GPUS[0].arch]["flops"][bits] / elements for bits in ("32", "64")}
    compute = max((flops["32"] / gpu.fp32 + flops["64"] / gpu.fp64) / m for gpu, m in zip(GPUS, memory))
    room = min(gpu.instructions * m for gpu, m in zip(GPUS, memory))
    return [*cells, f"{size:.3g}", f"{sum(flops.values()):.3g}", f"{'memory' if compute < 1 else '**compute**'}, {100 * compute:.0f} %",
            f"{room:.0f}", times]


def markdown(head, rows):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def table(build):
    """The page's lines, and the nvcc that built."""
    found, versions = {}, set()
    reports = sorted(build.rglob("*.cu.o.kernels.json"))
    for path in reports:
        report = json.loads(path.read_text(encoding="utf-8"))
        versions.add(report["nvcc"])
        source = re.search(r"(\w+)/CMakeFiles/[^/]+/(.*\.cu)\.o", str(path))
        for kernel in report["kernels"]:
            found.setdefault((f"{source[1]}/{source[2]}", kernel["kernel"]), {})[kernel["arch"]] = kernel
    if len(versions) != 1:
        return "", f"{build} has kernels of {len(versions)} nvccs; build with one"
    if not all(gpu.arch in of_arch for of_arch in found.values() for gpu in GPUS):
        return "", f"{build} was not built for {', '.join(gpu.arch for gpu in GPUS)}"
    rows = [row(name, of_arch, source) for (source, name), of_arch in sorted(found.items())]
    head = ["kernel", "registers", "stack, bytes", "shared, bytes", "occupancy", "bytes", "FLOPs", "bound", "room", "ms for 1e9"]
    gpus = [[f"{gpu.name} ({gpu.arch})", f"{gpu.bytes_per_s / 1e12:g}", f"{gpu.fp32 / 1e12:g}", f"{gpu.fp64 / 1e12:g}",
             f"{gpu.instructions / 1e12:g}"] for gpu in GPUS]
    return f"Built by nvcc {versions.copy().pop()}. Figures for {', '.join(gpu.arch for gpu in GPUS)}, in this order.\n\n" \
           f"{markdown(head, rows)}\n\n{markdown(['public figures', 'TB/s', 'fp32 TFLOPS', 'fp64 TFLOPS', '1e12 instructions/s'], gpus)}\n", ""


def page(arguments):
    made, fault = table(Path(arguments[-1]))
    before, old, after = page_block.parts(PAGE.read_text(encoding="utf-8"), COMMAND)
    if fault:
        print(f"kernels: {fault}")
        return SKIPPED
    if "--update" in arguments:
        PAGE.write_text(before + made + after, encoding="utf-8")
    elif made != old:
        if made.split("\n")[0] != old.split("\n")[0]:
            print(f"kernels: the page says \"{old.splitlines()[0] if old else 'nothing'}\", this build: {made.splitlines()[0]}")
            return SKIPPED
        print(f"docs/kernels.md is not what ptxas says of this build; {COMMAND} writes it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(compile_object(sys.argv[2:]) if sys.argv[1] == "compile" else page(sys.argv[2:]))
