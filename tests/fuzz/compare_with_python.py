#!/usr/bin/env python3
"""Compares the readers with Python's: safetensors files that are accepted or refused, and ids of texts.

usage: compare_with_python.py BIN [--files N] [--texts N] [--seed S]

BIN is a folder with the programs (build/release/bin). Files are made at random, most of them with a fault. A file that
Python accepts may be refused for a reason that is_documented() names; one that Python refuses must be refused. Every text has the
same ids in both, for each tokenizer of corpus/tokenizer. Prints one JSON object; exit 1 where they disagree, 77 where
Python's libraries are missing.
"""

import argparse
import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import safetensors
    import tokenizers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

CORPUS = Path(__file__).resolve().parent / "corpus"
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1, "I8": 1, "I16": 2, "U16": 2,
         "U32": 4, "U64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "C64": 8, "F8_E8M0": 1, "F4": 1, "F6_E2M3": 1}
PACKED = ("F4", "F6_E2M3", "F6_E3M2")


def is_documented(data):
    """Refused although Python accepts it: a type whose elements share bytes, or blanks before the header."""
    size = struct.unpack("<Q", data[:8])[0]
    header = data[8:8 + size]
    if header[:1] != b"{":
        return True
    return any(isinstance(tensor, dict) and tensor.get("dtype") in PACKED for tensor in json.loads(header).values())


def random_header(random):
    """A header that is right, and the bytes that its tensors have."""
    header, at = {}, 0
    if random.random() < 0.3:
        header["__metadata__"] = random.choice([{"format": "pt"}, {}, {"a": "b"}, None, [], {"a": 1}, "x"])
    for i in range(random.randint(0, 4)):
        dtype = random.choice(list(SIZES))
        shape = [random.choice((0, 1, 2, 3, 4, 5)) for _ in range(random.randint(0, 4))]
        size = SIZES[dtype]
        for extent in shape:
            size *= extent
        name = random.choice("abcdefgh") + str(i) if random.random() < 0.95 else random.choice(["", "\u00e9", "__metadata__",
                                                                                               "a\u0000", "\u2028"])
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return header, at


def spoil_tensor(random, header, name, size):
    """One member of one tensor changed; the bytes that there are then."""
    tensor = header[name]
    fault = random.randrange(9)
    if fault == 0:
        tensor["data_offsets"][random.randrange(2)] += random.choice((-1, 1, 8, -8, 2**40))
    elif fault == 1:
        tensor["shape"].append(random.choice((0, 1, 2, 2**31, 2**62, -1, 1.0, "1", None)))
    elif fault == 2:
        tensor["dtype"] = random.choice(["F32", "f32", "F31", "", None, 5, "U8"])
    elif fault == 3:
        tensor.pop(random.choice(["dtype", "shape", "data_offsets"]))
    elif fault == 4:
        tensor["data_offsets"] = random.choice([[], [0], [0, 0, 0], [size, 0], None, "x", [0.0, 0.0], [True, False]])
    elif fault == 5:
        tensor["data_offsets"] = tensor["data_offsets"][::-1]
    elif fault == 6:
        tensor["shape"] = random.choice([None, [], "x", [[]], [[1]], [True]])
    elif fault == 7:
        tensor["extra"] = 1
    else:
        header[name] = random.choice([None, [], {}, "x", 1])
    return size + (random.choice((1, -1, 4)) if random.random() < 0.1 else 0)


def spoil_text(random, text):
    changed = bytearray(text)
    for _ in range(random.choice((1, 1, 2, 3))):
        if not changed:
            break
        at, kind = random.randrange(len(changed)), random.random()
        if kind < 0.4:
            changed[at] ^= 1 << random.randrange(8)
        elif kind < 0.7:
            changed[at] = random.choice(b'0123456789{}[]",:-eE.\\ \t\n\x00\xff')
        elif kind < 0.85:
            del changed[at]
        else:
            changed.insert(at, random.choice(b'0123456789{}[]",:-eE.\\ \t\n'))
    return bytes(changed)


