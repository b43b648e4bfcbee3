"""Errors that a user can mend: the command line prints them as one line, without a traceback."""


def printable(text: str) -> str:
    """Show control characters as escapes, save line breaks: text of a file must not steer a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def brief(value: object) -> str:
    """Return the value as it is shown in a message: files can hold very long ones."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} of many levels"
    return text if len(text) <= 200 else f"{text[:200]}…"


class UserError(ValueError):
    """Something the caller gave cannot be used; the message names it and says what to do."""

    def __str__(self) -> str:
        return printable(super().__str__())


class UserTypeError(UserError, TypeError):
    """A value of the wrong type."""
