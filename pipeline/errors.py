"""The one error that is shown to users as a single line, without a traceback."""


class UserError(ValueError):
    """Something the user can put right: the message names the field or file, what was found, what would be right."""
