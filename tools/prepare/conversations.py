"""Chats of every form that is written, brought into the one that templates expect, before anything is rendered.

Messages are objects with `role`, `content` as a text, and maybe `tool_calls` with arguments as objects. OpenAI's,
ShareGPT's, TRL's, LLaMA-Factory's and axolotl's forms become that, whether a file holds them as objects or as JSON texts.
A member that is null is as if it were not there: tables and `datasets` write all members into all messages.
"""

import difflib
import json

from prepare.errors import Refused
from prepare.json_stream import parsed

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant", "bot": "assistant", "ai": "assistant",
         "model": "assistant", "prompter": "user", "system": "system", "developer": "developer", "tool": "tool", "observation": "tool", "function": "tool", "function_response": "tool",
         "tool_response": "tool", "function_call": "function_call", "tool_call": "function_call"}
LEARNT = ("weight", "loss", "train")  # members of a message: 0, 1, false, true
TEXT_PARTS = {"text", "input_text", "output_text"}
# Members of a message that would change its text or what is learnt of it.
REFUSED = ("audio", "audios", "file", "files", "image", "images", "learn", "loss_mask", "loss_weight", "mask", "masked", "train_detail", "trainable", "training", "training_detail", "video",
           "videos", "weights")
# Members of a message that describe it, whether or not a template uses them.
DESCRIPTIONS = {"annotations", "created", "created_at", "finish_reason", "id", "index", "logprobs", "message_id", "model", "stop_reason", "timestamp", "tool_call_id", "usage"}
# Other names of a call's arguments, which templates do not look for.
OTHER_ARGUMENTS = ("parameters", "input", "args", "kwargs")


def kind(value):
    if value is None:
        return "absent"
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def from_text(value, openings):
    """The value of a JSON text that begins with one of these characters; every other value as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in openings or not value.strip():
        return value
    try:
        found = parsed(value)
    except ValueError:
        return value
    if isinstance(found, Refused):
        raise found
    return found


def text_of(content, what):
    """Content as one text: it may be a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part_text(part, what) for part in content)
    raise Refused(f"the content of {what} is {kind(content)}, a text is needed")


def part_text(part, what):
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise Refused(f"a part of the content of {what} is {kind(part)}, an object or a text is needed")
    name = part.get("type", "text")
    if name in TEXT_PARTS if isinstance(name, str) else False:
        if isinstance(part.get("text"), str):
            return part["text"]
        raise Refused(f'a part of the content of {what} has no "text"')
    raise Refused(f'a part of the content of {what} is of type "{name}"; only text is learnt')


def arguments_of(arguments, what):
    """A call's arguments as an object: templates write them as JSON, and would write a text twice."""
    found = from_text(arguments, "{")
    if found is None or found == "":
        return {}
    if not isinstance(found, dict):
        raise Refused(f"the arguments of a call of {what} are {kind(found)}, an object or its JSON text is needed")
    return found


def call_of(call, what):
    call = from_text(call, "{")
    if not isinstance(call, dict):
        raise Refused(f"a call of {what} is {kind(call)}, an object is needed")
    inner = from_text(call.get("function"), "{")
    flat = inner if isinstance(inner, dict) else call
    if not isinstance(flat.get("name"), str):
        raise Refused(f'a call of {what} has no "name" of a function')
    other = next((name for name in OTHER_ARGUMENTS if flat.get("arguments") is None and flat.get(name) is not None), None)
    if other is not None:
        raise Refused(f'a call of {what} has its arguments under "{other}", and templates look for "arguments"; rename it')
    function = {name: value for name, value in flat.items() if value is not None and (flat is inner or name in {"name", "arguments"})}
    function["arguments"] = arguments_of(flat.get("arguments"), what)
    around = {name: value for name, value in call.items() if value is not None and name not in {"function", "name", "arguments"}}
    return {"type": "function", **around, "function": function}


def calls_of(turn, what):
    """The calls of a message in any of their forms; [] if it has none."""
    calls = from_text(turn.get("tool_calls"), "[{")
    if isinstance(calls, dict):
        calls = [calls]
    if calls is not None and calls != "" and not isinstance(calls, list):
        raise Refused(f'"tool_calls" of {what} is {kind(calls)}, a list is needed')
    calls = [from_text(call, "{") for call in calls or []]
    wrong = next((call for call in calls if not isinstance(call, dict)), None)
    if wrong is not None:
        raise Refused(f'"tool_calls" of {what} holds {kind(wrong)}, an object for each call is needed')
    found = [call_of(call, f'"tool_calls" of {what}') for call in calls]
    if turn.get("function_call"):  # OpenAI's older form
        found.append(call_of(turn["function_call"], f'"function_call" of {what}'))
    return found


def role_of(turn, what):
    given = turn.get("role") if turn.get("role") is not None else turn.get("from")
    if given is None:
        raise Refused(f"{what} has no role; known are {', '.join(sorted(set(ROLES.values())))}")
    if not isinstance(given, str):
        raise Refused(f"the role of {what} is {kind(given)} ({json.dumps(given)[:40]}), a text is needed")
    if not given.strip():
        raise Refused(f"the role of {what} is empty; known are {', '.join(sorted(set(ROLES.values())))}")
    return ROLES.get(given.strip().lower(), given)


def strange_roles(messages, name):
    """(role, which message has it) of each role that is in no list: a template has to name it."""
    found = {}
    for number, message in enumerate(messages, 1):
        if message["role"] not in ROLES.values():
            found.setdefault(message["role"], place_of(number, name))
    return list(found.items())


