"""Samples to ids, and which of them are learnt: a batch at a time, so that the tokenizer's threads have work."""

from typing import Any, NamedTuple

import numpy

from prepare import bounds, formats, masks
from prepare.conversations import names_in
from prepare.errors import Refused, UserError


class Encoded(NamedTuple):
    ids: Any  # numpy [T]
    learnt: Any  # numpy bool [T]
    has_prompt: bool
    was_cut: bool
    lost_by_cut: bool  # something was learnt, and nothing of it is left


class Encoder:
    def __init__(self, tokenizer, template, loss_on=None, append_end=True, max_length=None):
        self.tokenizer = tokenizer
        self.template = template  # a function, called for the first chat
        self.loss_on = loss_on  # None: what is usual for each kind of sample
        self.max_length = max_length
        self.unasked = {}  # names of what chats have beside their texts and the template does not ask for
        self.last_learnt = None  # the special token that ends an answer: generation ends there
        self.end_id = tokenizer.end_id() if append_end else None
        if append_end and self.end_id is None:
            raise UserError(f"[prepare] {tokenizer.folder} names no eos_token to put behind each answer; add one, or use --append_eos off")
        added = len(tokenizer.prefix) + len(tokenizer.suffix)
        if max_length is not None and max_length < max(1, added):
            raise UserError(f"[prepare] max_length is {max_length}, the tokenizer alone adds {added} tokens; raise it")

    def encode(self, samples):
        """For each sample an Encoded, or the Refused that says why not."""
        kinds = {formats.Text: self.texts, formats.Chat: self.chats, formats.Tokens: self.tokens}
        answers = [None] * len(samples)
        for sample_type, encode in kinds.items():
            numbers = [number for number, sample in enumerate(samples) if isinstance(sample, sample_type)]
            if numbers:
                for number, answer in zip(numbers, self.with_each(encode, [samples[number] for number in numbers])):
                    answers[number] = answer
        return answers

    def with_each(self, encode, samples):
        """encode(samples); where one of them is refused, each by itself."""
        try:
            return [self.cut(*found) for found in encode(samples)]
        except Refused as refused:
            if len(samples) == 1:
                return [refused]
            middle = len(samples) // 2
            return [*self.with_each(encode, samples[:middle]), *self.with_each(encode, samples[middle:])]

    def texts(self, samples):
        wholes = self.tokenizer.encode([sample.prompt + sample.answer for sample in samples], special_tokens=True)
        learnt_from = [0] * len(samples)
        if self.loss_on != "all":
            prompts = self.tokenizer.encode([sample.prompt for sample in samples])
            learnt_from = [numpy.concatenate([numpy.array(self.tokenizer.prefix, numpy.int32), prompt]) for prompt in prompts]
        for sample, ids, prompt in zip(samples, wholes, learnt_from):
            if self.loss_on in {"assistant", "completion"} and not sample.has_prompt:
                raise Refused(f"it is a text without an answer, of which --loss_on {self.loss_on} learns nothing; use --loss_on all")
            if self.end_id is not None and (not len(ids) or ids[-1] != self.end_id):
                ids = numpy.append(ids, numpy.int32(self.end_id))
            mask = numpy.ones(len(ids), bool)
            if sample.has_prompt and self.loss_on != "all":
                mask[: masks.shared_length(prompt, ids)] = False
            self.note_end(ids, mask)
            yield ids, mask, sample.has_prompt, self.tokenizer.suffix if self.end_id is None else []

    def chats(self, samples):
        template = self.template()
        held, size = [], 0
        for sample in samples:
            held.append((sample, self.rendered(sample, template.of(sample.tools))))
            size += sum(map(len, held[-1][1].texts()))
            if size >= bounds.BATCH_CHARACTERS:
                yield from self.of_rendered(held)
                held, size = [], 0
        yield from self.of_rendered(held)

    def rendered(self, sample, template):
        """The texts of a chat, and how its mask follows from their tokens."""
        template.check_roles(sample.strange)
        self.unasked |= dict.fromkeys(template.unnamed(names_in(sample.messages, sample.tools, sample.variables)))
        if self.loss_on == "all":
            return masks.Whole(sample, template)
        if template.has_generation and not self.learns_completion(sample):
            return masks.Blocks(sample, template, self.chat_loss_on(sample))
        return masks.Prefixes(sample, template, self.chat_loss_on(sample))

    def of_rendered(self, held):
        plain, marked = (list(dict.fromkeys(text for _, chat in held if chat.needs_offsets == offsets for text in chat.texts())) for offsets in (False, True))
        ids = dict(zip(plain, self.tokenizer.encode(plain)))
        encodings = dict(zip(marked, self.tokenizer.encodings(marked, offsets=True)))
        for sample, chat in held:
            found, mask = chat.ids_and_mask(encodings if chat.needs_offsets else ids)
            self.note_end(found, mask)
            yield found, mask, sample.has_prompt

    def note_end(self, ids, mask):
        if self.last_learnt is None:
            learnt = ids[mask].tolist()
            self.last_learnt = next((text for token in reversed(learnt) if (text := self.tokenizer.special_text(token))), None)

    def chat_loss_on(self, sample):
        return self.loss_on or ("assistant" if sample.prompt_messages < 0 else "completion")

    def learns_completion(self, sample):
        return sample.prompt_messages >= 0 and self.chat_loss_on(sample) == "completion"

    def tokens(self, samples):
        for sample in samples:
            low, high = int(sample.ids.min()), int(sample.ids.max())
            if low < 0 or high >= self.tokenizer.vocab_size:
                raise Refused(f"its ids reach from {low} to {high}, the tokenizer has {self.tokenizer.vocab_size}")
            if self.loss_on in {"assistant", "completion"} and sample.learnt is None:
                raise Refused(f"it has neither labels nor a mask, by which --loss_on {self.loss_on} would know what is learnt")
            whole = sample.learnt is None or self.loss_on == "all"
            yield sample.ids, numpy.ones(len(sample.ids), bool) if whole else sample.learnt, sample.has_prompt

    def cut(self, ids, mask, has_prompt, suffix=()):
        if not len(ids):
            raise Refused("it has no token")
        ids = numpy.asarray(ids)
        if self.max_length is None or len(ids) <= self.max_length:
            return Encoded(ids, mask, has_prompt, False, False)
        kept, learnt = ids[: self.max_length].copy(), mask[: self.max_length]
        if suffix:  # as texts end that are whole
            kept[len(kept) - len(suffix) :] = suffix
        return Encoded(kept, learnt, has_prompt, True, bool(mask.any()) and not learnt.any())
