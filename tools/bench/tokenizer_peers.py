#!/usr/bin/env python3
"""Our tokenizer beside Hugging Face's `tokenizers`: MB/s of the texts of instruction records, on one thread and on several.

    .venv/bin/python tools/bench/tokenizer_peers.py --tokenizer DIR [DIR ...] --dataset alpaca_data.json[.xz]
        [--threads 1 2] [--rounds 5] [--build build/release] [--record F.md]

In turns, each in a process of its own and with a tokenizer that has met no word yet: bench_tokenizer's `encode`, and
`encode_batch_fast` (all texts at once; RAYON_NUM_THREADS sets its threads) with the same texts in memory on both sides. The
ratio is taken round by round; its median and range are printed. First the ids of all texts are compared, one by one: a
difference ends the run (--rounds 0: nothing else; --times_only: not this). A tokenizer's folder may hold tokenizer.json.xz.
--record puts what is printed at the end of a page.
"""

import argparse
import datetime
import json
import lzma
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PEER = '''
import json, sys, time
from tokenizers import Tokenizer

folder, texts = sys.argv[1:]
texts = json.load(open(texts))
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
begin = time.perf_counter()
ids = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
print(time.perf_counter() - begin)
'''


def unpacked(path, folder):
    """A file, or what is packed in FILE.xz, as a file."""
    packed = path if path.suffix == ".xz" else path.with_name(path.name + ".xz")
    if path.is_file() and path.suffix != ".xz":
        return path
    there = folder / packed.stem
    there.write_bytes(lzma.open(packed).read())
    return there


def text_of(record):
    given = record.get("input") or ""
    return (f"### Instruction:\n{record['instruction']}\n\n" + (f"### Input:\n{given}\n\n" if given.strip() else "")
            + f"### Response:\n{record['output']}")


def require_same_ids(build, folder, texts):
    """How many ids there are in all."""
    from tokenizers import Tokenizer
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run([build / "bin/tandem", "tokenize", "--model_name", folder], input=lines, capture_output=True, text=True, check=True)
    ours = [json.loads(line) for line in done.stdout.splitlines()]
    theirs = [found.ids for found in Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch_fast(texts, add_special_tokens=False)]
    if ours != theirs:
        at = next(i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1])
        sys.exit(f"error: [tokenizer] {folder}: text {at} has the ids {ours[at]} here and {theirs[at]} there")
    return sum(map(len, ours))


def our_seconds(build, folder, dataset, threads):
    command = [build / "bin/bench_tokenizer", f"--tokenizer={folder}", f"--dataset={dataset}", f"--threads={threads}",
               "--benchmark_filter=encode", "--benchmark_format=json", "--benchmark_min_time=0"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["benchmarks"][0]["real_time"] / 1e3


def their_seconds(folder, texts, threads):
    done = subprocess.run([sys.executable, "-P", "-c", PEER, str(folder), str(texts)], capture_output=True, text=True, check=True,
                          env=os.environ | {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": str(threads > 1).lower()})
    return float(done.stdout)


def record(path, title, command, lines):
    """Adds the printed lines, with the command and the machine, to the end of a page."""
    cpu = next(line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    with path.open("a", encoding="utf-8") as page:
        head = "" if page.tell() else f"# {title}\n\n{datetime.date.today()}, {cpu}, {os.cpu_count()} CPUs.\n"
        page.write(f"{head}\n```\n{' '.join([command, *sys.argv[1:]]).replace(f'{ROOT}/', '')}\n```\n\n{chr(10).join(lines).strip()}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, nargs="+", required=True)
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, os.cpu_count()}))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--times_only", action="store_true")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    import tokenizers
    lines, same = [], []

    def say(line):
        lines.append(line)
        print(line, flush=True)

    with tempfile.TemporaryDirectory(prefix="tandem-tokenizer-") as name:
        folder = Path(name)
        dataset = unpacked(args.dataset, folder)
        records = [json.loads(line) for line in dataset.read_text().splitlines()] if dataset.suffix == ".jsonl" else json.loads(dataset.read_text())
        texts = [text_of(record) for record in records]
        (folder / "texts.json").write_text(json.dumps(texts))
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        say(f"{len(texts)} texts, {megabytes:.1f} MB; tokenizers {tokenizers.__version__}")
        if args.rounds:
            say(f"MB/s, medians of {args.rounds} rounds, and the ratio's range\n")
            say("| tokenizer | threads | Tandem | tokenizers | ratio |\n|---|---|---|---|---|")
        for source in args.tokenizer:
            model = folder / source.name
            model.mkdir()
            (model / "tokenizer.json").write_bytes(unpacked(source / "tokenizer.json", model).read_bytes())
            if (source / "tokenizer_config.json").is_file():
                (model / "tokenizer_config.json").write_bytes((source / "tokenizer_config.json").read_bytes())
            if not args.times_only:
                same.append(f"{source.name}: the {require_same_ids(args.build, model, texts)} ids of all texts are the same on both sides")
            for threads in args.threads if args.rounds else []:
                pairs = [(our_seconds(args.build, model, dataset, threads), their_seconds(model, folder / "texts.json", threads))
                         for _ in range(args.rounds)]
                ours, theirs = (megabytes / statistics.median(side) for side in zip(*pairs))
                ratios = sorted(their / our for our, their in pairs)
                say(f"| {source.name} | {threads} | {ours:.1f} | {theirs:.1f} | "
                    f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f}) |")
        say("\n" + "\n".join(same) if same else "")
    if args.record:
        record(args.record, "The tokenizer beside Hugging Face's", "tools/bench/tokenizer_peers.py", lines)


if __name__ == "__main__":
    main()
