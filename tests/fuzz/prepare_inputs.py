"""Inputs for tests/fuzz/prepare.py: small data of every kind that ./tandem prepare reads, and changed copies of them.

An Input is the files of one run with the flags that read them. All follow from a random.Random.
"""

import copy
import gzip
import io
import json
import lzma
import struct
from pathlib import Path
from typing import NamedTuple

from mutate import damaged

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo"
MODEL_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
MOST_CHANGES = 3

TOOLS = [{"type": "function", "function": {"name": "moon", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}]
CALLS = [{"type": "function", "function": {"name": "moon", "arguments": {"a": "b"}}}]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a day."}, {"role": "assistant", "content": "", "tool_calls": CALLS},
            {"role": "tool", "content": "It is"}, {"role": "assistant", "content": "Moonday.", "weight": 1}]
RECORDS = {
    "messages": [{"messages": MESSAGES, "tools": TOOLS}, {"messages": MESSAGES[1:2] + MESSAGES[4:], "id": 5}],
    "sharegpt": [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "c"}],
    "alpaca": [{"instruction": "a", "input": "b", "output": "c"}, {"instruction": "a\u4f60", "output": "c"}],
    "prompt": [{"prompt": "a", "completion": "b"}],
    "prompts": [{"prompt": MESSAGES[:2], "completion": MESSAGES[4:]}],
    "text": [{"text": "some words"}, {"text": "\U0001f600 and more"}],
    "tokens": [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [5, 6], "mask": [0, 1]}, {"input_ids": [8]}],
}
# In the place of a value, or as a member's name.
VALUES = [None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**70), 0.5, 1e308, float("inf"), float("nan"), "", "a", "a" * 5000, "\x00", "\x1b[2J", "\n", "\ud800",
          "\u2028", "user", "assistant", "system", "tool", "[" * 2000, '{"a": 1}', "[]", "{}", [], [[]], {}, {"a": None}, [None], [5], ["a"], {"role": "user"},
          {"role": "assistant", "content": [{"type": "text", "text": "a"}]}, {"role": ["user"], "content": {}}, {"from": ["human"]}, {"from": {"a": 1}, "value": 5},
          [{"type": "image", "image": "x"}]]
NAMES = ["messages", "conversations", "role", "content", "from", "value", "tools", "tool_calls", "weight", "loss", "system", "input_ids", "labels", "mask", "text", "prompt",
         "completion", "instruction", "output", "input", "train", "function_call", "chat_template_kwargs", "\n\x1b", "", "a" * 3000]
TEMPLATES = ["{{ messages[0]['content'] }}", "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
             "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", "{{ raise_exception('no\n\x1b') }}", "{{ messages | tojson }}",
             "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "{{ 'a' * 10 ** 10 }}", "{{ messages.__class__.__mro__ }}", "{% for i in range(10 ** 9) %}{% endfor %}",
             "{% set ns = namespace(x=[]) %}{% for i in range(200) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}", "{{ strftime_now('%Y' * 99) }}",
             "{{ (" * 300 + "1" + ")" * 300 + " }}", "{{ 'a' | center(10 ** 9) }}", "{% for i in range(9999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"]


class Input(NamedTuple):
    kind: str
    files: dict  # name -> bytes, in the folder of the run; those of MODEL_FILES and adapter_config.json are the model's
    data: str  # the file, or the text of --dataset_name where {folder} stands for the folder
    flags: list


def as_json(value):
    return json.dumps(value).encode()


def nested(source):
    deep = source.choice((50, 101, 900, 3000, 50_000))
    return b"[" * deep + b"]" * deep


def records_of(source):
    """(name of the format, records), some of them with other values, members and types."""
    name = source.choice(list(RECORDS))
    records = copy.deepcopy(RECORDS[name]) * source.choice((1, 1, 2, 300))
    for _ in range(source.randrange(MOST_CHANGES + 1)):
        change(records, source)
    return name, records


def change(value, source):
    """Changes a place somewhere inside of a list or an object."""
    while True:
        keys = list(range(len(value))) if isinstance(value, list) else list(value)
        if not keys:
            return
        key = source.choice(keys)
        if isinstance(value[key], (list, dict)) and value[key] and source.random() < 0.7:
            value = value[key]
            continue
        kind = source.randrange(4)
        if kind == 0:
            del value[key]
        elif kind == 1 and isinstance(value, dict):
            value[source.choice(NAMES)] = copy.deepcopy(source.choice(VALUES))
        elif kind == 2 and isinstance(value, list):
            value.append(copy.deepcopy(source.choice(VALUES)))
        else:
            value[key] = copy.deepcopy(source.choice(VALUES))
        return


