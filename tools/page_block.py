"""Parts of a page that a tool writes: from a comment with the tool's command to `<!-- end -->`."""

END = "<!-- end -->\n"


def parts(page, command):
    """(what stands before the part, with its comment; the part; what stands behind it)"""
    before, begin, rest = page.partition(f"<!-- {command} -->\n")
    part, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no part of the page is written by {command}")
    return before + begin, part, end + after
