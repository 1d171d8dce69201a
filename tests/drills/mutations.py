"""One change of a JSON value for the drill of records: a member added, removed, renamed, nulled or retyped."""

import copy
from typing import Any, NamedTuple

OPERATIONS = ("add", "remove", "rename", "null", "retype")
OTHERS = (5, -1, 0.5, True, False, "text", "", [], ["<t>"], [1, 2], {}, {"a": 1}, [{"a": 1}], {"content": "<t>"}, "null", "[1]", '{"a": 1}')


class Mutation(NamedTuple):
    value: Any
    operation: str
    names: tuple  # of the member: as it was, as it is
    is_top: bool = True  # a member of the value itself, not of one inside it

    def __str__(self):
        return f"{self.operation} {' -> '.join(self.names)}"


def objects_in(value):
    """All objects in a value, itself first; a path each."""
    found = [((), value)] if isinstance(value, dict) else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        found += [((key, *path), deeper) for path, deeper in objects_in(item)]
    return found


def mutated(draw, value, names, deep=True):
    """`names`: members that are known or that strangers write, with values that fit (name -> list)."""
    value = copy.deepcopy(value)
    path, target = draw.choice(objects_in(value)) if deep else ((), value)
    is_top = not path
    operation = draw.choice(OPERATIONS)
    if operation == "add" or not target:
        name = draw.choice(sorted(names))
        target[name] = draw.choice(list(names[name]) + list(OTHERS)) if draw.random() < 0.5 or not names[name] else draw.choice(names[name])
        return Mutation(value, "add", (name,), is_top)
    name = draw.choice(sorted(target))
    if operation == "remove":
        del target[name]
    elif operation == "rename":
        new = draw.choice([name.upper(), name + "s", name[:-1] or "x", "_" + name, *sorted(names)])
        target[new] = target.pop(name)
        return Mutation(value, operation, (name, new), is_top)
    elif operation == "null":
        target[name] = None
    else:
        target[name] = draw.choice([other for other in OTHERS if type(other) is not type(target[name])])
    return Mutation(value, operation, (name,), is_top)