def text_file(source):
    """(ending, bytes) of records as one of the text kinds."""
    _, records = records_of(source)
    kind = source.choice((".jsonl", ".json", ".csv", ".tsv", ".txt"))
    if kind in {".csv", ".tsv"}:
        names = sorted({name for record in records if isinstance(record, dict) for name in record})
        rows = [names, *([record.get(name, "") for name in names] for record in records if isinstance(record, dict))]
        cells = [[cell if isinstance(cell, str) else json.dumps(cell) for cell in row] for row in rows]
        between = "," if kind == ".csv" else "\t"
        text = "\n".join(between.join('"' + cell.replace('"', '""') + '"' for cell in row) for row in cells)
        return kind, text.encode(errors="surrogatepass")
    if kind == ".txt":
        return kind, "\n\n".join(map(str, records)).encode(errors="surrogatepass")
    if kind == ".json":
        return kind, as_json(records) if source.random() < 0.7 else b"\n".join(map(as_json, records))
    return kind, b"\n".join(map(as_json, records)) + b"\n"


def spoilt(data, source):
    """Damaged, with something deep or long in it, or as it is."""
    kind = source.randrange(6)
    if kind == 0 and data:
        at = source.randrange(len(data))
        return data[:at] + source.choice((nested(source), b"1" * 6000, b'"' + b"a" * 200_000, b"\xff\xfe", b"\x00" * 50, b"\r")) + data[at:]
    return damaged(data, source) if kind < 4 else data


def text_input(source):
    kind, data = text_file(source)
    return Input("text", {f"d{kind}": spoilt(data, source)}, f"d{kind}", [])


def packed_input(source):
    kind, data = text_file(source)
    ending, pack = source.choice(((".gz", gzip.compress), (".xz", lzma.compress)))
    return Input("packed", {f"d{kind}{ending}": spoilt(pack(data), source)}, f"d{kind}{ending}", [])


