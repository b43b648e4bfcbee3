"""Errors that a user can mend: the command line prints them as one line, without a traceback."""


class UserError(ValueError):
    """Something the caller gave cannot be used; the message names it and says what to do."""
