#!/usr/bin/env python3
"""The rooms of the house: which folder of a layer may include which other one. tidy.py enforces this table, and
`tools/rooms.py --update` draws it into docs/rooms.md, from the includes that are there.

A room is a folder; runtime/'s public headers and detail/ are one room. Layers include downward only, and a room of a lower
layer is open to every room above it, except detail/, which is its own layer's (and the tests').
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["runtime", "actors", "engine", "models", "trainer", "tools"]
PAGE = ROOT / "docs/rooms.md"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
ONE_ROOM = {"runtime/detail": "runtime", "runtime/detail/mailbox": "runtime"}
UMBRELLA = "runtime/runtime.hpp"  # a room by itself
# The rooms of the engine that are tandem::core, as its build file lists them: they know nothing of LibTorch.
CORE = [f"engine/{room}" for room in
        re.search(r"^set\(core ([^)]*)\)", (ROOT / "engine/CMakeLists.txt").read_text(encoding="utf-8"), re.MULTILINE)[1].split()]

# Room -> the rooms of its layer that it may include. Every arrow is used, and there is no circle.
MAY_INCLUDE = {
    "runtime/util": [],
    "runtime/system": ["runtime/util"],
    "runtime": ["runtime/system", "runtime/util"],
    "runtime/io": ["runtime", "runtime/system", "runtime/util"],
    "runtime/supervision": ["runtime", "runtime/io", "runtime/system", "runtime/util"],
    "runtime/device": ["runtime", "runtime/io", "runtime/system", "runtime/util"],
    "runtime/sim": ["runtime", "runtime/io", "runtime/util"],
    "runtime/ucx": ["runtime", "runtime/io", "runtime/util"],
    "runtime/interop": ["runtime", "runtime/util"],
    "runtime/testing": ["runtime"],
    UMBRELLA: ["runtime", "runtime/io", "runtime/supervision", "runtime/util"],
    "actors/kernels": [],
    "actors/memory": [],
    "actors/storage": ["actors/kernels", "actors/memory"],
    "actors/kernels/optimizers": ["actors/kernels"],
    "actors/kernels/update": ["actors/kernels", "actors/kernels/optimizers"],
    "actors/gpu": ["actors/kernels/update"],
    "actors/collectives": ["actors/gpu", "actors/kernels", "actors/memory"],
    "actors/collectives/shm": ["actors/collectives", "actors/collectives/hosts"],
    "actors/collectives/hosts": ["actors/collectives"],
    "actors/collectives/nccl": ["actors/collectives", "actors/collectives/hosts", "actors/collectives/shm",
                                "actors/gpu"],
    "actors": ["actors/collectives", "actors/kernels", "actors/memory"],
    "actors/optimizer": ["actors", "actors/gpu", "actors/kernels", "actors/kernels/update", "actors/memory"],
    "actors/checkpoint": ["actors/kernels/update", "actors/memory", "actors/optimizer", "actors/storage"],
    "engine/types": [],
    "engine/schedule": [],
    "engine/config": ["engine/schedule"],
    "engine/data": [],
    "engine/model": ["engine/data", "engine/tensors", "engine/types"],
    "engine/metrics": ["engine/config", "engine/types"],
    "engine/rendezvous": [],
    "engine/distributed": ["engine/rendezvous", "engine/types"],
    "engine/exchange": ["engine/device", "engine/distributed", "engine/tensors", "engine/types"],
    "engine/layout": ["engine/config", "engine/types"],
    "engine/scaling": ["engine/distributed"],
    "engine/device": ["engine/distributed", "engine/types"],
    "engine/memory": ["engine/config", "engine/layout", "engine/types"],
    "engine/placement": ["engine/config", "engine/memory", "engine/metrics", "engine/types"],
    "engine/plan": ["engine/config", "engine/device", "engine/distributed", "engine/memory", "engine/placement",
                    "engine/types"],
    "engine/rank": ["engine/config", "engine/device", "engine/layout", "engine/metrics", "engine/types"],
    "engine/step": ["engine/layout", "engine/rank", "engine/types"],
    "engine/checkpoint": ["engine/distributed", "engine/rank", "engine/step", "engine/types"],
    "engine/tensors": ["engine/device", "engine/layout", "engine/placement", "engine/rank", "engine/types"],
    "engine/run": ["engine/checkpoint", "engine/config", "engine/data", "engine/device", "engine/distributed", "engine/exchange",
                   "engine/layout", "engine/metrics", "engine/rank", "engine/schedule", "engine/step", "engine/tensors",
                   "engine/types"],
    "engine": ["engine/config", "engine/data", "engine/device", "engine/distributed", "engine/layout", "engine/metrics",
               "engine/model", "engine/plan", "engine/run", "engine/step", "engine/tensors", "engine/types"],
    "models/kernels": [],
    "models/kernels/attention": ["models/kernels"],
    "models/layers": ["models/kernels", "models/kernels/attention"],
    "models/layers/sequence": ["models/layers"],
    "models/gpu": ["models/kernels"],
    "models/layers/aten": ["models/gpu", "models/kernels", "models/layers", "models/layers/sequence"],
    "models/transformer": ["models/kernels", "models/kernels/attention", "models/layers", "models/layers/aten", "models/layers/sequence"],
    "models/io": ["models/kernels", "models/layers"],
    "models/io/tokenizer": ["models/io"],
    "models/foreign": ["models/io"],
    "models/convert": ["models/foreign"],
    "models/data": ["models/io/tokenizer"],
    "models/families": ["models/io", "models/transformer"],
    "models/moe": ["models/io", "models/layers"],
    "models/cifar/kernels": ["models/kernels"],
    "models/cifar": ["models/cifar/kernels", "models/io", "models/kernels", "models/layers", "models/moe"],
    "models/hub": [],
    "models": ["models/families", "models/hub", "models/io", "models/io/tokenizer", "models/transformer"],
    "trainer/program": [],
    "trainer/report": [],
    "trainer/flags": ["trainer/program"],
    "trainer/folder": ["trainer/flags", "trainer/report"],
    "trainer/metrics": ["trainer/folder", "trainer/program", "trainer/report"],
    "trainer": ["trainer/flags", "trainer/folder", "trainer/metrics", "trainer/program", "trainer/report"],
    "trainer/finetune": ["trainer", "trainer/flags", "trainer/metrics"],
    "trainer/cifar": ["trainer", "trainer/flags"],
    "tools/launch": [],
    "tools/cli": ["tools/launch"],
    "tools/demo": [],
    "tools/gpu": [],
}


def room_of(file):
    if file == UMBRELLA:
        return file
    folder = file.rpartition("/")[0]
    return ONE_ROOM.get(folder, folder)


def sources():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.split("\n") if listed.returncode == 0 else [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
    for name in names:
        path = ROOT / name
        if path.suffix in {".hpp", ".cpp", ".cu", ".cuh"} and path.is_file():
            yield path


def arrows():
    """(room, included room) of one layer -> how many includes."""
    found = defaultdict(int)
    for path in sources():
        name = str(path.relative_to(ROOT))
        if name.split("/")[0] in LAYERS:
            for target in INCLUDE.findall(path.read_text(encoding="utf-8")):
                a, b = room_of(name), room_of(target)
                if a != b and a.split("/")[0] == b.split("/")[0]:
                    found[a, b] += 1
    return found


def breach(file, target):
    """Returns the fault in an include of `target` by `file`, or None."""
    layer, other = file.split("/")[0], target.split("/")[0]
    if other not in LAYERS:
        return None
    if "/detail/" in target and other != layer and layer != "tests":
        return f"{target} is {other}/'s own; use its public headers"
    if layer != other or layer not in LAYERS:
        return None
    a, b = room_of(file), room_of(target)
    if a not in MAY_INCLUDE:
        return f"{a}/ is no room; tools/rooms.py lists them"
    if a != b and b not in MAY_INCLUDE[a]:
        return f"{a}/ must not include {b}/; it may include: {', '.join(MAY_INCLUDE[a]) or 'no other room'}"
    return None


def table_faults():
    """Arrows of the table that no include uses, those that leave the core, and circles."""
    for room in CORE:
        for target in set(MAY_INCLUDE[room]) - set(CORE):
            yield f"tools/rooms.py lets {room}/, which is of the core, include {target}/, which is not"
    used = set(arrows())
    for room, targets in MAY_INCLUDE.items():
        for target in targets:
            if (room, target) not in used:
                yield f"tools/rooms.py allows {room}/ -> {target}/, which no include needs"
    state = {}

    def visit(room, path):
        if state.get(room) == "open":
            return [*path, room]
        if room not in state:
            state[room] = "open"
            for target in MAY_INCLUDE[room]:
                circle = visit(target, [*path, room])
                if circle:
                    return circle
            state[room] = "done"
        return None

    for room in MAY_INCLUDE:
        circle = visit(room, [])
        if circle:
            yield "tools/rooms.py has a circle: " + " -> ".join(circle)
            return


def essential(room):
    """The arrows of a room that no longer way implies: what one would draw on a whiteboard."""
    def reach(start):
        seen = set()
        todo = list(MAY_INCLUDE[start])
        while todo:
            current = todo.pop()
            if current not in seen:
                seen.add(current)
                todo += MAY_INCLUDE[current]
        return seen

    return [t for t in MAY_INCLUDE[room] if not any(t in reach(other) for other in MAY_INCLUDE[room] if other != t)]


def picture(layer):
    def node(room):
        return room.replace("/", "_").replace(".", "_")

    def label(room):
        return "public headers, detail/" if room == "runtime" else room.removeprefix(layer + "/") + ("" if room == UMBRELLA else "/")

    lines = ["```mermaid", "flowchart BT"]
    rooms = [room for room in MAY_INCLUDE if room.split("/")[0] == layer]
    for room in rooms:
        lines.append(f'  {node(room)}["{label(room) if room != layer or layer == "runtime" else layer + "/"}"]')
    for room in rooms:
        for target in essential(room):
            lines.append(f"  {node(room)} --> {node(target)}")
    return "\n".join([*lines, "```"])


def page_faults(update):
    text = PAGE.read_text(encoding="utf-8")
    wanted = text
    for layer in LAYERS:
        block = re.compile(rf"(<!-- rooms: {layer} -->\n)```mermaid\n.*?```", re.DOTALL)
        if not block.search(text):
            yield f"docs/rooms.md has no block `<!-- rooms: {layer} -->`"
        wanted = block.sub(lambda m, p=picture(layer): m[1] + p, wanted)
    if wanted != text and update:
        PAGE.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        yield "docs/rooms.md draws other rooms than there are; tools/rooms.py --update"


def main():
    if sys.argv[1:] not in ([], ["--update"]):
        print(__doc__.splitlines()[0], "\nusage: rooms.py [--update]", file=sys.stderr)
        return 2
    faults = [*table_faults(), *page_faults(sys.argv[1:] == ["--update"])]
    if not sys.argv[1:]:
        for (a, b), count in sorted(arrows().items()):
            print(f"{a} -> {b}: {count}")
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
