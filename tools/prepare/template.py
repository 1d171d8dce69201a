"""A chat as text: the template is Transformers' Jinja, rendered by its own code.

Ready templates (templates/) mark what the assistant says by {% generation %}, for families whose published template
makes a chat of several turns unverifiable. Each chat is rendered by the model's own template, too: where the texts
differ, the ready one is not the model's, and the chat is refused.
"""

import re
from pathlib import Path

import xxhash

from prepare import files
from prepare.bounds import template_bounds
from prepare.conversations import refusal_of_role
from prepare.errors import Refused, UserError, first_line

READY = Path(__file__).parent / "templates"
GENERATION = re.compile(r"\{\%-?\s*generation\s*-?\%\}")  # as Transformers looks for it


def ready_names():
    return sorted(path.stem for path in READY.glob("*.jinja"))


class Template:
    def __init__(self, text, name, tokenizer, own=None, tool_use=None):
        """`own`: the model's Template, which has to render the same texts; `tool_use`: the text for chats with tools."""
        from transformers.utils import chat_template_utils

        self.text = text
        self.name = name
        self.own = own
        self.tool_use = tool_use
        self.with_tools = None  # the Template of tool_use, made for the first such chat
        self.is_used = False
        self.tokenizer = tokenizer
        self.hash = xxhash.xxh3_128_hexdigest(text.encode())
        self.renderer = chat_template_utils.render_jinja_template
        self.asked = {}  # name -> whether the text has it
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

    def of(self, tools):
        """The Template of a chat with these tools."""
        if tools and self.tool_use is not None and self.with_tools is None:
            self.with_tools = Template(self.tool_use, "tool_use", self.tokenizer)
        found = self.with_tools if tools and self.with_tools else self
        found.is_used = True
        return found

    def used(self):
        """The Templates that chats had; this one if there was no chat."""
        return [template for template in (self, self.with_tools) if template and template.is_used] or [self]

    def check_roles(self, strange):
        """Refused: the text names one of these roles nowhere, as a misspelt one."""
        for role, what in strange:
            if f"'{role}'" not in self.text and f'"{role}"' not in self.text:
                raise refusal_of_role(role, what)

    def unnamed(self, names):
        """Those of the names by which the text asks for nothing."""
        for name in names:
            if name not in self.asked:
                self.asked[name] = re.search(rf"\b{re.escape(name)}\b", self.text) is not None
        return [name for name in names if not self.asked[name]]

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
        if self.own is not None and self.own.of(tools).render(messages, tools, add_generation_prompt, variables=variables) != texts[0]:
            raise Refused(f"the ready template {self.name} makes another text of it than the model's own; leave --chat_template out, or give a file")
        return (texts[0], found[0]) if spans else texts[0]

    def ready_for(self, chat):
        """The name of the ready template that makes the same text of the chat, or None."""
        for name in ready_names():
            try:
                ready_template(name, self.tokenizer, self).render(chat.messages, chat.tools, variables=chat.variables)
                return name
            except Refused:
                continue
        return None


def ready_template(name, tokenizer, own=None):
    return Template(files.read_text(READY / f"{name}.jinja"), name, tokenizer, own)


def default_template(tokenizer, own):
    """The model's default Template; None: it has none. As in Transformers, its tool_use is the one of chats with tools."""
    return Template(own["default"], "of the model", tokenizer, tool_use=own.get("tool_use")) if "default" in own else None


def find_template(tokenizer, given):
    """The Template of --chat_template (a name among the model's or the ready ones, a file, or the template itself), else
    the model's."""
    own = model_templates(tokenizer)
    if given is not None:
        if given in own:
            return Template(own[given], given, tokenizer)
        if given in ready_names():
            return ready_template(given, tokenizer, default_template(tokenizer, own))
        if "{" in given:
            return Template(given, "of the command line", tokenizer)
        try:
            return Template(files.read_text(given), Path(given).name, tokenizer)
        except OSError as error:
            names = f"; the model's own are {', '.join(own)}" if own else ""
            raise UserError(f"[chat_template] {given}: {error.strerror or first_line(error)}{names}; ready ones are {', '.join(ready_names())}; give one of them or a file") from None
    if "default" in own:
        return default_template(tokenizer, own)
    if own:
        raise UserError(f"[chat_template] the model has several and none is its default; name one of {', '.join(own)} by --chat_template")
    raise UserError(f"[chat_template] {tokenizer.folder} has no chat template, which a chat needs; give one by --chat_template, a file or a ready one ({', '.join(ready_names())})")


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
