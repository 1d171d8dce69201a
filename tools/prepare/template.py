"""A chat as text: the template is Transformers' Jinja, rendered by its own code."""

import re
from pathlib import Path

import xxhash

from prepare import files
from prepare.bounds import template_bounds
from prepare.errors import Refused, UserError, first_line

GENERATION = re.compile(r"\{\%-?\s*generation\s*-?\%\}")  # as Transformers looks for it


class Template:
    def __init__(self, text, name, tokenizer):
        from transformers.utils import chat_template_utils

        self.text = text
        self.name = name
        self.hash = xxhash.xxh3_128_hexdigest(text.encode())
        self.renderer = chat_template_utils.render_jinja_template
        self.has_generation = GENERATION.search(text) is not None
        try:
            with template_bounds(f"the template {name}"):
                variables = chat_template_utils._get_template_variables(text)
        except (UserError, MemoryError):
            raise
        except Exception as error:  # Jinja's: the template's syntax
            raise UserError(f"[chat_template] {name} does not compile: {first_line(error)}; correct it, or give another by --chat_template") from None
        wanted = {variable for variable in variables if variable.endswith("_token")} - tokenizer.special_tokens.keys()
        self.special_tokens = tokenizer.transformers_special_tokens() if wanted else tokenizer.special_tokens

    def render(self, messages, tools, add_generation_prompt=False, spans=False, variables=None):
        """The text, and with `spans` the [begin, end) of its characters that {% generation %} marks."""
        given = {**self.special_tokens, **(variables or {})}
        try:
            with template_bounds(f"the template {self.name}"):
                texts, found = self.renderer(conversations=[messages], tools=tools, chat_template=self.text, return_assistant_tokens_mask=spans,
                                             add_generation_prompt=add_generation_prompt, **given)
        except (UserError, MemoryError):
            raise
        except Exception as error:  # a template may raise anything
            what = "the empty chat before the assistant, who speaks first" if not messages else "it"
            raise Refused(f"the chat template refuses {what}: {first_line(error)}") from None
        return (texts[0], found[0]) if spans else texts[0]


def find_template(tokenizer, given):
    """The Template of --chat_template (a file, a name among the model's, or the template itself), else the model's."""
    own = model_templates(tokenizer)
    if given is not None:
        if given in own:
            return Template(own[given], given, tokenizer)
        if "{" in given:
            return Template(given, "of the command line", tokenizer)
        try:
            return Template(files.read_text(given), Path(given).name, tokenizer)
        except OSError as error:
            names = f"; the model's own are {', '.join(own)}" if own else ""
            raise UserError(f"[chat_template] {given}: {error.strerror or first_line(error)}{names}; give a file") from None
    if "default" in own:
        return Template(own["default"], "of the model", tokenizer)
    if own:
        raise UserError(f"[chat_template] the model has several and none is its default; name one of {', '.join(own)} by --chat_template")
    raise UserError(f"[chat_template] {tokenizer.folder} has no chat template, which a chat needs; give one by --chat_template FILE")


def model_templates(tokenizer):
    """name -> text. Files come before tokenizer_config.json, as in Transformers."""
    folder = tokenizer.folder
    found = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if files.is_file(folder / "chat_template.jinja"):
        found["default"] = folder / "chat_template.jinja"
    if found:
        return {name: files.read_text(path) for name, path in found.items()}
    listed = tokenizer.config.get("chat_template")
    if listed is None or isinstance(listed, str):
        return {"default": listed} if listed else {}
    try:
        found = {item["name"]: item["template"] for item in listed}
        if all(isinstance(text, str) for pair in found.items() for text in pair):
            return found
    except (KeyError, TypeError):
        pass
    raise UserError(f'[chat_template] {folder}/tokenizer_config.json: "chat_template" is neither a text nor a list of names and templates; correct the file')
