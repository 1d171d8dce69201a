"""Samples to ids, and which of them are learnt: a batch at a time, so that the tokenizer's threads have work."""

from typing import Any, NamedTuple

import numpy

from prepare import formats, masks
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
            learnt_from = [self.tokenizer.prefix + prompt.ids for prompt in prompts]
        for sample, whole, prompt in zip(samples, wholes, learnt_from):
            if self.loss_on in {"assistant", "completion"} and not sample.has_prompt:
                raise Refused(f"it is a text without an answer, of which --loss_on {self.loss_on} learns nothing; use --loss_on all")
            ids = whole.ids
            if self.end_id is not None and (not ids or ids[-1] != self.end_id):
                ids = [*ids, self.end_id]
            mask = numpy.ones(len(ids), bool)
            if sample.has_prompt and self.loss_on != "all":
                mask[: masks.shared_length(prompt, ids)] = False
            self.note_end(ids, mask)
            yield ids, mask, sample.has_prompt, self.tokenizer.suffix if self.end_id is None else []

    def chats(self, samples):
        template = self.template()
        if self.loss_on == "all":
            found = self.tokenizer.encode([template.render(sample.messages, sample.tools) for sample in samples])
            for sample, encoding in zip(samples, found):
                mask = numpy.ones(len(encoding.ids), bool)
                self.note_end(encoding.ids, mask)
                yield encoding.ids, mask, sample.has_prompt
            return
        marked = [template.has_generation and not self.learns_completion(sample) for sample in samples]
        generated = self.by_generation(template, [sample for sample, by_marks in zip(samples, marked) if by_marks])
        prefixed = self.by_prefixes(template, [sample for sample, by_marks in zip(samples, marked) if not by_marks])
        for sample, by_marks in zip(samples, marked):
            ids, mask = next(generated if by_marks else prefixed)
            self.note_end(ids, mask)
            yield ids, mask, sample.has_prompt

    def note_end(self, ids, mask):
        if self.last_learnt is None:
            learnt = numpy.asarray(ids)[mask].tolist()
            self.last_learnt = next((text for token in reversed(learnt) if (text := self.tokenizer.special_text(token))), None)

    def chat_loss_on(self, sample):
        return self.loss_on or ("assistant" if sample.prompt_messages < 0 else "completion")

    def learns_completion(self, sample):
        return sample.prompt_messages >= 0 and self.chat_loss_on(sample) == "completion"

    def by_generation(self, template, samples):
        rendered = [template.render(sample.messages, sample.tools, spans=True) for sample in samples]
        encodings = self.tokenizer.encode([text for text, _ in rendered], offsets=True)
        for sample, encoding, (_, spans) in zip(samples, encodings, rendered):
            yield encoding.ids, masks.by_generation(sample, self.chat_loss_on(sample), encoding, spans)

    def by_prefixes(self, template, samples):
        prefixes = [masks.Prefixes(sample, template, self.chat_loss_on(sample)) for sample in samples]
        texts = list(dict.fromkeys(text for prefix in prefixes for text in prefix.texts()))
        ids = dict(zip(texts, (encoding.ids for encoding in self.tokenizer.encode(texts))))
        for prefix in prefixes:
            yield ids[prefix.whole], prefix.mask(ids.__getitem__)

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
