"""The meaning of a record: its members make it an instruction, a chat, a text or token ids.

A sample is one of three things, whatever the format: Text (a prompt, which may be empty, and what follows), Chat, Tokens.
"""

from typing import Any, NamedTuple

from prepare import members
from prepare.conversations import are_messages, from_text, kind, strange_roles, system_of, tools_of, turns_of, variables_of, with_system
from prepare.errors import Refused, UserError

IGNORED_LABEL = -100
MASKS = ("mask", "loss_mask", "assistant_masks", "completion_mask")


class Text(NamedTuple):
    prompt: str
    answer: str

    has_prompt = property(lambda self: bool(self.prompt))


class Chat(NamedTuple):
    messages: list
    tools: Any  # as the template expects them; None: the record has none
    learnt: list  # per message: whether its weight allows it
    prompt_messages: int  # how many of them are a prompt that the record marks as such; -1: it marks none
    variables: dict  # that the record gives its template
    strange: list  # (role, which message has it): the template has to name these

    has_prompt = property(lambda self: any(message["role"] != "assistant" for message in self.messages))


class Tokens(NamedTuple):
    ids: Any  # numpy, int64
    learnt: Any  # numpy, bool; None: the record says nothing
    has_prompt: bool


def string(record, name, optional=False):
    value = record.get(name)
    if isinstance(value, str):
        return value
    if optional and value is None:
        return ""
    raise Refused(f'"{name}" is {kind(value)}, a text is needed')


def alpaca(record):
    """The text of the DeepSpeed example, as models/data/alpaca.cpp makes it."""
    instruction, given, output = string(record, "instruction"), string(record, "input", optional=True), string(record, "output")
    question = f"### Instruction:\n{instruction}\n\n"
    if given.strip():
        question += f"### Input:\n{given}\n\n"
    return Text(question + "### Response:\n", output)


def messages(record):
    return chat(record, "messages")


def sharegpt(record):
    return chat(record, "conversations")


def chat(record, name):
    given, weights = turns_of(record.get(name), name)
    turns, learnt = with_system(given, weights, system_of(record))
    return Chat(turns, tools_of(record), learnt, -1, variables_of(record), strange_roles(given, name))


def alpaca_chat(record):
    """LLaMA-Factory's instructions: the pairs of "history" come first, "input" is a line below the instruction."""
    instruction, given, output = string(record, "instruction"), string(record, "input", optional=True), string(record, "output")
    turns = [*pairs_of_history(record), ("\n".join(text for text in (instruction, given) if text), output)]
    given = [{"role": role, "content": text} for pair in turns for role, text in zip(("user", "assistant"), pair)]
    made, learnt = with_system(given, [True] * len(given), system_of(record))
    return Chat(made, tools_of(record), learnt, -1, variables_of(record), [])


def pairs_of_history(record):
    pairs = from_text(record.get("history"), "[")
    if members.is_empty(pairs):
        return []
    if not isinstance(pairs, list):
        raise Refused(f'"history" is {kind(pairs)}, a list of pairs of texts is needed')
    for number, pair in enumerate(pairs, 1):
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise Refused(f'entry {number} of "history" is no pair of texts: what was asked, and what was answered')
    return pairs


def prompt(record):
    first, second = record.get("prompt"), record.get("completion")
    if isinstance(first, str) and isinstance(second, str) and not are_messages(first) and not are_messages(second):
        other = next((name for name in ("system", "tools", "functions", "chat_template_kwargs") if not members.is_empty(record.get(name))), None)
        if other is not None:
            raise Refused(f'"{other}" belongs to a chat, and "prompt" and "completion" are texts; give them as lists of messages')
        return Text(first, second)
    if first is None or second is None or isinstance(first, (bool, int, float, dict)) or isinstance(second, (bool, int, float, dict)):
        raise Refused(f'"prompt" is {kind(first)} and "completion" is {kind(second)}; both are texts, or both lists of messages')
    first, second = from_text(first, "["), from_text(second, "[")
    if isinstance(first, list) != isinstance(second, list):
        raise Refused(f'"prompt" is {kind(first)} and "completion" is {kind(second)}; both are texts, or both lists of messages')
    asked, said = turns_of(first, "prompt"), turns_of(second, "completion")
    strange = strange_roles(asked[0], "prompt") + strange_roles(said[0], "completion")
    asked = with_system(*asked, system_of(record))
    return Chat(asked[0] + said[0], tools_of(record), asked[1] + said[1], len(asked[0]), variables_of(record), strange)


def text(record):
    return Text("", string(record, "text"))


def tokens(record):
    ids = whole_numbers(record, "input_ids")
    if not len(ids):
        raise Refused('"input_ids" is empty')
    seen = seen_tokens(record, len(ids))
    found = marked_tokens(record, ids)
    ids, learnt = ids[seen], None if found is None else found[seen]
    if not len(ids):
        raise Refused('"attention_mask" leaves no token')
    if learnt is not None and learnt[1:].all() and len(learnt) > 1:  # as plain text has labels that are its ids
        return Tokens(ids, learnt, False)
    return Tokens(ids, learnt, learnt is not None)


