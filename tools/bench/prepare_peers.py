"""./tandem prepare against `datasets.map` with the fast tokenizer, side by side: MB of JSON per second, from the file to
token ids on disk, in interleaved rounds, each in a process of its own.

    .venv/bin/python -m pip install datasets==5.2.0
    .venv/bin/python tools/bench/prepare_peers.py --model DIR --dataset instructions.json [--processes 2] [--rounds 5]

The peer makes what our file holds: ids of the whole text with an end token, and labels that leave the question out, whose
length is that of its ids. The result is the ratio within one round; its median and range are printed, and one line of JSON. On a machine that has
other work, too, only the ratio of the processors' time means something.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PEER = '''
import sys
import datasets
from transformers import AutoTokenizer

model, data, out, processes = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model)

def question(instruction, given):
    return f"### Instruction:\\n{instruction}\\n\\n" + (f"### Input:\\n{given}\\n\\n" if given.strip() else "") + "### Response:\\n"

def encode(batch):
    questions = [question(*pair) for pair in zip(batch["instruction"], batch["input"])]
    ids = [found + [tokenizer.eos_token_id] for found in tokenizer([q + a for q, a in zip(questions, batch["output"])])["input_ids"]]
    lengths = [len(found) for found in tokenizer(questions)["input_ids"]]
    return {"input_ids": ids, "labels": [[-100] * n + found[n:] for n, found in zip(lengths, ids)]}

records = datasets.load_dataset("json", data_files=data, split="train")
records.map(encode, batched=True, num_proc=int(processes) if int(processes) > 1 else None, remove_columns=records.column_names).save_to_disk(out)
'''


def seconds(command, environment):
    """(by the clock, of processors)"""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - begin, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ratios(ours, peers):
    """Median and range, as text and as a number."""
    found = sorted(peer / our for our, peer in zip(ours, peers))
    return f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})", statistics.median(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder with tokenizer.json")
    parser.add_argument("--dataset", required=True, help="instruction records, .json or .jsonl")
    parser.add_argument("--processes", type=int, default=1, help="of datasets.map; 1: the tokenizer's own threads")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    megabytes = Path(args.dataset).stat().st_size / 1e6
    ours, peers = [], []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix="tandem-prepare-") as folder:
            prepare = [sys.executable, "-I", str(ROOT / "tools/run_module.py"), "prepare", "--model_name", args.model, "--dataset_name", args.dataset, "--output", f"{folder}/x.tokens"]
            ours.append(seconds(prepare, {}))
            peer = [sys.executable, "-P", "-c", PEER, args.model, args.dataset, f"{folder}/peer", str(args.processes)]
            threads = "true" if args.processes == 1 else "false"
            peers.append(seconds(peer, {"HF_HOME": f"{folder}/cache", "HF_DATASETS_CACHE": f"{folder}/cache", "TOKENIZERS_PARALLELISM": threads}))
        print(f"prepare {megabytes / ours[-1][0]:6.2f} MB/s   datasets.map {megabytes / peers[-1][0]:6.2f} MB/s", flush=True)
    (clock, clock_ratio), (processors, processor_ratio) = (ratios(*zip(*[(our[n], peer[n]) for our, peer in zip(ours, peers)])) for n in (0, 1))
    print(f"datasets.map takes {clock} times as long, and {processors} times the processors' time")
    print(json.dumps({"dataset_mb": megabytes, "prepare_s": ours, "datasets_map_s": peers, "processes": args.processes,
                      "median_ratio": clock_ratio, "median_processor_ratio": processor_ratio}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
