"""Records and tokenizer files of the drill of records, each judged beside Transformers in this process."""

import copy
import json
import shutil

from mutations import mutated
from support import DEMO

from prepare import formats
from prepare.encoder import Encoder
from prepare.errors import Refused, UserError
from prepare.files import Record
from prepare.members import HARMLESS
from prepare.template import Template
from prepare.tokenizer import Tokenizer

# Prints all that a template may ask for, and tells a member that is null from one that is absent.
TEMPLATE = """{%- macro body(message) %}{{ message['content'] }}{% if 'tool_calls' in message %}{% for call in message['tool_calls'] %}
call {{ call['function']['name'] }} {{ call['function']['arguments'] | tojson }}{% endfor %}{% endif %}{% for name in ('name', 'reasoning_content', 'tool_call_id', 'thinking') %}{% if name in message %} {{ name }} {{ message[name] }}{% endif %}{% endfor %}<|im_end|>{% endmacro %}
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- if mood is defined %}mood {{ mood }}
{% endif %}{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['role'] == 'assistant' %}{% generation %}{{ body(message) }}{% endgeneration %}{% else %}{{ body(message) }}{% endif %}
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TOOL = {"type": "function", "function": {"name": "moon", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
CALL = {"type": "function", "function": {"name": "moon", "arguments": {"a": "b"}}}
CHAT = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "It is.", "name": "moon"}, {"role": "assistant", "content": "Yes."}]
PLAIN = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]
BASES = ({"messages": CHAT, "tools": [TOOL]}, {"messages": PLAIN}, {"messages": PLAIN, "chat_template_kwargs": {"mood": "fine"}},
         {"prompt": PLAIN[:1], "completion": PLAIN[1:]}, {"instruction": "Say it.", "input": "it", "output": "It."}, {"text": "It is."}, {"prompt": "Say", "completion": " it."},
         {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}, {"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1]})
MESSAGE_NAMES = {"name": ["ann"], "reasoning_content": ["hm"], "tool_call_id": ["c1"], "thinking": ["hm"], "weight": [0, 1], "train": [False, True], "images": [["a.png"]],
                 "tool_calls": [[CALL], json.dumps([CALL])], "function_call": [CALL["function"]], "stranger": ["x"], "content": [["x"], [{"type": "text", "text": "x"}]]}
RECORD_NAMES = {"system": ["Be kind."], "tools": [[TOOL], json.dumps([TOOL])], "functions": [[TOOL["function"]]], "images": [["a.png"]], "history": [[["a", "b"]]],
                "chat_template_kwargs": [{"mood": "fine"}], "weight": [0, 0.5, 1], "id": ["7"], "source": ["web"], "stranger": ["x"], "documents": [[{"text": "x"}]],
                "position_ids": [[0, 1, 2, 3], [0, 1, 0, 1]], "attention_mask": [[1, 1, 1, 1], [1, 0, 1, 1]], "loss_mask": [[0, 0, 1, 1]], "input": ["x"], "text": ["x"],
                "labels": [[5, 6, 7, 8], [1, 2, 3, 4]], "seq_lengths": [[2, 2]], "cu_seqlens": [[0, 2, 4]], "rejected": [PLAIN]}
# A member under another name that every reader of such data knows.
ALIASES = {"value": "content", "from": "role"}


def present(value):
    """The members of an object that are not null."""
    return {name: item for name, item in value.items() if item is not None}


def names_one(text, names):
    return any(name.lower() in text.lower() for name in names)


class Records:
    """The sample that prepare makes of a record, beside apply_chat_template and the record's own texts."""

    def __init__(self):
        from transformers import AutoTokenizer

        self.tokenizer = Tokenizer(DEMO)
        self.theirs = AutoTokenizer.from_pretrained(DEMO)
        self.template = Template(TEMPLATE, "of the drill", self.tokenizer)
        self.encoder = Encoder(self.tokenizer, lambda: self.template)

    def __call__(self, draw):
        base = draw.choice(BASES)
        where = RECORD_NAMES if draw.random() < 0.5 else {**RECORD_NAMES, **MESSAGE_NAMES}
        mutation = mutated(draw, base, where)
        outcome, detail = self.judged(base, mutation)
        return outcome, mutation, detail

    def ours(self, value):
        """(ids, mask, members that a note names)"""
        record = Record("drill", 1, 1, copy.deepcopy(value))
        try:
            sample, unused = formats.sample_of(formats.detect(record), record)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise AssertionError(f"no refusal: {type(error).__name__}: {error}") from None
        answer = self.encoder.encode([sample])[0]
        if isinstance(answer, Refused):
            raise answer
        return answer.ids.tolist(), answer.learnt.tolist(), unused

    def judged(self, base, mutation):
        value = mutation.value
        try:
            ids, mask, unused = self.ours(value)
        except (Refused, UserError) as refused:
            named = names_one(str(refused), mutation.names) or mutation.operation in ("remove", "rename", "null")
            return ("refusal", "") if named else ("DIFFERENCE", f"a refusal that names another thing: {refused} of {json.dumps(value)}")
        except AssertionError as error:
            return "DIFFERENCE", f"{error} of {json.dumps(value)}"
        try:
            expected = self.expected(value)
        except Exception as error:  # whatever the reference raises
            return "DIFFERENCE", f"read, where the reference raises {type(error).__name__}: {error} of {json.dumps(value)}"
        if (ids, mask) == expected:
            changed = self.silent(base, mutation, ids, mask, unused)
            return ("DIFFERENCE", f"{changed} of {json.dumps(value)}") if changed else ("note" if unused else "value", "")
        return "DIFFERENCE", f"{self.shown(ids, mask)} and not {self.shown(*expected)} of {json.dumps(value)}"

    def shown(self, ids, mask):
        """The text, and what is learnt of it."""
        return f"{self.theirs.decode(ids)!r} learnt {self.theirs.decode([token for token, bit in zip(ids, mask) if bit])!r}"

    def silent(self, base, mutation, ids, mask, unused):
        """A member at the record's top that was added, changed nothing and is in no list."""
        name = mutation.names[-1]
        if mutation.operation in ("add", "rename") and name in mutation.value and name not in base and (ids, mask) == self.ours(base)[:2]:
            empty = mutation.value[name] in (None, "", [], {})
            if not (empty or name in unused or name in HARMLESS or self.means_the_same(mutation.value, name)):
                return f"{name} changed nothing and nobody was told"
        return None

    @staticmethod
    def means_the_same(value, name):
        """Members of token ids that say what is so without them, and variables that this template does not ask for."""
        said_twice = name == "system" and any(turn.get("role") == "system" and turn.get("content") == value[name] for turn in value.get("messages", []) if isinstance(turn, dict))
        return said_twice or "input_ids" in value and name in ("attention_mask", "position_ids", "loss_mask", "labels", "token_type_ids") or name == "chat_template_kwargs"

    def expected(self, value):
        """(ids, mask) by Transformers, of a record as TRL and others read it; None: they do not read it."""
        value = present(value)
        if "input_ids" in value:
            return self.expected_tokens(value)
        turns = value.get("messages")
        is_pair = "prompt" in value and "completion" in value
        if turns is None and is_pair and not isinstance(parsed(value["prompt"]), str):
            turns = [*parsed(value["prompt"]), *parsed(value["completion"])]
            return self.expected_chat(value, turns, len(parsed(value["prompt"])))
        if turns is not None:
            return self.expected_chat(value, parsed(turns), -1)
        if is_pair:
            return self.expected_text(value["prompt"], value["completion"])
        if "instruction" in value and "output" in value:
            given = value.get("input", "")
            if value.get("system") or value.get("history"):
                pairs = [*(parsed(value.get("history")) or []), ("\n".join(text for text in (value["instruction"], given) if text), value["output"])]
                return self.expected_chat(value, [{"role": role, "content": text} for pair in pairs for role, text in zip(("user", "assistant"), pair, strict=True)], -1)
            middle = f"### Input:\n{given}\n\n" if given.strip() else ""
            return self.expected_text(f"### Instruction:\n{value['instruction']}\n\n{middle}### Response:\n", value["output"])
        return self.expected_text("", value["text"])

    def expected_text(self, prompt, answer):
        whole = self.theirs(prompt + answer)["input_ids"]
        whole += [self.theirs.eos_token_id] if whole[-1:] != [self.theirs.eos_token_id] else []
        begin = self.theirs(prompt)["input_ids"] if prompt else []
        same = next((i for i, (a, b) in enumerate(zip(begin, whole)) if a != b), len(begin))
        return whole, [at >= same for at in range(len(whole))]

    @staticmethod
    def expected_tokens(value):
        ids = value["input_ids"]
        seen = value.get("attention_mask", [1] * len(ids))
        mask = [label != -100 for label in value["labels"]] if "labels" in value else next(([bit == 1 for bit in value[name]] for name in ("mask", "loss_mask", "assistant_masks", "completion_mask") if name in value), [True] * len(ids))
        kept = [at for at, bit in enumerate(seen) if bit]
        return [ids[at] for at in kept], [mask[at] for at in kept]

    def expected_chat(self, value, turns, prompt):
        turns = [canonical(turn) for turn in turns]
        system = value.get("system")
        system = "".join(part if isinstance(part, str) else part["text"] for part in system) if isinstance(system, list) else system
        if system and system.strip() and turns[0] != {"role": "system", "content": system}:
            turns = [{"role": "system", "content": system}, *turns]
            prompt = prompt + 1 if prompt >= 0 else prompt
        tools, functions = ([found] if isinstance(found, dict) else found for found in (parsed(value.get(name)) or [] for name in ("tools", "functions")))
        tools = tools or [{"type": "function", "function": one} for one in functions] or None
        answers = [at for at, turn in enumerate(turns) if turn["role"] == "assistant"]
        learnt = [at >= max(prompt, 0) and all(turns[at].get(name, 1) for name in ("weight", "loss", "train")) for at in answers]
        clean = [{name: item for name, item in turn.items() if name not in ("weight", "loss", "train")} for turn in turns]
        variables = present(parsed(value.get("chat_template_kwargs")) or {})
        found = self.theirs.apply_chat_template(clean, tools=tools, chat_template=TEMPLATE, return_dict=True, return_assistant_tokens_mask=True, **variables)
        ids, bits = found["input_ids"], found["assistant_masks"]
        mask, at, inside = [], -1, False
        for bit in bits:
            at += 1 if bit and not inside else 0
            inside = bool(bit)
            mask.append(inside and learnt[at])
        return ids, mask


