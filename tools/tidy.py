#!/usr/bin/env python3
"""The lint: rules that a compiler does not check. Run from anywhere; prints each breach, exit 1 if there is one.

- includes go down only: runtime <- actors <- engine <- models <- trainer <- examples, tools; LibTorch from
  engine/ upward; nothing includes a program of examples/
- inside a layer a room includes the rooms that tools/rooms.py lists, and no other
- the field's words: those of WORDS are not used, and each names the one to use
- a header says `#pragma once`, a file begins with a comment that says what it is for (headers)
- a folder has at most 25 sources directly in it; runtime/'s public headers, which embedders include, may be more
- a comment's sentence begins with its subject: at most one in a hundred of a layer's sentences begins with one of the words
  What, Of, Who, Whom and Whose
- a function has at most 70 lines, from its name to its closing brace; tests, and tables of constants, may have more
- no file over 500 lines, no line over 100 columns (tests: 160), no tabs, no unfinished-work markers
"""

import re
import sys
from collections import Counter
from pathlib import Path

import rooms

ROOT = Path(__file__).resolve().parent.parent
LAYERS = rooms.LAYERS
MAY_INCLUDE = {layer: set(LAYERS[: i + 1]) for i, layer in enumerate(LAYERS)}
MAX_LINES, MAX_COLUMNS, MAX_FILES = 500, 100, 25
MAX_COLUMNS_TESTS = 160  # literals of other formats read better whole
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")

# Ranks may be threads of one process, so a layer that changes these changes the others' kernels, too.
PROCESS_WIDE = re.compile(r"globalContext\(\)\s*\.\s*set|setSDP\w+\(")

# Words that this tree does not use, and the field's word for the same thing. docs/glossary.md has those that are ours.
WORDS = [(re.compile(pattern), word) for pattern, word in [
    (r"\b[Tt]wins?\b|_twins?\b|Twin[A-Z]", "shadow"),
    (r"\bkAhead\b|\bkAgain\b|pass_ahead|undo_ahead|UndoUpdates", "speculative, redo, rollback"),
    (r"StatePlace\b|forced_places|PlacedUnit", "placement"),
    (r"PartRanks|part_ranks|LineOrders", "ExpertParallelGroup, ep_size, communicator"),
    (r"ProductStart|\bmultiply_\w+|[Mm]atrix product", "matmul"),
    (r"\b[Pp]ictures?\b", "image"),
    (r"\b[Bb]orders?\b", "boundary"),
    (r"ShmLane|\bLane lane\b", "channel, comm stream, queue; a lane is the compute lane or SIMD's"),
    (r"\b[Mm]ail\b|\bMail[A-Z]|[Oo]wed_?[Aa]nswer|\b[Bb]ounced?\b|LinePlace", "envelope, pending reply, wait ticket"),
    (r"[Cc]ulprit|break_off|whose fault", "failed rank, abort"),
    (r"sent_out\b|\bcast-out\b|keeps_weight", "model weight, backup"),
    (r"NoiseKey|noise_key|random rounding", "rounding key, stochastic rounding"),
    (r"[Rr]esidency|reduce_whole", "sharding, replicated"),
    (r"NormWords|norm_words|trade_words", "limbs, payload"),
    (r"ShmBoard|ShmMesh|look_for_leavers|\brung\b", "ShmSync, bootstrap, notify"),
    (r"namespace plain\b|by_plain_operations|PlainNet", "aten"),
    (r"settle_vector_math|tune_process|\bOneThread\b", "warm_up_vml, reexec_with_tuned_env, SingleThreadGuard"),
    (r"\b[Kk]nobs?\b", "option, setting"),
    (r"[Ff]ront door|[Hh]ouse rules?", "CLI, lint"),
    (r"\bas ever\b|\bfor good\b|who comes next|through with", "a plain statement"),
    (r"\b([Nn]obody|[Ss]omebody|[Aa]nybody|[Ww]hoever)\b", "the subject's name: no rank, a thread, the caller"),
    (r"\b[Ss]o many\b", "the number: how many, or what it is called"),
]]


def wrong_words(line):
    for pattern, word in WORDS:
        found = pattern.search(line)
        if found:
            yield f"\"{found[0]}\" is not a word of this tree; the field says: {word}"


def breaches(path):
    relative = path.relative_to(ROOT)
    layer = relative.parts[0]
    lines = path.read_text(encoding="utf-8").split("\n")
    if len(lines) - 1 > MAX_LINES:
        yield 1, f"{len(lines) - 1} lines, at most {MAX_LINES}: split it by idea"
    if path.suffix in {".hpp", ".cuh"}:
        if "#pragma once" not in lines and not path.name.endswith("-inl.hpp"):  # those are included once per target
            yield 1, "a header needs #pragma once"
        if not lines[0].startswith("// " + str(relative)):
            yield 1, f"a header begins with `// {relative} — what it is for`"
    if layer != "tests":
        yield from long_functions(path)
    for found in AWAITED_CHOICE.finditer("\n".join(lines) if path.name not in AWAITS_CHOICES else ""):
        yield found.string.count("\n", 0, found.start()) + 1, (
            "g++ 14 makes the temporaries of both branches: put the task into a variable, and await that")
    for number, line in enumerate(lines, 1):
        limit = MAX_COLUMNS_TESTS if layer == "tests" else MAX_COLUMNS
        if len(line) > limit:
            yield number, f"{len(line)} columns, at most {limit}"
        if "\t" in line:
            yield number, "a tab"
        for fault in wrong_words(line):
            yield number, fault
        if layer == "models" and PROCESS_WIDE.search(line):
            yield number, "models/ changes no setting of LibTorch's whole process: call the kernel by name"
        if UNFINISHED.search(line):
            yield number, "unfinished work does not stay in the tree"
        include = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
        fault = rooms.breach(str(relative), include.group(1)) if include else None
        if fault:
            yield number, fault
        if include and include.group(1).startswith("examples/") and layer != "examples":
            yield number, f"{layer}/ must not include examples/: a program is no part; what several need belongs to trainer/"
        if include and layer in MAY_INCLUDE:
            target = include.group(1).split("/")[0]
            if target in LAYERS + ["examples", "tools"] and target not in MAY_INCLUDE[layer]:
                yield number, f"{layer}/ must not include {target}/"
            room = rooms.room_of(str(relative))
            if (layer in {"runtime", "actors"} or room in rooms.CORE) and target in {"ATen", "torch", "c10"}:
                yield number, f"{room}/ knows nothing of LibTorch"


