"""One table of the members that records have: which of them are used, which say nothing about the text, which would
change it and are not read, which belong to other ways of training.

A member that would change what is learnt is used or refused by name, never passed over. One of another way of training,
or one that is in no list, is said once in a note. models/data/record_members.cpp has the same lists for instructions
that the programs read themselves; tests/tools/prepare/members_test.py compares them, and looks for the members of TRL's
and LLaMA-Factory's records.
"""

from prepare.errors import Refused

# By format, as formats.py names them.
USED = {
    "tokens": {"input_ids", "labels", "mask", "loss_mask", "assistant_masks", "completion_mask", "attention_mask", "position_ids", "token_type_ids"},
    "messages": {"messages", "tools", "functions", "system", "chat_template_kwargs"},
    "sharegpt": {"conversations", "tools", "functions", "system", "chat_template_kwargs"},
    "prompt": {"prompt", "completion", "tools", "functions", "system", "chat_template_kwargs"},
    "alpaca": {"instruction", "input", "output"},
    "alpaca_chat": {"instruction", "input", "output", "history", "system", "tools", "functions", "chat_template_kwargs"},
    "text": {"text"},
}
# Members of every format: they describe a record, or repeat a member that is read in another form.
HARMLESS = {
    "_id", "author", "authors", "categories", "category", "chosen_model", "conv_id", "conversation_id", "conversation_hash", "created", "created_at", "data_source", "dataset",
    "date", "difficulty", "domain", "generator", "hash", "id", "idx", "index", "info", "lang", "language", "languages", "length", "lengths", "license", "meta", "metadata",
    "model", "model_name", "n_tokens", "name", "num_tokens", "num_turns", "origin", "original_index", "parallel_tool_calls", "prompt_id", "quality", "row_id", "sample_id", "score", "source",
    "sources", "special_tokens_mask", "split", "subset", "tag", "tags", "task", "task_type", "timestamp", "title", "token_count", "topic", "topics", "total_tokens", "turn", "turns", "type",
    "updated_at", "url", "uuid", "version",
    "text", "prompt", "instruction", "input", "output", "completion", "conversations", "messages", "weight",
}
# They would change the text, or which of it is learnt and how much.
REFUSED = {
    "audio", "audios", "cu_seqlens", "documents", "history", "image", "images", "loss_weight", "loss_weights", "position_ids", "sample_weight", "segment_ids", "seq_lengths",
    "mm_token_type_ids", "sequence_lengths", "system", "system_prompt", "token_weights", "tools", "video", "videos", "weight", "weights",
}
# Preferences and rewards are left aside: the record is learnt without them, and a note says so.
OTHER_TASKS = {"chosen", "completions", "kto_tag", "label", "labels", "rejected"}
# An answer that its record calls a bad one is none to learn.
VERDICTS = ("kto_tag", "label")


# Texts that data sets of chats repeat beside the messages.
REPEATED = ("text", "prompt", "instruction", "input", "output", "completion")


def is_empty(value):
    return value is None or isinstance(value, (str, list, dict)) and not value or value in ("[]", "{}")  # as csv has them


def unrepeated(name, record, messages):
    """The texts beside a chat's messages that none of them has."""
    texts = [message["content"] for message in messages if message["content"]]
    others = [member for member in REPEATED if member not in USED[name] and isinstance(record.get(member), str) and record[member].strip()]
    return [member for member in others if not any(record[member].strip() in text or text in record[member] for text in texts)]


def unused(name, record):
    """The members of a record that its format does not use and that nobody knows. Refused: one would change the text."""
    found = []
    for member, value in record.items():
        if member in USED[name] or is_empty(value):
            continue
        if member in VERDICTS and (value is False or value in ("false", "False")):
            raise Refused(f'"{member}" is false: the record says that its answer is a bad one, and that would be learnt; leave such records out')
        if member in REFUSED and not (member == "weight" and value == 1):
            other = ", or make chats of all instructions by --dataset_format alpaca_chat" if name == "alpaca" and member in USED["alpaca_chat"] else ", or put it into the text"
            raise Refused(f'"{member}" would change what is learnt, and records of the form {name} are read without it; take it out{other}')
        if member not in HARMLESS:
            found.append(member)
    return found
