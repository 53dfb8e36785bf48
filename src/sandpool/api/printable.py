"""Text of objects and sandboxes, made safe to show.

Messages of conditions and events, file names and error output come from code that is not trusted. Printed as they are,
their escape sequences could clear a terminal, change its title or type into it, and marks of direction could make a
line read differently from what it contains. Logs and the output of commands are passed on unchanged, as kubectl does.
"""

from __future__ import annotations


def printable(text: str, *, keep: str = "\n\t") -> str:
    """Return the text with all characters escaped that are neither printable nor in ``keep``. The result can be encoded
    as UTF-8 also where names of files are not."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)


def one_line(text: str) -> str:
    """Return printable text in one line; white space of any length becomes one space."""
    return printable(" ".join(text.split()))