def random_file(random):
    header, size = random_header(random)
    tensors = [name for name, value in header.items() if isinstance(value, dict) and "shape" in value]
    if tensors and random.random() < 0.6:
        size = spoil_tensor(random, header, random.choice(tensors), size)
    text = json.dumps(header, ensure_ascii=random.random() < 0.5).encode()
    kind = random.random()
    if kind < 0.25:
        text = spoil_text(random, text)
    elif kind < 0.35:
        text += random.choice([b" ", b"   ", b"\n", b"\t", b"\0", b"x", b"{}", b" " * 9])
    elif kind < 0.38:
        text = random.choice([b" ", b"\n", b"\xef\xbb\xbf"]) + text
    elif kind < 0.42:
        text = text.replace(b": ", b":").replace(b", ", b",")
    length = len(text) + (random.choice((-8, -1, 1, 8, 2**32, 2**63)) if random.random() < 0.05 else 0)
    data = struct.pack("<Q", length % 2**64) + text + b"\0" * max(0, size)
    return data[:random.randrange(len(data) + 1)] if random.random() < 0.03 else data


def python_accepts(data):
    try:
        safetensors.deserialize(data)
    except BaseException:  # the library's panics are BaseExceptions
        return False
    return True


def compare_files(programs, count, random, folder):
    path = Path(folder) / "x.safetensors"
    ours = subprocess.Popen([programs / "fuzz_verdicts"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    result = {"files": count, "agree": 0, "refused_as_documented": 0, "accepted_that_python_refuses": 0, "other": 0}
    for _ in range(count):
        data = random_file(random)
        path.write_bytes(data)
        ours.stdin.write(f"{path}\n")
        ours.stdin.flush()
        verdict = ours.stdout.readline().rstrip("\n")
        accepted, expected = verdict == "accepted", python_accepts(data)
        if accepted == expected:
            result["agree"] += 1
        elif accepted:
            result["accepted_that_python_refuses"] += 1
            print(f"accepted, and Python refuses: {data[:400]}", file=sys.stderr)
        elif is_documented(data):
            result["refused_as_documented"] += 1
        else:
            result["other"] += 1
            print(f"refused, and Python accepts: {verdict}: {data[:400]}", file=sys.stderr)
    ours.stdin.close()
    ours.wait()
    return result


ALPHABETS = ["abcdefghijklmnopqrstuvwxyz", "ABCHELO 0123456789", " \t\n\r\u00a0\u2003\u3000", "'\"!?.,;:-_()[]{}<>/\\|@#$%^&*",
             "\u00e4\u00f6\u00fc\u00df\u00e9\u0301\u0323\u0344\u0340", "\u65e5\u672c\u8a9e\u4e2d\u6587\uac00\u1100\u1161\u11a8",
             "\u0627\u0644\u0639\u0631\u0628\u064a\u0629\u064b", "\U0001f600\U0001f468\u200d\ufe0f\u2581\u212b\ufdfa\uff9e\uff9f\ufb01"]
WORDS = ["hello", "Hello", " two words", "  two words ", "<s>", "ab", " a", "don't", "we'LL", "\n\n", "   ", "12345", "x y"]


def random_text(random):
    parts = []
    for _ in range(random.randint(1, 12)):
        if random.random() < 0.4:
            parts.append(random.choice(WORDS))
        else:
            letters = random.choice(ALPHABETS)
            parts.append("".join(random.choice(letters) for _ in range(random.randint(1, 8))))
    if random.random() < 0.01:
        parts.append("".join(random.choice("\u0301\u0323\u0344\u0308") for _ in range(random.randint(33, 200))))
    return "".join(parts)


def compare_texts(programs, count, random, folder):
    names = sorted(path.stem for path in (CORPUS / "tokenizer").glob("*.json"))
    result = {"texts": 0, "equal_ids": 0}
    for index, name in enumerate(names):
        texts = [random_text(random) for _ in range(count * (index + 1) // len(names) - count * index // len(names))]
        model = Path(folder) / name
        model.mkdir()
        (model / "tokenizer.json").write_bytes((CORPUS / "tokenizer" / f"{name}.json").read_bytes())
        run = subprocess.run([programs / "tandem", "tokenize", "--model_name", model], text=True, capture_output=True, check=True,
                             input="".join(json.dumps(text) + "\n" for text in texts))
        theirs = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
        for text, line in zip(texts, run.stdout.splitlines(), strict=True):
            expected = theirs.encode(text, add_special_tokens=False).ids
            result["texts"] += 1
            if json.loads(line) == expected:
                result["equal_ids"] += 1
            else:
                print(f"{name}: {json.dumps(text)}: {line}, and Python has {expected}", file=sys.stderr)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    source = random.Random(flags.seed)
    with tempfile.TemporaryDirectory() as folder:
        result = {"seed": flags.seed, **compare_files(flags.programs, flags.files, source, folder),
                  **compare_texts(flags.programs, flags.texts, source, folder)}
    print(json.dumps(result))
    wrong = result["accepted_that_python_refuses"] + result["other"] + result["texts"] - result["equal_ids"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
