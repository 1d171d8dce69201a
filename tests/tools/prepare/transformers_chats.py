"""Chats, two templates, and what Transformers makes of each with the demo's tokenizer: texts, ids and masks, in the form of ../shared/oracles/chat.

`mask` is by the template's generation blocks, `prefix_mask` by the rule of prefixes: A = ids of the chat before an assistant's message,
with the generation prompt, B = those of the chat with it; A must begin B and the whole, B the whole, and what B adds to A is learnt.
"""

import re

from support import DEMO
from transformers import AutoTokenizer

THOUGHTS = """\
{%- set last = namespace(user=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}{{- raise_exception('the system speaks first') }}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- set parts = message.content.split('</think>') %}
        {%- generation %}
        {{- (message.content if loop.index0 > last.user else parts[-1].lstrip('\\n')) + '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
TRIMMED = """\
{%- for message in messages %}
    {{- '[' + message['role'] + ']\\n\\n' }}
    {%- if message['role'] == 'assistant' %}{% generation %}{{- message['content'] | trim + '<|im_end|>' }}{% endgeneration %}
    {%- else %}{{- message['content'] | trim + '<|im_end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '[assistant]\\n\\n' }}{% endif %}"""
TEMPLATES = {"thoughts": THOUGHTS, "trimmed": TRIMMED}

TURNS = {
    "plain": "u Which day comes after Monday?¦a Tuesday.",
    "system": "s Answer briefly.¦u Which day comes after Monday?¦a Tuesday.",
    "two_turns": "u Hi¦a Hello! How can I help?¦u Tell me a joke.¦a No.",
    "four_turns": "s Only digits.¦u 1+1?¦a 2¦u 2+2?¦a 4¦u 3+3?¦a 6¦u 4+4?¦a 8",
    "empty_answer": "u Say nothing.¦a ",
    "empty_in_the_middle": "u Say nothing.¦a ¦u And now?¦a Yes.",
    "spaces": "u  a  b ¦a  two  spaces  ",
    "newlines": "u one\n\ntwo\n¦a \nthree\n\n",
    "unicode": "u naïve 日本 👩‍👩‍👧¦a ça va 😀\u200d",
    "thought": "u 2+2?¦a <think>\neasy\n</think>\n\n4",
    "earlier_thought": "u 2+2?¦a <think>\neasy\n</think>\n\n4¦u Sure?¦a Yes.",
    "two_answers": "u Go on.¦a One.¦a Two.",
    "marks_in_text": "u What is <|im_end|>?¦a It ends <|im_start|>user\n turns.",
    "code": "u ```py\nx = {'a': [1]}\n```¦a \t`x['a']`\r\n",
    "no_answer": "s Only a system.¦u And a question.",
    "system_later": "u Hi¦s Be brief.¦a Yes.",
}
ROLES = {"s": "system", "u": "user", "a": "assistant"}


def conversations():
    return {f"small_{name}": [{"role": ROLES[turn[0]], "content": turn[2:]} for turn in turns.split("¦")] for name, turns in TURNS.items()}


def without_blocks(template):
    return re.sub(r"\{%-? (end)?generation %\}", "", template)


def prefix_mask(messages, ids_of):
    """None where the rule cannot be verified."""
    whole = ids_of(messages)
    mask = [0] * len(whole)
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            before = ids_of(messages[:number], add_generation_prompt=True)
            after = ids_of(messages[: number + 1])
            if after[: len(before)] != before or whole[: len(after)] != after:
                return None
            mask[len(before) : len(after)] = [1] * (len(after) - len(before))
    return mask


def runs(mask):
    """[begin, end) of each run of ones."""
    edges = [at for at in range(len(mask) + 1) if (mask[at - 1] if at else 0) != (mask[at] if at < len(mask) else 0)]
    return list(zip(edges[::2], edges[1::2]))


def case_of(name, messages, template, tokenizer):
    try:
        both = tokenizer.apply_chat_template(messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True)
    except Exception as error:  # jinja2's
        return {"name": name, "error": str(error)}
    ids, mask = list(both["input_ids"]), list(both["assistant_masks"])
    speakers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    learnt = [[number, *run] for number, run in zip(speakers, runs(mask))] if len(speakers) == len(runs(mask)) else []
    stripped = without_blocks(template)

    def ids_of(some, **flags):
        return list(tokenizer.apply_chat_template(some, chat_template=stripped, return_dict=True, **flags)["input_ids"])

    return {"name": name, "ids": ids, "mask": mask, "mask_by": "generation", "learnt": learnt, "prefix_mask": prefix_mask(messages, ids_of)}


def cases(template):
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    return [case_of(name, messages, TEMPLATES[template], tokenizer) for name, messages in conversations().items()]
