"""Plain values of strangers' pickles: members of dicts, numbers, and what of them JSON can hold.

Invariant: a function here returns the type that it promises, or None, or raises the file's error, whatever the value is.
"""

import json
import math

MOST_JSON_BYTES = 16 << 20  # one value may stand in many places, so a small pickle can spell a huge text
MOST_DEPTH = 100


def find(value, key):
    """The member of a dict; None for one that is missing, and for any other value."""
    return value.get(key) if isinstance(value, dict) else None


def member_of(file, value, key):
    if not isinstance(value, dict) or key not in value:
        raise file.error(f"it lacks \"{key}\"")
    return value[key]


def dict_of(file, value, key):
    value = member_of(file, value, key)
    if not isinstance(value, dict):
        raise file.error(f"its \"{key}\" is no dict")
    return value


def items_of(value):
    """Those of a list or tuple; none of any other value."""
    return value if isinstance(value, (list, tuple)) else []


def is_integer(value):
    return type(value) is int and -1 << 63 <= value < 1 << 63


def is_set(value):
    """Whether it is a boolean or an integer that is not 0."""
    return type(value) in (bool, int) and value != 0


def integer_of(file, value, key, otherwise):
    found = find(value, key)
    if found is None:
        return otherwise
    if not is_integer(found):
        raise file.error(f"its \"{key}\" is no integer")
    return found


def number_of(file, value):
    """A number, or the element of a tensor with one; None for any other value."""
    tensor = file.tensor_of(value)
    if tensor is not None and tensor.numel() == 1 and not tensor.is_complex():
        return float(file.checked(tensor))
    return float(value) if type(value) is float or is_integer(value) else None


def count_of(file, value):
    number = number_of(file, value)
    return int(number) if number is not None and 0 <= number < 1e15 else None


def is_text(value):
    try:
        return type(value) is str and value.encode() is not None
    except UnicodeEncodeError:
        return False


def json_of(value):
    """Plain data as JSON; None where a part of it is none, or where that would be very long or deep."""
    left = MOST_JSON_BYTES

    def plain(value, depth):
        nonlocal left
        left -= len(value) if type(value) is str else sum(map(len, filter(is_text, value))) if isinstance(value, dict) else 8
        if left < 0 or depth > MOST_DEPTH:
            raise ValueError
        if value is None or type(value) is bool or is_integer(value) or is_text(value) or (type(value) is float and math.isfinite(value)):
            return value
        if isinstance(value, (list, tuple)):
            return [plain(item, depth + 1) for item in value]
        if type(value) is set:
            return sorted((plain(item, depth + 1) for item in value), key=json.dumps)
        if isinstance(value, dict) and all(map(is_text, value)):
            return {key: plain(item, depth + 1) for key, item in value.items()}
        raise ValueError

    try:
        return json.dumps(plain(value, 0), ensure_ascii=False)
    except ValueError:
        return None