def parsed(value):
    """The value of a JSON text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def canonical(turn):
    """A message in the form that Transformers documents: no member is null, content is a text, arguments are objects."""
    found = {ALIASES.get(name, name): item for name, item in present(turn).items()}
    content = found.get("content", "") if "content" in found or not isinstance(found.get("text"), str) else found.pop("text")
    if isinstance(content, list):
        content = "".join(part if isinstance(part, str) else part["text"] for part in content)
    found["content"] = content
    calls = parsed(found.pop("tool_calls", None)) or []
    calls = [calls] if isinstance(calls, dict) else calls
    calls = [*calls, *([found.pop("function_call")] if found.get("function_call") else [])]
    if calls:
        found["tool_calls"] = [canonical_call(parsed(call)) for call in calls]
    return found


def canonical_call(call):
    function = present(parsed(call.get("function")) if isinstance(parsed(call.get("function")), dict) else call)
    arguments = parsed(function.get("arguments")) or {}
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}}


class Tokenizers:
    """The ids of both readers' tokenizers, for folders whose tokenizer files have one member changed."""

    TEXTS = ("a<t>b", "a <t> b", " ab", "a  b!c", "<p>x", "a<|endoftext|>b", "[PAD]<i>y", "<u>", "it's 12 a's")
    NAMES = {"image_token": ["<i>"], "pad_token": ["<p>", "[PAD]"], "eos_token": ["!", "<t>", {"content": "<t>", "lstrip": True, "__type": "AddedToken"}], "bos_token": ["#"],
             "unk_token": ["?", None], "sep_token": ["<s>"], "extra_special_tokens": [["<t>"], {"eye": "<i>"}], "additional_special_tokens": [["<u>", "<t>"]],
             "added_tokens_decoder": [{"95": {"content": "<t>", "special": True, **flags}} for flags in ({}, {"lstrip": True}, {"rstrip": True}, {"single_word": True})], "add_prefix_space": [True, False], "add_bos_token": [True], "add_eos_token": [True],
             "split_special_tokens": [True, False], "model_max_length": [7], "padding_side": ["left"], "legacy": [True], "stranger": ["x"], "clean_up_tokenization_spaces": [True],
             "tokenizer_class": ["GPT2Tokenizer", "PreTrainedTokenizerFast", "Qwen2Tokenizer"], "fix_mistral_regex": [False], "errors": ["replace"], "chat_template": ["{{ messages }}"]}
    BYTES = {chr(c): c - 33 for c in range(33, 127)}

    def __init__(self, folder):
        self.folder = folder / "tokenizer"

    def __call__(self, draw):
        kind = draw.choice(("PreTrainedTokenizerFast", "GPT2Tokenizer", "TokenizersBackend", "Qwen2Tokenizer"))
        level = {"type": "ByteLevel", "add_prefix_space": draw.random() < 0.3, "trim_offsets": True, "use_regex": True}
        if kind in ("GPT2Tokenizer", "Qwen2Tokenizer"):
            level["add_prefix_space"] = False
        steps = draw.choice((level, {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]}))
        whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": draw.choice(([], [{"id": 95, "content": "<t>", "special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}])),
                 "normalizer": None, "pre_tokenizer": steps, "post_processor": None, "decoder": level, "model": {"type": "BPE", "vocab": {**self.BYTES, "Ġ": 94}, "merges": []}}
        config = {"tokenizer_class": kind, "eos_token": "!", "bos_token": None, "add_prefix_space": level["add_prefix_space"], "model_max_length": 64, "additional_special_tokens": ["<u>"]}
        special_map = {"eos_token": "!", "pad_token": "<p>"} if draw.random() < 0.3 else None
        files = {"tokenizer_config.json": config, **({"special_tokens_map.json": special_map} if special_map else {})}
        name = draw.choice(sorted(files))
        mutation = mutated(draw, files[name], self.NAMES, deep=draw.random() < 0.3)
        files = {**files, name: mutation.value, "tokenizer.json": whole, "config.json": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}}
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        for path, content in files.items():
            (self.folder / path).write_text(json.dumps(content))
        outcome, detail = self.judged(mutation)
        return outcome, mutation, f"{detail} of {json.dumps(files['tokenizer_config.json'])} {json.dumps(files.get('special_tokens_map.json'))}"

    def judged(self, mutation):
        from transformers import AutoTokenizer

        try:
            found = AutoTokenizer.from_pretrained(self.folder)
            theirs = [found.encode(text, add_special_tokens=special) for text in self.TEXTS for special in (False, True)]
        except Exception:  # whatever its classes raise
            theirs = None
        try:
            tokenizer = Tokenizer(self.folder)
            ours = [ids.tolist() for special in (False, True) for ids in tokenizer.encode(self.TEXTS, special)]
            ours = [ids for pair in zip(ours[: len(self.TEXTS)], ours[len(self.TEXTS) :]) for ids in pair]
        except UserError as error:
            if theirs is None or names_one(str(error), mutation.names):
                return "refusal", ""
            return "DIFFERENCE", f"a refusal that names another thing: {error}"
        except Exception as error:
            return "DIFFERENCE", f"no refusal: {type(error).__name__}: {error}"
        if theirs is None:
            return "value that the reference does not read", ""
        wrong = next((f"{text!r}: {a} and not {b}" for text, a, b in zip([t for t in self.TEXTS for _ in "ab"], ours, theirs) if a != b), None)
        return ("value", "") if not wrong else ("note", "") if tokenizer.note else ("DIFFERENCE", wrong)
