"""`tandem generate --chat`: renders conversations with the model's chat template and hands them to the program.

  python -m prepare.chat PROGRAM --model_name DIR --prompt TEXT [--system TEXT] [--chat_template F] [flags of generate]

The program gets one JSON string per conversation on its standard input, and streams what the model answers.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from prepare import formats
from prepare.errors import Refused, UserError, exit_code_of
from prepare.files import tokenizer_folder
from prepare.json_stream import parsed
from prepare.template import find_template
from prepare.tokenizer import Tokenizer


def conversation(line, number, is_json):
    """The Chat of a line of a prompt file: a text, or as JSON a string or an object."""
    if not is_json:
        return asked(line)
    try:
        value = parsed(line)
    except ValueError as error:
        raise UserError(f"[--prompts] line {number} is not valid JSON ({error}); correct the file") from None
    if isinstance(value, Refused):
        raise UserError(f"[--prompts] line {number}: {value}; correct the file")
    if isinstance(value, dict) and "messages" not in value:
        value = value.get("prompt")
    if isinstance(value, str):
        return asked(value)
    if not isinstance(value, dict):
        raise UserError(f'[--prompts] line {number} is none of a string, {{"prompt": ...}} and {{"messages": [...]}}')
    try:
        formats.members.unused("messages", value)
        return formats.messages(value)
    except Refused as refused:
        raise UserError(f"[--prompts] line {number}: {refused}; correct the file") from None


def asked(text):
    return formats.Chat([{"role": "user", "content": text}], None, [True], -1, {}, [])


def conversations(flags):
    if flags.prompt is not None and flags.prompts is not None:
        raise UserError("[flags] --prompt and --prompts exclude each other; give one of them")
    if flags.prompt is not None:
        found = [asked(flags.prompt)]
    else:
        try:
            text = Path(flags.prompts).read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"[--prompts] {flags.prompts}: {error.strerror}; name a file with a prompt in each line") from None
        except UnicodeDecodeError:
            raise UserError(f"[--prompts] {flags.prompts} is not UTF-8; convert it") from None
        is_json = flags.prompts.endswith((".json", ".jsonl"))
        lines = enumerate(text.split("\n"), 1)
        found = [conversation(line, number, is_json) for number, line in lines if line.strip()]
    if flags.system is not None:
        found = [chat._replace(messages=[{"role": "system", "content": flags.system}, *chat.messages]) for chat in found]
    return found


def rendered(template, chat):
    try:
        template.check_roles(chat.strange)
        return template.render(chat.messages, chat.tools, add_generation_prompt=True, variables=chat.variables)
    except Refused as error:
        raise UserError(f"[chat] {error}; change the messages") from None


def main():
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("program")
    parser.add_argument("--chat", action="store_true")
    for flag in ("--model_name", "--prompt", "--prompts", "--system", "--chat_template"):
        parser.add_argument(flag)
    flags, others = parser.parse_known_args()
    command = [flags.program, "generate", *others]
    if "--help" in others or "-h" in others or flags.model_name is None or (flags.prompt is None and flags.prompts is None):
        given = ["--model_name", flags.model_name] if flags.model_name is not None else []
        return subprocess.run([*command, *given], check=False).returncode  # which says what is missing
    template = find_template(Tokenizer(tokenizer_folder(flags.model_name)), flags.chat_template)
    lines = [json.dumps(rendered(template.of(chat.tools), chat)) for chat in conversations(flags)]
    command += ["--model_name", flags.model_name, "--prompts", "-", "--as_rendered"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as program:
        try:
            program.communicate("".join(line + "\n" for line in lines))
        except KeyboardInterrupt:  # the program got it, too
            program.wait()
        return program.returncode if program.returncode >= 0 else 128 - program.returncode


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
