"""The model's tokenizer: tokenizer.json as the `tokenizers` library reads it, and what the engine's own reader agrees
with id for id. Special tokens are those of tokenizer_config.json and special_tokens_map.json."""

import json

import tokenizers
import xxhash

from prepare.errors import Refused, UserError, first_line

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# These classes of Transformers know no special token beside those that the files name.
CLASSES_WITHOUT_DEFAULTS = {"TokenizersBackend", "PreTrainedTokenizerFast"}


class Tokenizer:
    def __init__(self, folder):
        self.folder = folder
        path = folder / "tokenizer.json"
        try:
            content = path.read_bytes()
            self.backend = tokenizers.Tokenizer.from_str(content.decode())
        except FileNotFoundError:
            raise UserError(f"[prepare] {folder} has no tokenizer.json; give the folder of a model") from None
        except Exception as error:  # the library's errors are of no class of their own
            raise UserError(f"[prepare] {path}: {first_line(error)}; correct the file or download it again") from None
        self.backend.no_truncation()
        self.backend.no_padding()
        self.hash = xxhash.xxh3_128_hexdigest(content)
        self.config = self.read_json("tokenizer_config.json")
        self.special_tokens = self.named_tokens()
        self.vocab_size = 1 + max(self.backend.get_vocab(with_added_tokens=True).values())
        self.prefix, self.suffix = self.added_ids()
        self.specials = {number: token.content for number, token in self.backend.get_added_tokens_decoder().items() if token.special}

    def read_json(self, name):
        path = self.folder / name
        if not path.is_file():
            return {}
        try:
            found = json.loads(path.read_bytes())
        except ValueError as error:
            raise UserError(f"[prepare] {path}: no JSON: {error}; correct the file or download it again") from None
        return found if isinstance(found, dict) else {}

    def named_tokens(self):
        found = {}
        for source in (self.config, self.read_json("special_tokens_map.json")):
            for name in SPECIAL_NAMES:
                value = source.get(name)
                text = value.get("content") if isinstance(value, dict) else value
                if isinstance(text, str):
                    found.setdefault(name, text)
        return found

    def added_ids(self):
        """What the post-processor puts before and behind a text."""
        plain, added = (self.backend.encode("a", add_special_tokens=special).ids for special in (False, True))
        for begin in range(len(added) - len(plain) + 1):
            if added[begin : begin + len(plain)] == plain:
                return added[:begin], added[begin + len(plain) :]
        raise UserError(f"[prepare] {self.folder}/tokenizer.json: its post-processor changes the ids of a text; such files are not supported")

    def id_of(self, name):
        """Of a special token by its name; None: it has none."""
        text = self.special_tokens.get(name)
        return None if text is None else self.backend.token_to_id(text)

    def special_text(self, token):
        """The spelling of a special token; None for every other."""
        return self.specials.get(token)

    def end_id(self):
        found = self.id_of("eos_token")
        return self.backend.token_to_id("<|endoftext|>") if found is None else found

    def transformers_special_tokens(self):
        """What a template is given: with the defaults that a tokenizer's class has in Transformers."""
        name = self.config.get("tokenizer_class")
        if name in CLASSES_WITHOUT_DEFAULTS or (name is None and not (self.folder / "config.json").is_file()):
            return self.special_tokens
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self.folder, local_files_only=True).special_tokens_map
        except Exception as error:  # whatever a tokenizer's class raises
            raise UserError(f"[prepare] {self.folder}: Transformers does not load this tokenizer: {first_line(error)}") from None

    def encode(self, texts, special_tokens=False, offsets=False):
        """The library's Encodings, by all threads."""
        for text in texts:
            check_unicode(text)
        encode = self.backend.encode_batch if offsets else self.backend.encode_batch_fast
        try:
            return encode(texts, add_special_tokens=special_tokens)
        except Exception as error:
            if type(error) is not Exception:  # the library's own are of no other class
                raise
            raise Refused(f"the tokenizer refuses it: {first_line(error)}") from None


def check_unicode(text):
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Refused(f"its text has half a surrogate pair, U+{ord(text[error.start]):04X}, which is no character") from None
