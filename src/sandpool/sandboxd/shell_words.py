"""Splits a command line into words, and detects whether it needs a shell."""

from __future__ import annotations

#: Characters with a meaning for a shell. A command without them means the same with and without a shell.
_SHELL_SYNTAX = frozenset("|&;<>()$`*?[]#~=%{}!\n")
_BLANK = " \t\r\n"


def needs_shell(command: str) -> bool:
    return not _SHELL_SYNTAX.isdisjoint(_outside_quotes(command))


def split(command: str) -> list[str]:
    """Split like ``shlex.split``, which imports too much. Raises ``ValueError``."""
    words: list[str] = []
    word: str | None = None  # None: between words
    quote = ""
    position = 0
    while position < len(command):
        letter = command[position]
        position += 1
        if letter == "\\" and quote != "'":
            if position == len(command):
                raise ValueError("No escaped character")
            escaped = command[position]
            position += 1
            kept = "\\" if quote and escaped not in '"\\' else ""
            word = (word or "") + kept + escaped
        elif letter == quote:
            quote = ""
        elif quote:
            word = (word or "") + letter
        elif letter in "'\"":
            quote, word = letter, word or ""
        elif letter not in _BLANK:
            word = (word or "") + letter
        elif word is not None:
            words.append(word)
            word = None
    if quote:
        raise ValueError("No closing quotation")
    return words if word is None else [*words, word]


def _outside_quotes(command: str) -> str:
    """Return the characters that a shell would interpret: none of single-quoted text, and of double-quoted text only
    ``$`` and backquotes."""
    kept: list[str] = []
    quote = ""
    position = 0
    while position < len(command):
        letter = command[position]
        if letter == "\\" and quote != "'":
            position += 2
            continue
        if quote:
            if letter == quote:
                quote = ""
            elif quote == '"' and letter in "$`":
                kept.append(letter)
        elif letter in "'\"":
            quote = letter
        else:
            kept.append(letter)
        position += 1
    return "".join(kept)
