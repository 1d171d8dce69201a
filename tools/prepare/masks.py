"""Which tokens of a chat are learnt.

By the template's {% generation %} blocks, with the bits of Transformers' return_assistant_tokens_mask; where it has
none, by prefixes in tokens: what the assistant's message adds to the chat before it, whose generation prompt has to be
a prefix of the chat with the message, and that of the whole. A mask that cannot be shown so is refused, never guessed.
"""

import numpy

from prepare import bounds
from prepare.errors import Refused


def shared_length(first, second):
    """Tokens that both begin with."""
    first, second = numpy.asarray(first), numpy.asarray(second)
    most = min(len(first), len(second))
    differ = first[:most] != second[:most]
    return int(differ.argmax()) if differ.any() else most


def assistant_numbers(chat):
    return [number for number, message in enumerate(chat.messages) if message["role"] == "assistant"]


def learnt_numbers(chat, loss_on):
    """The assistant's messages that are learnt: all or the last, and by their weights."""
    found = assistant_numbers(chat)
    if loss_on == "completion":
        found = found[-1:]
    return [number for number in found if chat.learnt[number]]


def by_generation(chat, loss_on, encoding, spans):
    """bool [T]. `spans` are characters, as Template.render gives them."""
    mask = numpy.zeros(len(encoding.ids), bool)
    for begin, end in chosen_spans(chat, loss_on, spans):
        first, last = encoding.char_to_token(begin), encoding.char_to_token(end - 1) if end else None
        if first is None and begin == end:  # an empty block, behind the text's last token
            continue
        # Transformers forgets the blocks from here on in the one case, and marks all that follows in the other.
        if first is None or not last:
            raise Refused("a {% generation %} block begins or ends with a character that no token of its own holds")
        mask[first : last + 1] = True
    return mask


class Whole:
    """All is learnt."""

    needs_offsets = False

    def __init__(self, chat, template):
        self.whole = template.render(chat.messages, chat.tools, variables=chat.variables)

    def texts(self):
        return [self.whole]

    def ids_and_mask(self, ids_of):
        ids = ids_of[self.whole]
        return ids, numpy.ones(len(ids), bool)


class Blocks:
    """The template's {% generation %} blocks are learnt."""

    needs_offsets = True

    def __init__(self, chat, template, loss_on):
        self.chat = chat
        self.loss_on = loss_on
        self.whole, self.spans = template.render(chat.messages, chat.tools, spans=True, variables=chat.variables)

    def texts(self):
        return [self.whole]

    def ids_and_mask(self, encoding_of):
        encoding = encoding_of[self.whole]
        return numpy.array(encoding.ids, numpy.int32), by_generation(self.chat, self.loss_on, encoding, self.spans)


def chosen_spans(chat, loss_on, spans):
    assistants = assistant_numbers(chat)
    chosen = learnt_numbers(chat, loss_on)
    if chosen == assistants:
        return spans
    if len(spans) != len(assistants):
        raise Refused(f"the template marks {len(spans)} {{% generation %}} blocks for {len(assistants)} messages of the assistant, so their weights say nothing")
    return [span for number, span in zip(assistants, spans) if number in chosen]


class Prefixes:
    """The chats whose ids decide, and then the mask. Built before and read after all of a batch's texts are encoded."""

    needs_offsets = False

    def __init__(self, chat, template, loss_on):
        self.chat = chat
        self.template = template
        self.size = 0  # characters of all its texts
        self.whole = template.render(chat.messages, chat.tools, variables=chat.variables)
        self.turns = []  # (message number, text before it with the generation prompt, text with it)
        if chat.prompt_messages >= 0 and loss_on == "completion":
            asks = chat.messages[chat.prompt_messages - 1]["role"] != "assistant"
            self.add(chat, template, chat.prompt_messages, len(chat.messages), asks)
            if not all(chat.learnt[chat.prompt_messages :]):
                raise Refused('a message of the completion has a "weight", "loss" or "train" of 0, and a completion is learnt as a whole; use --loss_on assistant')
        else:
            for number in learnt_numbers(chat, loss_on):
                self.add(chat, template, number, number + 1)

    def add(self, chat, template, begin, end, generation_prompt=True):
        before = template.render(chat.messages[:begin], chat.tools, add_generation_prompt=generation_prompt, variables=chat.variables)
        whole = self.whole if end == len(chat.messages) else template.render(chat.messages[:end], chat.tools, variables=chat.variables)
        self.size += len(before) + len(whole)
        if self.size > bounds.MOST_CHAT_CHARACTERS:
            raise Refused(f"its beginnings, message by message, have more than {bounds.MOST_CHAT_CHARACTERS} characters together; use a template with {{% generation %}}")
        self.turns.append((begin + 1, before, whole))

    def texts(self):
        return [self.whole, *(text for turn in self.turns for text in turn[1:])]

    def ids_and_mask(self, ids_of):
        whole = ids_of[self.whole]
        mask = numpy.zeros(len(whole), bool)
        for number, before_text, with_text in self.turns:
            before, through = ids_of[before_text], ids_of[with_text]
            for shorter, longer, what in ((before, through, "itself"), (before, whole, "the whole chat"), (through, whole, "the whole chat")):
                if shared_length(shorter, longer) < len(shorter):
                    which = "up to" if shorter is before else "with"
                    last_alone = ", or --loss_on completion, which learns the last answer alone" if len(self.turns) > 1 else ""
                    ready = self.template.ready_for(self.chat)
                    marked = f"--chat_template {ready}, which makes the same text and marks it" if ready else "a template with {% generation %}"
                    raise Refused(f"the tokens of the chat {which} message {number} are no prefix of those with {what}, so what the assistant says there "
                                  f"cannot be told apart; use {marked}{last_alone}")
            mask[len(before) : len(through)] = True
        return whole, mask
