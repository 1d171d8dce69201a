"""The model's tokenizer: tokenizer.json as the `tokenizers` library reads it, with what tokenizer_config.json and
special_tokens_map.json add to it in Transformers. The engine's own reader agrees with it id for id
(models/io/tokenizer/tokenizer_files.cpp)."""

import json

import numpy
import tokenizers
import xxhash

from prepare import bounds, files
from prepare.errors import Ended, Refused, UserError, first_line

MOST_VOCABULARY = 1 << 31
MOST_CONFIG_CHARACTERS = 1 << 28  # some list each of their added tokens
# Files that hold a tokenizer in another form than tokenizer.json.
OTHER_FORMS = ("tokenizer.model", "tekken.json", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.tiktoken", "vocab.txt")
TOKEN_TYPE = "AddedToken"  # the "__type" of an object that is a token
MORE_NAMES = ("extra_special_tokens", "additional_special_tokens")  # the newer one first
# Members of tokenizer_config.json that ask for other ids; docs/folder_keys.md has all of them.
REFUSED = ("split_special_tokens", "fix_mistral_regex")
OF_CONFIG = ("add_bos_token", "add_eos_token")  # without effect in tokenizer_config.json, and obeyed in special_tokens_map.json
# Transformers chooses the class before it reads special_tokens_map.json, and takes added tokens from the two other files.
WITHOUT_EFFECT_IN_MAP = {"tokenizer_class", "added_tokens_decoder"}
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
PLAIN = "TokenizersBackend"
# model_type -> the class that Transformers has for it, where it has one.
CLASSES = {"gpt2": "GPT2Tokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "qwen3_moe": "Qwen2Tokenizer", "gemma3_text": "GemmaTokenizer", "gemma3": "GemmaTokenizer",
           "mistral": PLAIN, "mixtral": PLAIN, "phi3": PLAIN}
WRONG_CLASSES = {"qwen2", "phi3"}  # whose published files name another class than the one that counts
# Special tokens that a class has where no file says anything of them.
DEFAULTS = {"GPT2Tokenizer": dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
            "Qwen2Tokenizer": dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
            "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
            "GemmaTokenizer": {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}}
# These classes of Transformers know no special token beside those that the files name.
CLASSES_WITHOUT_DEFAULTS = {"TokenizersBackend", "PreTrainedTokenizerFast"}


def flags_of(token, special):
    """Returns the flags of an added token, as the library's AddedToken has them."""
    flags = {name: bool(token.get(name, False)) for name in ("single_word", "lstrip", "rstrip")}
    return {**flags, "special": special, "normalized": bool(token.get("normalized", not special))}


def class_of(config, model):
    """The class of Transformers that reads these files, by tokenizer_config.json and config.json: models/io/tokenizer/ has
    the same rules."""
    given = config.get("tokenizer_class") or model.get("tokenizer_class")
    given = given.removesuffix("Fast") if isinstance(given, str) else ""
    registered = CLASSES.get(model.get("model_type")) if isinstance(model.get("model_type"), str) else None
    if registered is None or not given or registered == given:
        return given or registered or PLAIN
    return registered if registered == PLAIN or model["model_type"] in WRONG_CLASSES else given


def named_specials(config):
    """name -> text or object of the special tokens that have one, in Transformers' order. It passes over an object under a
    name of the model's own that does not say that it is a token."""
    own = [name for name in config if name.endswith("_token") and name not in (*SPECIAL_NAMES, *OF_CONFIG)]
    found = {name: config[name] for name in SPECIAL_NAMES if isinstance(config.get(name), (str, dict))}
    found |= {name: config[name] for name in own if isinstance(config[name], str) or isinstance(config[name], dict) and config[name].get("__type") == TOKEN_TYPE}
    for name in ("model_specific_special_tokens", MORE_NAMES[0]):
        more = config.get(name)
        found |= more if isinstance(more, dict) else {}
    return found


def other_specials(config):
    """The list of those without a name; the newer one of its two names counts, even if it is null."""
    found = config.get(next((name for name in MORE_NAMES if name in config), None)) or []
    return found if isinstance(found, list) else [] if MORE_NAMES[0] in config else list(found.values())


def with_map(config, special_tokens_map):
    """tokenizer_config.json with the members of special_tokens_map.json in the place of its own."""
    newer, older = MORE_NAMES
    special_tokens_map = {name: {**value, "__type": TOKEN_TYPE} if isinstance(value, dict) and name != newer else value
                          for name, value in special_tokens_map.items() if name not in WITHOUT_EFFECT_IN_MAP}
    listed = next((config[name] for name in MORE_NAMES if name in config), None)
    more = special_tokens_map.get(newer)
    if isinstance(more, list):
        listed = listed if isinstance(listed, list) else []
        special_tokens_map = {**special_tokens_map, newer: [*listed, *(token for token in more if token not in listed)]}
    elif any(name in config for name in MORE_NAMES):
        special_tokens_map = {name: value for name, value in special_tokens_map.items() if name != older}
    return {**config, **special_tokens_map}


def with_added_tokens(config, added, known):
    """The tokens of added_tokens.json that tokenizer.json does not add, in the form of added_tokens_decoder."""
    if not added:
        return config
    more = next((config[name] for name in MORE_NAMES if name in config), None)
    special = {content_of(token) for token in [*(config.get(name) for name in SPECIAL_NAMES), *(more if isinstance(more, list) else [])] if isinstance(token, (str, dict))}
    return {**config, "added_tokens_decoder": {str(number): {"content": text, "special": text in special, "normalized": text not in special} for text, number in added.items() if text not in known}}


def steps_of_class(name, config):
    """The steps of tokenizer.json that a class has its own of; None: none. models/io/tokenizer/ has the same."""
    if name == "LlamaTokenizer":
        begins, is_legacy = (flag_of(config, flag, usual) for flag, usual in (("add_prefix_space", True), ("legacy", False)))
        scheme = "never" if not begins else "always" if is_legacy else "first"
        return {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": False}, "unk_token": None}
    if name == "GemmaTokenizer":
        space = {"pattern": {"String": " "}}
        return {"normalizer": {"type": "Replace", **space, "content": "\u2581"}, "pre_tokenizer": {"type": "Split", **space, "behavior": "MergedWithPrevious", "invert": False},
                "unk_token": content_of(config.get("unk_token")) or "<unk>"}
    return None


# The normalizer and pre-tokenizer, as kinds_of_steps() gives them, with which these classes of Transformers 5 replace
# tokenizer.json's. Here the file's count: it is how the model was trained, and earlier versions read it so.
QWEN2_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
OTHER_STEPS = {"GPT2Tokenizer": ["ByteLevel"], "Qwen2Tokenizer": ["NFC", f"Split Isolated {QWEN2_WORDS}", "ByteLevel of split words"]}


def kinds_of_steps(step):
    """Returns a word for each step of a normalizer or pre-tokenizer, in order; a space before the text is a setting of its own."""
    kind = (step or {}).get("type")
    if kind == "Sequence":
        return [word for inner in step.get("normalizers", step.get("pretokenizers", [])) for word in kinds_of_steps(inner)]
    if kind == "ByteLevel":
        return ["ByteLevel" if step.get("use_regex", True) else "ByteLevel of split words"]
    if kind == "Split":
        pattern = step.get("pattern") or {}
        return [f"Split {step.get('behavior')}{' inverted' if step.get('invert') else ''} {pattern.get('Regex', pattern.get('String'))}"]
    return [kind] if kind else []


def note_on_steps(class_name, backend):
    """Returns a note if the class would take other steps than tokenizer.json's; "" otherwise."""
    if class_name not in OTHER_STEPS:
        return ""
    whole = json.loads(backend.to_str())
    if [*kinds_of_steps(whole.get("normalizer")), *kinds_of_steps(whole.get("pre_tokenizer"))] == OTHER_STEPS[class_name]:
        return ""
    return f"tokenizer.json's normalizer and pre_tokenizer count; Transformers 5 has others for tokenizer_class {class_name}, and may give other ids"


def note_on_added(class_name, config, backend):
    """Returns a note if tokenizer.json adds a token that these classes would not know, since they take the added tokens of
    tokenizer_config.json where that lists any; "" otherwise."""
    listed = config.get("added_tokens_decoder")
    if class_name not in (*OTHER_STEPS, "LlamaTokenizer", "GemmaTokenizer") or not isinstance(listed, dict):
        return ""
    contents = {content for content in map(content_of, listed.values()) if isinstance(content, str)}
    lacks = [token.content for _, token in sorted(backend.get_added_tokens_decoder().items()) if token.content not in contents]
    return f"tokenizer.json's added token {lacks[0]} counts; added_tokens_decoder lacks it, so Transformers 5 gives other ids with tokenizer_class {class_name}" if lacks else ""


def flag_of(config, name, usual):
    found = config.get(name)
    if found is not None and not isinstance(found, bool):
        raise UserError(f"[prepare] tokenizer_config.json: {name} is {json.dumps(found)}, true or false is needed; correct the file")
    return usual if found is None else found


def content_of(token):
    return token.get("content") if isinstance(token, dict) else token


class Tokenizer:
    def __init__(self, folder):
        self.folder = folder
        path = folder / "tokenizer.json"
        try:
            content = path.read_bytes()
            self.backend = tokenizers.Tokenizer.from_str(content.decode())
        except FileNotFoundError:
            others = " and ".join(name for name in OTHER_FORMS if files.is_file(folder / name))
            made = f"make one of its {others}" if others else "make one"
            raise UserError(f"[prepare] {folder} has no tokenizer.json; {made} with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)") from None
        except BaseException as error:  # the library's errors are of no class of their own, and its panics no Exceptions
            raise self.fault(error) from None
        self.backend.no_truncation()
        self.backend.no_padding()
        self.hash = xxhash.xxh3_128_hexdigest(content)
        self.config = self.read_config()
        try:
            note = note_on_added(self.class_name, self.read_json("tokenizer_config.json"), self.backend)
            self.add_what_the_config_adds()
        except BaseException as error:
            raise self.fault(error) from None
        self.note = note_on_steps(self.class_name, self.backend) or note
        self.special_tokens = self.named_tokens()
        self.vocab_size = 1 + max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)
        if not 0 < self.vocab_size <= MOST_VOCABULARY:
            raise UserError(f"[prepare] {path}: its ids end at {self.vocab_size - 1}, from 0 to {MOST_VOCABULARY - 1} are possible; correct the file or download it again")
        self.prefix, self.suffix = self.added_ids()
        self.specials = {number: token.content for number, token in self.backend.get_added_tokens_decoder().items() if token.special}

    def add_what_the_config_adds(self):
        """Tokens that tokenizer.json does not have, and the space before a text."""
        found = {token.content: token for token in self.backend.get_added_tokens_decoder().values()}
        known = set(found)
        decoder = self.config.get("added_tokens_decoder") or {}
        if not isinstance(decoder, dict) or not all(number.isdecimal() and isinstance(content_of(token), str) for number, token in decoder.items()):
            raise UserError(f"[prepare] {self.folder / 'tokenizer_config.json'}: added_tokens_decoder is {json.dumps(decoder)[:200]}, an object with a token for "
                            "each id is needed; correct the file")
        for number, token in sorted(decoder.items(), key=lambda item: int(item[0])):
            text = content_of(token)
            told = token if isinstance(token, dict) else {}
            flags = flags_of(told, bool(told.get("special", False)))
            if text in found and all(getattr(found[text], name) == value for name, value in flags.items()):
                continue
            self.backend.add_tokens([tokenizers.AddedToken(text, **flags)])
            if text in known:  # its flags count instead of tokenizer.json's, and its id does not
                continue
            known.add(text)
            if self.backend.token_to_id(text) != int(number):
                raise UserError(f"[prepare] {self.folder / 'tokenizer_config.json'}: its added_tokens_decoder, or added_tokens.json, gives {text} the id {number}, and "
                                f"{self.backend.token_to_id(text)} is the next one; correct the file or download it again")
        others = [("one of the other special tokens", token) for token in other_specials(self.config)]
        for name, token in [*named_specials(self.config).items(), *others]:
            text = content_of(token)
            if not isinstance(text, str):
                raise UserError(f"[prepare] {self.folder / 'tokenizer_config.json'}: {name} is {json.dumps(token)}, a text is needed; correct the file")
            if text and text not in known:
                known.add(text)
                self.backend.add_special_tokens([tokenizers.AddedToken(text, **flags_of(token if isinstance(token, dict) else {}, True))])
        self.put_prefix_space()
        self.put_steps_of_class()

    def put_steps_of_class(self):
        """These classes have a normalizer, a pre-tokenizer and an unknown token of their own in the place of tokenizer.json's.
        Not for a vocabulary of bytes, whose spaces they would lose."""
        steps = steps_of_class(self.class_name, self.config)
        if steps is None or not getattr(self.backend.model, "byte_fallback", False) or "ByteLevel" in str(self.backend.pre_tokenizer):
            return
        whole = json.loads(self.backend.to_str())
        model = {**whole["model"], "unk_token": steps.pop("unk_token"), "fuse_unk": True}
        if {**whole, **steps, "model": model} != whole:
            self.backend = tokenizers.Tokenizer.from_str(json.dumps({**whole, **steps, "model": model}))

    def put_prefix_space(self):
        """These classes put a space before a text if tokenizer_config.json says so, whatever tokenizer.json has."""
        wanted = self.config.get("add_prefix_space")
        if self.class_name not in ("GPT2Tokenizer", "Qwen2Tokenizer"):
            return
        whole = json.loads(self.backend.to_str())
        steps = [whole.get("pre_tokenizer") or {}]
        steps += steps[0].get("pretokenizers", [])
        for step in steps:
            if step.get("type") == "ByteLevel":
                step["add_prefix_space"] = bool(wanted)
        self.backend = tokenizers.Tokenizer.from_str(json.dumps(whole))

    def fault(self, error):
        """Returns the exception to raise in place of an error of the library."""
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError, UserError, Ended)):
            return error
        if isinstance(error, OSError) and error.errno is not None:
            return error
        return UserError(f"[prepare] {self.folder / 'tokenizer.json'}: {first_line(error)}; correct the file or download it again")

    def read_json(self, name):
        path = self.folder / name
        return files.read_json(path, MOST_CONFIG_CHARACTERS) if files.is_file(path) else {}

    def read_config(self):
        """tokenizer_config.json. Where that lists no added tokens, the members of special_tokens_map.json take the place
        of its own, as in Transformers."""
        config = self.read_json("tokenizer_config.json")
        lists_added = "added_tokens_decoder" in config
        if not lists_added:
            special_tokens_map = self.read_json("special_tokens_map.json")
            moved = next((name for name in OF_CONFIG if special_tokens_map.get(name) is not None), None)
            if moved is not None:
                raise UserError(f"[prepare] {self.folder / 'special_tokens_map.json'}: {moved} gives other ids there than are made here; take it out")
            config = with_map(config, special_tokens_map)
            config = with_added_tokens(config, self.read_json("added_tokens.json"), {token.content for token in self.backend.get_added_tokens_decoder().values()})
        model = self.read_json("config.json")
        self.class_name = class_of(config, model)
        rows, size = model.get("vocab_size"), self.backend.get_vocab_size()
        has_room = not isinstance(rows, int) or rows > size
        config = {**{name: text for name, text in DEFAULTS.get(self.class_name, {}).items() if has_room or self.backend.token_to_id(text) is not None}, **config}
        for name in REFUSED:
            if config.get(name):
                raise UserError(f"[prepare] {self.folder / 'tokenizer_config.json'}: {name} is {json.dumps(config[name])}, which gives other ids than are made here; take it out")
        return config

    def named_tokens(self):
        return {name: content_of(token) for name, token in named_specials(self.config).items() if isinstance(content_of(token), str)}

    def added_ids(self):
        """Returns the ids that the post-processor puts before and behind a text."""
        try:
            plain, added = (self.backend.encode("a", add_special_tokens=special).ids for special in (False, True))
        except BaseException as error:
            raise self.fault(error) from None
        for begin in range(len(added) - len(plain) + 1):
            if added[begin : begin + len(plain)] == plain:
                return added[:begin], added[begin + len(plain) :]
        raise UserError(f"[prepare] {self.folder}/tokenizer.json: its post-processor changes the ids of a text; such files are not supported")

    def id_of(self, name):
        """Returns the id of a special token by its name; None: it has none."""
        text = self.special_tokens.get(name)
        return None if text is None else self.backend.token_to_id(text)

    def special_text(self, token):
        """The spelling of a special token; None for every other."""
        return self.specials.get(token)

    def end_id(self):
        found = self.id_of("eos_token")
        return self.backend.token_to_id("<|endoftext|>") if found is None else found

    def transformers_special_tokens(self):
        """Returns the special tokens that a template is given, with the defaults that a tokenizer's class has in Transformers."""
        name = self.config.get("tokenizer_class")
        if name in CLASSES_WITHOUT_DEFAULTS or (name is None and not (self.folder / "config.json").is_file()):
            return self.special_tokens
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self.folder, local_files_only=True).special_tokens_map
        except Exception as error:  # whatever a tokenizer's class raises
            raise UserError(f"[prepare] {self.folder}: Transformers does not load this tokenizer: {first_line(error)}") from None

    def encode(self, texts, special_tokens=False):
        """The ids of each text (numpy, int32), by all threads."""
        return [numpy.array(encoding.ids, numpy.int32) for encoding in self.encodings(texts, special_tokens)]

    def encodings(self, texts, special_tokens=False, offsets=False):
        """The library's Encodings one after the other, with no more of them in memory than of a group of texts."""
        for text in texts:
            check_unicode(text)
            bounds.check_room_to_tokenise(text)
        encode = self.backend.encode_batch if offsets else self.backend.encode_batch_fast
        for group in bounds.groups(texts):
            try:
                yield from encode(group, add_special_tokens=special_tokens)
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
