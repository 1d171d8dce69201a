"""What goes wrong through the user's input, and a record that cannot be used."""


class UserError(Exception):
    """One line, `[where] what; what to do`: exit code 2."""


class Refused(Exception):
    """The reason why one record cannot be used. Who reads the record says which it is."""


def first_line(error):
    """Of an error of another library, without its paragraphs."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
