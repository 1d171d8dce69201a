#!/usr/bin/env python3
"""The same 40 chats in the forms of OpenAI, ShareGPT, TRL, LLaMA-Factory, axolotl and Alpaca, as jsonl, json, csv,
parquet and arrow: the ids and masks of Transformers, whether masks come from blocks or from prefixes. Prints the counts.
"""

import csv
import itertools
import json
import re
import sys
import unittest

from support import DEMO, SKIPPED, PrepareTest

from prepare import command
from prepare.encoder import Encoder
from prepare.errors import Refused
from prepare.template import Template
from prepare.tokenizer import Tokenizer

TOKENIZER = Tokenizer(DEMO)
CHATS = 40
KINDS = ("jsonl", "json", "csv", "parquet", "arrow")
LOSSES = ("assistant", "completion")
TEMPLATE = """{%- if tools %}{{ '<|im_start|>tools\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
            {{- message['content'] }}
            {%- for call in message['tool_calls'] or [] %}{{ '<call> ' + call['function']['name'] + ' ' + (call['function']['arguments'] | tojson) }}{% endfor %}
            {{- '<|im_end|>\\n' }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
BLOCKS = re.compile(r"\{%- (end)?generation %\}")
TOOL = {"type": "function", "function": {"name": "moon", "parameters": {"type": "object", "properties": {"night": {"type": "string"}}}}}
ASKED = ("Where is the oskel?", "Zwölf Äpfel,\nbitte.", "What is \"half\"?", "日本の首都は?", "a, b; c", "  two blanks ")
SAID = ("In the willow.", "Ja, gern!", "0.5, or 1/2", "東京です。", "{not json", "[neither]", "It ends so.\n")


def chat_of(number):
    """A chat as Transformers documents it: one to three answers, some with a system's text, some with a call."""
    turns = [{"role": "system", "content": f"Be brief, {number}."}] if number % 4 == 0 else []
    for turn in range(1 + number % 3):
        turns.append({"role": "user", "content": f"{ASKED[(number + turn) % len(ASKED)]} {number}"})
        if number % 5 == 4 and turn == 0:
            call = {"type": "function", "function": {"name": "moon", "arguments": {"night": f"night {number}"}}}
            turns += [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "It is full."}]
        turns.append({"role": "assistant", "content": f"{number}: {SAID[(number * 3 + turn) % len(SAID)]}"})
    return turns


def tools_of(turns):
    return [TOOL] if any(turn["role"] == "tool" for turn in turns) else None


def with_tools(record, turns, as_text):
    tools = tools_of(turns)
    return {**record, "tools": json.dumps(tools) if as_text else tools} if tools else record


