"""JSON records of a file of any size, one at a time: an array of objects, or objects one behind the other.

Memory is one record and one read, whatever the file holds. A record that is valid JSON and beyond a bound (its length,
depth, a number's digits) comes as the Refused that says so.
"""

import json
import re

from prepare import bounds
from prepare.errors import Refused, UserError

READ_CHARACTERS = 1 << 20
# An error this near the end of what was read may be a number, a literal or an escape that goes on behind it.
TORN_CHARACTERS = 16
SPACE = re.compile(r"[ \t\r\n]*")
TOO_MANY_DIGITS = "one of its numbers has more digits than Python reads"


class NamedTwice(ValueError):
    """An object has a member twice: readers differ in which of the two they take."""


def object_of(members):
    found = dict(members)
    if len(found) < len(members):
        names = [name for name, _ in members]
        double = next(name for number, name in enumerate(names) if name in names[:number])
        raise NamedTwice(f'"{double}" stands twice in one object; remove one')
    return found


def lines_of(file):
    """(number, text) of each line; the text is a Refused where it is beyond the bound."""
    number = 0
    while text := file.readline(bounds.MOST_RECORD_CHARACTERS + 1):
        number += 1
        if len(text) <= bounds.MOST_RECORD_CHARACTERS or text.endswith("\n"):
            yield number, text
            continue
        while text and not text.endswith("\n"):
            text = file.readline(READ_CHARACTERS)
        yield number, bounds.too_long()


def parsed(text):
    """The value of a JSON text, or the Refused that says which bound it passes. ValueError: it is no JSON."""
    try:
        value = json.loads(text, object_pairs_hook=object_of)
    except RecursionError:
        return Refused(bounds.TOO_DEEP)
    except NamedTwice as error:
        return Refused(str(error))
    except json.JSONDecodeError:
        raise
    except ValueError:
        return Refused(TOO_MANY_DIGITS)
    return Refused(bounds.TOO_DEEP) if bounds.is_deep(text) else value


def lines(file, path):
    """(line, record) of a file with one JSON object per line; blank lines are skipped. A file that begins as an array is one,
    whatever its ending says, as for other readers."""
    is_first = True
    for number, text in lines_of(file):
        if isinstance(text, Refused):
            yield number, text
        elif not text.isspace():
            if is_first and text.lstrip().startswith("["):
                yield from values(Rest(text, file), path, number)
                return
            is_first = False
            try:
                yield number, parsed(text)
            except ValueError as error:
                raise UserError(f"[prepare] {path}:{number}: no JSON: {error}; give one record per line") from None


class Rest:
    """A file from which a text was read already."""

    def __init__(self, text, file):
        self.text = text
        self.file = file

    def read(self, count):
        found, self.text = self.text or self.file.read(count), ""
        return found


class Values:
    """JSON values of a text that is read piece by piece."""

    def __init__(self, file, path, line=1):
        self.file = file
        self.path = path
        self.buffer = ""
        self.at = 0
        self.line = line
        self.ended = False
        self.decoder = json.JSONDecoder(object_pairs_hook=object_of)

    def read_more(self):
        rest = self.buffer[self.at :]
        if len(rest) > bounds.MOST_RECORD_CHARACTERS:
            raise self.error(f"a record of more than {bounds.MOST_RECORD_CHARACTERS} characters; split it")
        # As much again as there is, so that a long record is not tried anew for each small read.
        more = self.file.read(max(READ_CHARACTERS, len(rest)))
        self.ended = not more
        self.buffer, self.at = rest + more, 0

    def advance(self, to):
        self.line += self.buffer.count("\n", self.at, to)
        self.at = to

    def peek(self):
        """The next character that is no space; empty at the end."""
        while True:
            self.advance(SPACE.match(self.buffer, self.at).end())
            if self.at < len(self.buffer):
                return self.buffer[self.at]
            if self.ended:
                return ""
            self.read_more()

    def skip(self):
        self.advance(self.at + 1)

    def value(self):
        """The value that begins at the next character, or a Refused in its place, and its line."""
        while True:
            try:
                value, end = self.decoder.raw_decode(self.buffer, self.at)
                if end == len(self.buffer) and not self.ended and not isinstance(value, (dict, list)):
                    self.read_more()  # a number may go on
                    continue
            except json.JSONDecodeError as error:
                torn = error.msg.startswith("Unterminated string") or error.pos >= len(self.buffer) - TORN_CHARACTERS
                if self.ended or not torn:
                    self.advance(error.pos)
                    raise self.error(f"no JSON: {error.msg}") from None
                self.read_more()
                continue
            except RecursionError:
                value, end = Refused(bounds.TOO_DEEP), self.end_of_value()
            except NamedTwice as error:
                value, end = Refused(str(error)), self.end_of_value()
            except ValueError:
                value, end = Refused(TOO_MANY_DIGITS), self.end_of_value()
            if isinstance(value, (dict, list)) and bounds.is_deep(self.buffer[self.at : end]):
                value = Refused(bounds.TOO_DEEP)
            line = self.line
            self.advance(end)
            return line, value

    def end_of_value(self):
        """Returns the end of a value that the decoder does not take."""
        while (end := bounds.end_of_value(self.buffer, self.at)) is None and not self.ended:
            self.read_more()
        if end is None and self.buffer[self.at] not in '[{"':
            return len(self.buffer)
        if end is None:
            raise self.error("no JSON: the file ends within a record")
        return end

    def error(self, what):
        return UserError(f"[prepare] {self.path}:{self.line}: {what}; give an array of records")


def values(file, path, line=1):
    """(line, record) of an array of records, or of records one behind the other."""
    stream = Values(file, path, line)
    if stream.peek() != "[":
        while stream.peek():
            yield stream.value()
        return
    stream.skip()
    if stream.peek() == "]":
        stream.skip()
    else:
        while True:
            yield stream.value()
            mark = stream.peek()
            if mark not in {",", "]"}:
                raise stream.error(f'no JSON: "{mark}" behind a record' if mark else "the array has no end")
            stream.skip()
            if mark == "]":
                break
            stream.peek()
    if stream.peek():
        raise stream.error("text behind the array's end")