def bomb_input(source):
    """Lines, or one line, of far more than the file's size."""
    ending, pack = source.choice(((".gz", lambda data: gzip.compress(data, 1)), (".xz", lambda data: lzma.compress(data, preset=0))))
    unit = source.choice((b" ", b"\n", b"a", b'{"text": "a"}\n', b"[", b'"', b"a,b\n", b"\xff"))
    return Input("bomb", {f"d{(kind := source.choice(['.json', '.jsonl', '.csv', '.txt']))}{ending}": pack(unit * ((source.choice((1, 5, 8)) << 17) // len(unit)))}, f"d{kind}{ending}", [])


def table_input(source):
    """Parquet or Arrow, of records or of types that no record has."""
    import pyarrow
    import pyarrow.parquet

    _, records = records_of(source)
    try:
        table = pyarrow.Table.from_pylist([record for record in records if isinstance(record, dict)])
    except (pyarrow.ArrowException, UnicodeError, OverflowError):
        table = pyarrow.Table.from_pylist(RECORDS["messages"])
    if source.random() < 0.3:
        wild = source.choice((pyarrow.array([2**62] * len(table), pyarrow.timestamp("ns")), pyarrow.array([b"\xff\x00"] * len(table)), pyarrow.array(["a" * 9999] * len(table)).dictionary_encode(),
                              pyarrow.array([[("a", 1)]] * len(table), pyarrow.map_(pyarrow.string(), pyarrow.int64())), pyarrow.nulls(len(table)), pyarrow.array([2**40] * len(table), pyarrow.duration("ns"))))
        table = table.append_column(source.choice(NAMES), wild)
    sink = io.BytesIO()
    kind = source.choice(("parquet", "file", "stream"))
    try:
        if kind == "parquet":
            pyarrow.parquet.write_table(table, sink, compression=source.choice(("NONE", "SNAPPY", "ZSTD")))
        else:
            options = pyarrow.ipc.IpcWriteOptions(compression=source.choice((None, "zstd")))
            with (pyarrow.ipc.new_file if kind == "file" else pyarrow.ipc.new_stream)(sink, table.schema, options=options) as writer:
                writer.write(table)
    except pyarrow.ArrowException:  # a type that this format has not
        return text_input(source)
    name = "d.parquet" if kind == "parquet" else "d.arrow"
    return Input("table", {name: spoilt(sink.getvalue(), source)}, name, [])


def megatron_input(source):
    code, letter = source.choice(((8, "H"), (4, "i"), (5, "q"), (1, "B")))
    sequences = [[5, 6, 7], [8], [9, 10]]
    width = struct.calcsize(f"<{letter}")
    sizes = [len(sequence) for sequence in sequences]
    offsets = [sum(sizes[:n]) * width for n in range(3)]
    for numbers in (sizes, offsets):
        if source.random() < 0.3:
            numbers[source.randrange(3)] = source.choice((0, -1, 2**31 - 1, -(2**31), 1))
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, source.choice((3, 3, 3, 2**60)), 4) + struct.pack("<3i3q4q", *sizes, *offsets, 0, 1, 2, 3)
    data = b"".join(struct.pack(f"<{len(sequence)}{letter}", *sequence) for sequence in sequences)
    return Input("megatron", {"d.idx": spoilt(index, source), "d.bin": spoilt(data, source)}, source.choice(("d.bin", "d.idx")), [])


def template_input(source):
    text = source.choice([*TEMPLATES, (DEMO / "chat_template.jinja").read_text()]).encode()
    if source.random() < 0.4:
        text = damaged(text, source)
    data = as_json(RECORDS["messages"])
    if source.random() < 0.5:
        return Input("template", {"d.json": data, "t.jinja": text}, "d.json", ["--chat_template", "t.jinja"])
    return Input("template", {"d.json": data, "chat_template.jinja": text}, "d.json", [])


def model_input(source):
    """A model's folder with a file of it changed."""
    name = source.choice(("tokenizer.json", "tokenizer_config.json", "tokenizer_config.json", "special_tokens_map.json", "adapter_config.json"))
    path = DEMO / name
    found = json.loads(path.read_bytes()) if path.is_file() else {"eos_token": {"content": "<|im_end|>"}, "base_model_name_or_path": "base"}
    if name == "tokenizer_config.json" and source.random() < 0.5:
        found["chat_template"] = [{"name": "default", "template": TEMPLATES[1]}, {"name": "tool_use", "template": TEMPLATES[2]}]
    if name == "tokenizer.json" and source.random() < 0.6:
        found["model"] = {**found["model"], "vocab": dict(list(found["model"]["vocab"].items())[: source.choice((0, 1, 300))])}
    for _ in range(source.randrange(MOST_CHANGES + 1)):
        change(found, source)
    data = spoilt(as_json(found), source)
    return Input("model", {"d.json": as_json(RECORDS[source.choice(("messages", "text", "alpaca"))]), name: data}, "d.json", [])


def mixture_input(source):
    numbers = ["1", "0.5", "1e308", "-1", "nan", "0", "1e-320", "", "1_0", "inf", "9" * 400]
    data = ",".join(f"{{folder}}/d.jsonl:{source.choice(numbers)}" for _ in range(source.choice((1, 2, 3, 40))))
    return Input("mixture", {"d.jsonl": b'{"text": "a"}\n' * source.choice((0, 1, 5))}, data, [])


def flags_input(source):
    made = text_input(source)
    more = [["--max_length", source.choice(("1", "0", "-5", "9" * 30))], ["--loss_on", source.choice(("all", "assistant", "completion"))], ["--append_eos", "off"],
            ["--dataset_format", source.choice(("messages", "text", "tokens", "sharegpt"))], ["--sample_by", source.choice(("paragraph", "document"))], ["--seed", "-1"],
            ["--chat_template", source.choice(("\x1b\n", "{{", "a" * 300, "default"))]]
    return made._replace(kind="flags", flags=[word for words in source.sample(more, source.randint(1, 3)) for word in words])


MAKERS = {text_input: 8, packed_input: 2, bomb_input: 1, table_input: 5, megatron_input: 2, template_input: 2, model_input: 3, mixture_input: 1, flags_input: 3}


def made(source):
    found = source.choices(list(MAKERS), MAKERS.values())[0](source)
    if source.random() < 0.3 and "--skip_refused" not in found.flags:
        found = found._replace(flags=[*found.flags, "--skip_refused"])
    return found