def openai(turns):
    """Arguments are JSON texts, and a message that calls has null for its content."""
    made = []
    for turn in turns:
        calls = [{"id": "c1", "type": "function", "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}} for call in turn.get("tool_calls", [])]
        made.append({**turn, "content": None, "tool_calls": calls} if calls else {**turn, **({"tool_call_id": "c1"} if turn["role"] == "tool" else {})})
    return with_tools({"messages": made}, turns, as_text=False)


def sharegpt(turns):
    names = {"system": "system", "user": "human", "assistant": "gpt", "tool": "observation"}
    made = [{"from": "function_call", "value": json.dumps(turn["tool_calls"][0]["function"])} if "tool_calls" in turn else
            {"from": names[turn["role"]], "value": turn["content"]} for turn in turns]
    return with_tools({"conversations": made}, turns, as_text=True)


def trl(turns):
    return with_tools({"prompt": turns[:-1], "completion": turns[-1:]}, turns, as_text=False)


def llama_factory(turns):
    """None where the form has no place for a call."""
    if tools_of(turns):
        return None
    system = turns[0]["content"] if turns[0]["role"] == "system" else ""
    texts = [turn["content"] for turn in turns if turn["role"] != "system"]
    pairs = list(map(list, zip(texts[::2], texts[1::2])))
    return {"instruction": pairs[-1][0], "input": "", "output": pairs[-1][1], "system": system, "history": pairs[:-1]}


def axolotl(turns):
    """Each message says whether it is learnt, and the system's text stands beside them."""
    is_beside = turns[0]["role"] == "system"
    made = [{**turn, "train": turn["role"] == "assistant"} for turn in turns[is_beside:]]
    return with_tools({"system": turns[0]["content"] if is_beside else None, "messages": made}, turns, as_text=True)


def alpaca(turns):
    """The question's last line is the input; None for all but a question and its answer."""
    if [turn["role"] for turn in turns] != ["user", "assistant"]:
        return None
    question, _, given = turns[0]["content"].rpartition("\n")
    return {"instruction": question or given, "input": given if question else None, "output": turns[1]["content"]}


FORMS = {"OpenAI": openai, "ShareGPT": sharegpt, "TRL": trl, "LLaMA-Factory": llama_factory, "axolotl": axolotl, "Alpaca": alpaca}


def write(path, records):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8")
    elif path.suffix == ".csv":
        names = list(dict.fromkeys(name for record in records for name in record))
        with open(path, "w", encoding="utf-8", newline="") as file:
            rows = csv.DictWriter(file, names, restval="")
            rows.writeheader()
            rows.writerows({name: value if isinstance(value, str) else "" if value is None else json.dumps(value) for name, value in record.items()} for record in records)
    else:
        write_table(path, records)


def write_table(path, records):
    import pyarrow
    import pyarrow.parquet

    names = list(dict.fromkeys(name for record in records for name in record))
    table = pyarrow.table({name: [record.get(name) for record in records] for name in names})
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)


class Forms(PrepareTest):
    def expected(self, turns, loss_on):
        """(ids, mask) of Transformers; the last answer alone for `completion`."""
        found = self.theirs.apply_chat_template(turns, tools=tools_of(turns), chat_template=TEMPLATE, return_dict=True, return_assistant_tokens_mask=True)
        mask = found["assistant_masks"]
        if loss_on == "completion":
            end = len(mask) - mask[::-1].index(1)
            begin = end - mask[:end][::-1].index(0)
            mask = [int(begin <= at < end) for at in range(len(mask))]
        return found["input_ids"], mask

    def made(self, path, form, template, loss_on):
        """[(ids, mask)] of a file's records."""
        given = ["--dataset_format", "alpaca_chat"] if form in ("LLaMA-Factory", "Alpaca") else []
        samples = command.Samples(command.parse(["--model_name", str(DEMO), "--dataset_name", str(path), "--output", "x.tokens", *given]))
        found = Encoder(TOKENIZER, lambda: template, loss_on).encode([samples.of(record) for record in command.records_of(str(path), "line")])
        return [str(one) if isinstance(one, Refused) else (one.ids.tolist(), [int(bit) for bit in one.learnt]) for one in found]

    def test_one_chat_in_every_form_and_file(self):
        from transformers import AutoTokenizer

        self.theirs = AutoTokenizer.from_pretrained(DEMO)
        chats = [chat_of(number) for number in range(CHATS)]
        right = {loss_on: {str(turns): self.expected(turns, loss_on) for turns in chats} for loss_on in LOSSES}
        templates = {"blocks": Template(TEMPLATE, "blocks", TOKENIZER), "prefixes": Template(BLOCKS.sub("", TEMPLATE), "prefixes", TOKENIZER)}
        rows = [["form", *KINDS]]
        for form, of in FORMS.items():
            records = [(record, turns) for turns in chats if (record := of(turns)) is not None]
            rows.append([form])
            for kind in KINDS:
                path = self.folder / f"d.{kind}"
                write(path, [record for record, _ in records])
                equal = [True] * len(records)
                for (loss_on, expected), (masks, template) in itertools.product(right.items(), templates.items()):
                    for at, (found, (_, turns)) in enumerate(zip(self.made(path, form, template, loss_on), records, strict=True)):
                        with self.subTest(form=form, kind=kind, loss_on=loss_on, masks=masks, chat=at):
                            equal[at] = equal[at] and found == expected[str(turns)]
                            self.assertEqual(found, expected[str(turns)])
                rows[-1].append(f"{sum(equal)} of {len(records)}")
        print("\n".join(" | ".join(row) for row in rows))


if __name__ == "__main__":
    try:
        import pyarrow  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(SKIPPED)
    unittest.main()