AWAITED_CHOICE = re.compile(r"\? co_await\b|^\s*: co_await\b|\bco_await \([^;]*?\?\s*[\w.>:-]+\(", re.MULTILINE)
AWAITS_CHOICES = {"await_battery_test.cpp", "coroutine_check.cpp"}
MAX_FUNCTION_LINES = 70
NO_FUNCTION = re.compile(r" *(?:template|namespace|struct|class|enum|union|extern|using|typedef|public|private|protected)\b|[^(]*=")


def long_functions(path):
    """(line, fault) of each function that does not fit a screen. The tree is formatted, so a function's closing brace has
    the indentation of its first line."""
    begins = {}  # indentation -> the line of what begins there, None: no function
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        indent = len(line) - len(line.lstrip())
        if not line.strip() or line.lstrip().startswith(("//", "#", "*", ")", ":")):
            continue
        if re.match(r" *\}(?:;|$)", line):
            first = begins.pop(indent, None)
            if first and number - first + 1 > MAX_FUNCTION_LINES:
                yield first, f"a function of {number - first + 1} lines, at most {MAX_FUNCTION_LINES}: split it by idea"
        elif indent <= 4:
            begins[indent] = None if NO_FUNCTION.match(line) or line.endswith(";") else number


HEADLESS = re.compile(r"(What|Of|Who|Whom|Whose) [a-z`]")
HEADLESS_PERCENT_MAX = 1


def sentences(path):
    """(line, text) of each sentence in the comments of whole lines; a list's item begins one, too."""
    run, first = "", 0
    for number, line in enumerate([*path.read_text(encoding="utf-8").split("\n"), ""], 1):
        comment = re.match(r"\s*//[/!]? ?(.*)", line)
        if comment and not re.match(r"(NOLINT|clang-format)", comment[1]):
            first = first if run else number
            run += comment[1] + " "
        elif run:
            for sentence in re.split(r"(?<=[.!?:]) +", run.strip()):
                yield first, sentence
            run = ""


def headless_layers():
    """A layer in which too many sentences have no subject at their beginning, with the places of some."""
    count, headless = Counter(), {}
    for path in rooms.sources():
        layer = path.relative_to(ROOT).parts[0]
        for number, sentence in sentences(path):
            count[layer] += 1
            if HEADLESS.match(sentence):
                headless.setdefault(layer, []).append(f"{path.relative_to(ROOT)}:{number}: {sentence[:60]}")
    for layer, places in sorted(headless.items()):
        if len(places) * 100 > HEADLESS_PERCENT_MAX * count[layer]:
            yield (f"{layer}/: {len(places)} of {count[layer]} sentences begin with What, Of or Who, at most {HEADLESS_PERCENT_MAX} %: "
                   "begin with the subject:\n  " + "\n  ".join(places[:10]))


def types_of(path):
    """The types that a header defines in a namespace: (namespace, name)."""
    namespace = ""
    for line in path.read_text(encoding="utf-8").split("\n"):
        opened = re.match(r"namespace ([\w:]+) \{", line)
        namespace = opened[1] if opened else namespace
        defined = re.match(r"(?:struct|class|enum class) (\w+)\b(?!::|<)[^;]*$", line)
        if defined:
            yield namespace, defined[1]


def types_of_one_name():
    """Two types that are both called tandem::X are undefined behaviour in a program that has both: one's destructor
    serves the other, and no linker says so."""
    places = {}
    for path in rooms.sources():
        if path.suffix == ".hpp" and not path.name.endswith("-inl.hpp"):
            for found in types_of(path):
                places.setdefault(found, []).append(str(path.relative_to(ROOT)))
    for (namespace, name), paths in sorted(places.items()):
        if len(paths) > 1:
            yield f"{namespace}::{name} is defined in {' and '.join(paths)}: name one of them for what it is"


def crowded_folders():
    count = Counter(str(path.relative_to(ROOT).parent) for path in rooms.sources())
    for folder, files in sorted(count.items()):
        if files > MAX_FILES and folder != "runtime":
            yield f"{folder}/ has {files} sources, at most {MAX_FILES}: split it into rooms"


def main():
    found = [(path.relative_to(ROOT), number, what) for path in rooms.sources() for number, what in breaches(path)]
    for path, number, what in found:
        print(f"{path}:{number}: {what}")
    faults = [*crowded_folders(), *headless_layers(), *types_of_one_name(), *rooms.table_faults(), *rooms.page_faults(update=False)]
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if found or faults else 0


if __name__ == "__main__":
    sys.exit(main())