def seen_tokens(record, length):
    """The slice that "attention_mask" leaves: padding stands before or behind it."""
    if record.get("attention_mask") is None:
        check_is_one(record, slice(0, length), length)
        return slice(0, length)
    mask = whole_numbers(record, "attention_mask", length)
    if ((mask != 0) & (mask != 1)).any():
        raise Refused('"attention_mask" has other values than 0 and 1; packed records are not read: give them one by one')
    begin = int(mask.argmax())
    end = length - int(mask[::-1].argmax())
    if not mask.any():
        return slice(0, 0)
    if not mask[begin:end].all():
        raise Refused('"attention_mask" is 0 between tokens that are seen; only padding at the ends is left out')
    check_is_one(record, slice(begin, end), length)
    return slice(begin, end)


def check_is_one(record, seen, length):
    """Members that say where documents of a packed record begin: they have to say that it is one."""
    for name, step in (("position_ids", 1), ("token_type_ids", 0)):
        if record.get(name) is not None:
            found = whole_numbers(record, name, length)[seen]
            if (found[1:] - found[:-1] != step).any():
                raise Refused(f'"{name}" says that it is several documents; give them one by one')


def marked_tokens(record, ids):
    """Which tokens the record lets be learnt; None: it says nothing."""
    import numpy

    masks = [name for name in MASKS if record.get(name) is not None]
    if record.get("labels") is not None:
        labels = whole_numbers(record, "labels", len(ids))
        if record.get("attention_mask") is not None:  # what is said of padding says nothing
            labels = numpy.where(whole_numbers(record, "attention_mask", len(ids)) == 0, IGNORED_LABEL, labels)
        wrong = (labels != ids) & (labels != IGNORED_LABEL)
        if wrong.any():
            at = int(wrong.argmax())
            raise Refused(f'"labels"[{at}] is {labels[at]}, the token there is {ids[at]}; a label is its token or {IGNORED_LABEL}')
        found = [("labels", labels != IGNORED_LABEL)]
    else:
        found = []
    for name in masks:
        mask = whole_numbers(record, name, len(ids))
        if ((mask != 0) & (mask != 1)).any():
            raise Refused(f'"{name}" has other values than 0 and 1')
        found.append((name, mask == 1))
    for name, mask in found[1:]:
        if (mask != found[0][1]).any():
            raise Refused(f'"{name}" marks other tokens than "{found[0][0]}"; keep one of them')
    return found[0][1] if found else None


def whole_numbers(record, name, length=None):
    import numpy  # here, so that formats are told apart without it

    try:
        found = numpy.asarray(from_text(record.get(name), "["))
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
    "alpaca_chat": (alpaca_chat, {"instruction", "output"}),
    "text": (text, {"text"}),
}
# The part of each that is learnt without --loss_on.
LEARNT = {"tokens": "labels", "messages": "assistant", "sharegpt": "assistant", "prompt": "completion", "alpaca": "completion", "alpaca_chat": "assistant", "text": "all"}


def has_empty_answer(sample):
    """Whether an answer that is learnt has neither text nor calls."""
    if isinstance(sample, Chat):
        answers = [message for message, learnt in zip(sample.messages, sample.learnt) if learnt and message["role"] == "assistant"]
        return any(not message["content"].strip() and len(message) == 2 for message in answers)
    return isinstance(sample, Text) and sample.has_prompt and not sample.answer.strip()


def detect(record):
    """The name of the format of a file's first record."""
    if isinstance(record.value, dict):
        there = {member for member, value in record.value.items() if value is not None}  # as a table's row has it
        for name, (_, needed) in FORMATS.items():
            if needed <= there:
                is_chat = name == "alpaca" and not all(members.is_empty(record.value.get(member)) for member in ("system", "history"))
                return "alpaca_chat" if is_chat else name
    has = ", ".join(record.value) if isinstance(record.value, dict) else kind(record.value)
    wanted = "; ".join(f"{name}: {' and '.join(sorted(needed))}" for name, (_, needed) in FORMATS.items() if name != "alpaca_chat")
    raise UserError(f"[prepare] {record.place} is of no known format (it has {has}); {wanted}; other names are given by --columns instruction=question,output=answer")


def renamed(value, columns):
    """A record with its members under the names that --columns gives them (ours -> theirs)."""
    if not columns or not isinstance(value, dict):
        return value
    absent = next((theirs for theirs in columns.values() if theirs not in value), None)
    if absent is not None:
        raise Refused(f'"{absent}", which --columns names, is absent')
    others = {name: item for name, item in value.items() if name not in columns.values()}
    return {**others, **{ours: value[theirs] for ours, theirs in columns.items()}}


def sample_of(name, record):
    """(the sample, the members that are not used). Refused: the record does not fit the format."""
    if not isinstance(record.value, dict):
        raise Refused(f"it is {kind(record.value)}, an object is needed")
    sample = FORMATS[name][0](record.value)
    return sample, [*members.unused(name, record.value), *(members.unrepeated(name, record.value, sample.messages) if name in ("messages", "sharegpt") else [])]
