"""A chat as text: the template is Transformers' Jinja, rendered by its own code."""

import re
from pathlib import Path

import xxhash

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
            variables = chat_template_utils._get_template_variables(text)
        except Exception as error:  # Jinja's: the template's syntax
            raise UserError(f"[chat_template] {name} does not compile: {first_line(error)}; correct it, or give another by --chat_template") from None
        wanted = {variable for variable in variables if variable.endswith("_token")} - tokenizer.special_tokens.keys()
        self.special_tokens = tokenizer.transformers_special_tokens() if wanted else tokenizer.special_tokens

    def render(self, messages, tools, add_generation_prompt=False, spans=False):
        """The text, and with `spans` the [begin, end) of its characters that {% generation %} marks."""
        if not messages:
            raise Refused("it begins with the assistant, and no template renders an empty chat before it")
        try:
            texts, found = self.renderer(conversations=[messages], tools=tools, chat_template=self.text, return_assistant_tokens_mask=spans,
                                         add_generation_prompt=add_generation_prompt, **self.special_tokens)
        except Exception as error:  # a template may raise anything
            raise Refused(f"the chat template refuses it: {first_line(error)}") from None
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
            return Template(Path(given).read_text(encoding="utf-8"), Path(given).name, tokenizer)
        except (OSError, UnicodeDecodeError) as error:
            names = f"; the model's own are {', '.join(own)}" if own else ""
            raise UserError(f"[chat_template] {given}: {getattr(error, 'strerror', None) or first_line(error)}{names}; give a file") from None
    if "default" in own:
        return Template(own["default"], "of the model", tokenizer)
    if own:
        raise UserError(f"[chat_template] the model has several and none is its default; name one of {', '.join(own)} by --chat_template")
    raise UserError(f"[chat_template] {tokenizer.folder} has no chat template, which a chat needs; give one by --chat_template FILE")


def model_templates(tokenizer):
    """name -> text. Files come before tokenizer_config.json, as in Transformers."""
    folder = tokenizer.folder
    found = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        found["default"] = folder / "chat_template.jinja"
    if found:
        return {name: path.read_text(encoding="utf-8") for name, path in found.items()}
    listed = tokenizer.config.get("chat_template")
    if isinstance(listed, str):
        return {"default": listed}
    if isinstance(listed, list):
        return {item["name"]: item["template"] for item in listed}
    return {}
