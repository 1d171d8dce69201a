"""What a record means: its members make it an instruction, a chat, a text or token ids.

A sample is one of three things, whatever the format: Text (a prompt, which may be empty, and what follows), Chat, Tokens.
"""

from typing import Any, NamedTuple

from prepare.errors import Refused, UserError

# Of ShareGPT and its relatives, whose writers never agreed.
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant", "bot": "assistant",
         "model": "assistant", "system": "system", "tool": "tool", "observation": "tool", "function": "tool"}
IGNORED_LABEL = -100


class Text(NamedTuple):
    prompt: str
    answer: str

    has_prompt = property(lambda self: bool(self.prompt))


class Chat(NamedTuple):
    messages: list
    tools: Any  # as the template expects them; None: the record has none
    learnt: list  # per message: whether its weight allows it
    prompt_messages: int  # how many of them are a prompt that the record marks as such; -1: it marks none

    has_prompt = property(lambda self: any(message["role"] != "assistant" for message in self.messages))


class Tokens(NamedTuple):
    ids: Any  # numpy, int64
    learnt: Any  # numpy, bool; None: the record says nothing

    has_prompt = property(lambda self: self.learnt is not None)


def string(record, name, optional=False):
    value = record.get(name)
    if isinstance(value, str):
        return value
    if optional and value is None:
        return ""
    raise Refused(f'"{name}" is {kind(value)}, a text is needed')


def kind(value):
    if value is None:
        return "absent"
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def alpaca(record):
    """The text of the DeepSpeed example, as models/data/alpaca.cpp makes it."""
    instruction, given, output = string(record, "instruction"), string(record, "input", optional=True), string(record, "output")
    question = f"### Instruction:\n{instruction}\n\n"
    if given.strip():
        question += f"### Input:\n{given}\n\n"
    return Text(question + "### Response:\n", output)


def messages(record):
    return chat(record.get("messages"), record.get("tools"), "messages")


def sharegpt(record):
    turns = record.get("conversations")
    if not isinstance(turns, list):
        raise Refused(f'"conversations" is {kind(turns)}, a list is needed')
    found = [sharegpt_message(turn, number) for number, turn in enumerate(turns, 1)]
    if isinstance(record.get("system"), str) and record["system"] and not (found and found[0]["role"] == "system"):
        found.insert(0, {"role": "system", "content": record["system"]})
    return chat(found, record.get("tools"), "conversations")


def sharegpt_message(turn, number):
    if not isinstance(turn, dict):
        raise Refused(f"message {number} is {kind(turn)}, an object is needed")
    if "role" in turn:
        return turn
    if turn.get("from") not in ROLES:
        raise Refused(f'message {number} is from "{turn.get("from")}", known are {", ".join(ROLES)}')
    others = {name: value for name, value in turn.items() if name not in {"from", "value"}}
    return {"role": ROLES[turn["from"]], "content": turn.get("value"), **others}


def chat(turns, tools, name):
    if not isinstance(turns, list) or not turns:
        raise Refused(f'"{name}" is {"empty" if turns == [] else kind(turns)}, a list of messages is needed')
    if isinstance(tools, str):
        raise Refused('"tools" is a text, a list of functions is needed')
    checked = [checked_message(turn, number) for number, turn in enumerate(turns, 1)]
    return Chat([turn for turn, _ in checked], tools or None, [learnt for _, learnt in checked], -1)


def checked_message(turn, number):
    """(the message as the template gets it, whether its weight lets it be learnt)."""
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
        raise Refused(f"message {number} has no role")
    if turn.get("content") is None and not turn.get("tool_calls"):
        raise Refused(f"message {number} ({turn['role']}) has no content")
    learnt = True
    for key in ("weight", "loss"):
        if key in turn:
            if turn[key] not in (0, 1):  # true and false are these, too
                raise Refused(f'"{key}" of message {number} is {turn[key]}; known are 0 and 1, false and true')
            learnt = learnt and bool(turn[key])
            if turn[key] and turn["role"] != "assistant":
                raise Refused(f'"{key}" of message {number} asks to learn what the {turn["role"]} says; only the assistant is learnt')
    return {key: value for key, value in turn.items() if key not in {"weight", "loss"}}, learnt


def prompt(record):
    first, second = record.get("prompt"), record.get("completion")
    if isinstance(first, str) and isinstance(second, str):
        return Text(first, second)
    if isinstance(first, list) and isinstance(second, list):
        asked, said = chat(first, None, "prompt"), chat(second, None, "completion")
        return Chat(asked.messages + said.messages, record.get("tools") or None, asked.learnt + said.learnt, len(asked.messages))
    raise Refused(f'"prompt" is {kind(first)} and "completion" is {kind(second)}; both are texts, or both lists of messages')


def text(record):
    return Text("", string(record, "text"))


def tokens(record):
    ids = whole_numbers(record, "input_ids")
    if not len(ids):
        raise Refused('"input_ids" is empty')
    if record.get("labels") is not None:
        labels = whole_numbers(record, "labels", len(ids))
        wrong = (labels != ids) & (labels != IGNORED_LABEL)
        if wrong.any():
            at = int(wrong.argmax())
            raise Refused(f'"labels"[{at}] is {labels[at]}, the token there is {ids[at]}; a label is its token or {IGNORED_LABEL}')
        return Tokens(ids, labels != IGNORED_LABEL)
    for name in ("mask", "loss_mask", "assistant_masks", "completion_mask"):
        if record.get(name) is not None:
            mask = whole_numbers(record, name, len(ids))
            if ((mask != 0) & (mask != 1)).any():
                raise Refused(f'"{name}" has other values than 0 and 1')
            return Tokens(ids, mask == 1)
    return Tokens(ids, None)


def whole_numbers(record, name, length=None):
    import numpy  # here, so that formats are told apart without it

    try:
        found = numpy.asarray(record.get(name))
    except ValueError:
        found = numpy.empty(0, object)
    if found.ndim == 1 and found.dtype.kind == "b":
        found = found.astype(numpy.int64)
    if found.ndim != 1 or (found.dtype.kind not in "iu" and found.size):
        raise Refused(f'"{name}" is no list of whole numbers')
    if length is not None and len(found) != length:
        raise Refused(f'"{name}" has {len(found)} entries, "input_ids" has {length}')
    return found.astype(numpy.int64, copy=False)


# In the order in which they are looked for: data sets of chats often carry the prompt as a text, too.
FORMATS = {
    "tokens": (tokens, {"input_ids"}),
    "messages": (messages, {"messages"}),
    "sharegpt": (sharegpt, {"conversations"}),
    "prompt": (prompt, {"prompt", "completion"}),
    "alpaca": (alpaca, {"instruction", "output"}),
    "text": (text, {"text"}),
}
# What of each is learnt where --loss_on does not say it.
LEARNT = {"tokens": "labels", "messages": "assistant", "sharegpt": "assistant", "prompt": "completion", "alpaca": "completion", "text": "all"}


def detect(record):
    """The name of the format of a file's first record."""
    if isinstance(record.value, dict):
        for name, (_, members) in FORMATS.items():
            if members <= record.value.keys():
                return name
    has = ", ".join(record.value) if isinstance(record.value, dict) else kind(record.value)
    wanted = "; ".join(f"{name}: {' and '.join(sorted(members))}" for name, (_, members) in FORMATS.items())
    raise UserError(f"[prepare] {record.place} is of no known format (it has {has}); {wanted}")


def sample_of(name, record):
    """Refused: the record does not fit the format."""
    if not isinstance(record.value, dict):
        raise Refused(f"it is {kind(record.value)}, an object is needed")
    return FORMATS[name][0](record.value)
