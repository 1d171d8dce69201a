#!/usr/bin/env python3
"""Writes the rows that Transformers' tokenizer makes of the demo's first records, as the fine-tuning example asks for them.

    tests/data/alpaca/make.py [FOLDER]
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from small import DATA, IGNORED, save, target

RECORDS, LENGTH = 12, 24
DEMO = DATA.parents[1] / "examples" / "demo"


def prompt(record):
    given = f"### Input:\n{record['input']}\n\n" if record.get("input", "").strip() else ""
    return f"### Instruction:\n{record['instruction']}\n\n{given}### Response:\n{record['output']}"


def main():
    from transformers import AutoTokenizer

    folder = target(__file__)
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    texts = [prompt(record) for record in json.loads((DEMO / "instructions.json").read_text(encoding="utf-8"))[:RECORDS]]
    rows = tokenizer(texts, truncation=True, max_length=LENGTH, padding="max_length", return_tensors="pt")
    ids, mask = rows["input_ids"], rows["attention_mask"]
    lengths = mask.sum(1)
    if not (int(lengths.min()) < LENGTH == int(lengths.max())):
        raise SystemExit(f"error: rows of {lengths.tolist()} tokens; some must be cut at {LENGTH}, and some be padded")
    save(folder / "rows.safetensors", {"input_ids": ids, "attention_mask": mask, "labels_padding_ignored": torch.where(mask.bool(), ids, IGNORED)})


if __name__ == "__main__":
    main()
