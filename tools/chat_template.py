"""A model's chat template: found beside its tokenizer, and rendered as Transformers renders it (tests compare).

Needs jinja2 alone, which torch brings along.
"""

import datetime
import json
import os
from pathlib import Path

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatError(Exception):
    """One line that says where, what and what to do."""


class Generation(Extension):
    """{% generation %}: marks what the assistant says; its text is that of the block."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def refuse(message):
    raise jinja2.TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = lambda value, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


def model_folder(name):
    """A folder, or the newest snapshot of a hub id in the local cache, as the programs find it."""
    if os.path.isdir(name):
        return Path(name)
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / ("models--" + name.replace("/", "--")) / "snapshots"
    snapshots = sorted(cache.glob("*"), key=lambda folder: folder.stat().st_mtime) if cache.is_dir() else []
    if not snapshots:
        raise ChatError(f"[model] {name} is neither a folder nor in the Hugging Face cache; give a folder")
    return snapshots[-1]


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ChatError(f"[chat] {path} is not valid JSON ({error}); correct the file") from None


class ChatTemplate:
    def __init__(self, folder, override=None):
        """`override`: a file with another template."""
        config = folder / "tokenizer_config.json"
        known = read_json(config) if config.exists() else {}
        text = self.find(folder, known, override)
        self.special = {}
        for key in SPECIAL:
            token = known.get(key)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                self.special[key] = token
        try:
            self.template = environment().from_string(text)
        except jinja2.TemplateError as error:
            raise ChatError(f"[chat] the chat template does not compile: {error}; give another by --chat_template") from None

    @staticmethod
    def find(folder, known, override):
        file = Path(override) if override else folder / "chat_template.jinja"
        if override or file.exists():
            try:
                return file.read_text(encoding="utf-8")
            except OSError as error:
                raise ChatError(f"[chat] --chat_template {file}: {error.strerror}; name a file") from None
        template = known.get("chat_template")
        if isinstance(template, list):  # several by name
            template = next((one.get("template") for one in template if one.get("name") == "default"), None)
        if not isinstance(template, str):
            raise ChatError(f"[chat] {folder} has no chat template; give one by --chat_template, or leave --chat out")
        return template

    def render(self, messages, add_generation_prompt=True):
        """The text of a conversation, special tokens spelled out."""
        try:
            return self.template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=add_generation_prompt, **self.special
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            line = " ".join(str(error).split())
            raise ChatError(f"[chat] the chat template refuses the conversation: {line}; change the messages") from None