def refusal_of_role(role, what):
    """Of a role that is in no list and that the template does not name."""
    near = difflib.get_close_matches(role.strip().lower(), ROLES, 1)
    known = f'the nearest known role is "{near[0]}"' if near else f"known are {', '.join(sorted(set(ROLES.values())))}"
    return Refused(f'the role of {what} is "{role}", which no list has and the template does not name; {known}')


def learnt_of(turn, role, what):
    """Whether the members that say it let a message be learnt."""
    learnt = True
    for key in LEARNT:
        value = turn.get(key)
        if value is None:
            continue
        if not isinstance(value, (int, float)) or value not in (0, 1):  # true and false are these, too
            raise Refused(f'"{key}" of {what} is {value}; known are 0 and 1, false and true')
        learnt = learnt and bool(value)
        if value and role != "assistant":
            raise Refused(f'"{key}" of {what} asks to learn what the {role} says; only the assistant is learnt')
    return learnt


def place_of(number, name):
    return f'message {number} of "{name}"' if name in ("prompt", "completion") else f"message {number}"


def message_of(turn, number, name):
    """(the message as templates expect it, whether it may be learnt); `name`: the list's"""
    what = place_of(number, name)
    if not isinstance(turn, dict):
        raise Refused(f'message {number} of "{name}" is {kind(turn)}, an object is needed')
    role = role_of(turn, what)
    content = next((turn[name] for name in ("content", "value") if turn.get(name) is not None), None)
    if "content" not in turn and "value" not in turn and role != "function_call" and isinstance(turn.get("text"), str):
        content = turn["text"]
    for name in REFUSED:
        if turn.get(name) not in (None, "", [], {}):
            raise Refused(f'"{name}" of {what} would change what is learnt, and only text is read; take it out')
    if role == "function_call":  # LLaMA-Factory's: the call is the content
        calls = from_text(content, "[{")
        calls, content, role = [call_of(call, what) for call in (calls if isinstance(calls, list) else [calls])], "", "assistant"
    else:
        calls = calls_of(turn, what)
    if content is None and not calls:
        raise Refused(f"{what} ({role}) has no content")
    taken = {"role", "from", "content", "value", "tool_calls", "function_call", *LEARNT} | ({"text"} if content is turn.get("text") else set())
    others = {name: value for name, value in turn.items() if value is not None and name not in taken}
    message = {"role": role, "content": "" if content is None else text_of(content, what), **others}
    if calls:
        message["tool_calls"] = calls
    return message, learnt_of(turn, role, what)


def functions_in(record, name):
    """The member of a record that describes functions, as a list of objects; it may be one object, and all of it JSON texts."""
    given = from_text(record.get(name), "[{")
    if given in (None, "", {}):
        return []
    found = [given] if isinstance(given, dict) else given
    if not isinstance(found, list):
        raise Refused(f'"{name}" is {kind(found)}, a list of functions is needed')
    found = [from_text(function, "{") for function in found]
    wrong = next((function for function in found if not isinstance(function, dict)), None)
    if wrong is not None:
        raise Refused(f'"{name}" holds {kind(wrong)}, objects that describe functions are needed')
    return found


def tools_of(record):
    """The record's tools as a list of objects; None if it has none."""
    tools, functions = functions_in(record, "tools"), functions_in(record, "functions")
    if tools and functions:
        raise Refused('it has "tools" and "functions"; keep one of them')
    return tools or [{"type": "function", "function": function} for function in functions] or None


def variables_of(record):
    """Returns the variables that the record gives its template beside messages and tools."""
    found = from_text(record.get("chat_template_kwargs"), "{") or {}
    if not isinstance(found, dict):
        raise Refused(f'"chat_template_kwargs" is {kind(found)}, an object is needed')
    taken = next((name for name in found if name in {"messages", "tools", "documents", "add_generation_prompt", "chat_template", "conversations"} or not str(name).isidentifier()), None)
    if taken is not None:
        raise Refused(f'"chat_template_kwargs" sets "{taken}", which the record itself decides')
    return {name: value for name, value in found.items() if value is not None}


def system_of(record):
    """The text of a system message that stands beside the messages."""
    given = record.get("system")
    return "" if given is None else text_of(from_text(given, "[") if isinstance(given, str) and given.lstrip().startswith('[{"type"') else given, 'the member "system"')


def are_messages(value):
    """Whether it is a list of messages, or the JSON text of one; a text may be JSON and mean itself."""
    try:
        found = from_text(value, "[")
    except Refused:
        return False
    return isinstance(found, list) and bool(found) and all(isinstance(turn, dict) and not {"role", "from"}.isdisjoint(turn) for turn in found)


def names_in(messages, tools, variables):
    """The names by which a template would ask for what is beside the texts of a chat."""
    found = dict.fromkeys(name for message in messages for name in message if name not in {"role", "content", *DESCRIPTIONS})
    return [*found, *(["tools"] if tools else []), *variables]


def turns_of(turns, name):
    """(messages, whether each may be learnt) of a list, or of its JSON text."""
    turns = from_text(turns, "[")
    if not isinstance(turns, list) or not turns:
        raise Refused(f'"{name}" is {"empty" if turns == [] else kind(turns)}, a list of messages is needed')
    made = [message_of(turn, number, name) for number, turn in enumerate(turns, 1)]
    return [message for message, _ in made], [learnt for _, learnt in made]


def with_system(messages, learnt, system):
    """The same with the system's text in front."""
    if not system.strip():
        return messages, learnt
    if messages[0]["role"] == "system":
        if messages[0]["content"] == system:
            return messages, learnt
        raise Refused('it has a "system" member and a first message of the system that says something else; keep one of them')
    return [{"role": "system", "content": system}, *messages], [True, *learnt]
