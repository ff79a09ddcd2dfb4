"""Numbers as people and models write them."""

import re
from decimal import Decimal

# What a reader takes for one thing: digits with marks between them. Not all such things are numbers: 12:30, 1,2,3.
# A minus is a sign unless something stands before it that can be subtracted from; the currency may follow it.
NUMBER = re.compile(
    r"(?P<sign>(?<![\w)])[-\u2212\u2013]\\?[$€£]?)?"
    r"(?P<digits>(?:\d+ (?=\d+/\d))?"  # the 2 of 2 1/2
    r"(?:(?<![\w.])\.)?\d+(?:[,.:/]\d+)*(?:[eE][-+]?\d{1,2}(?!\d))?)"
)
_PLAIN = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?")


def read_number(text: str) -> Decimal | None:
    """The number that `text` is, with nothing around it; None if it is none."""
    found = NUMBER.fullmatch(text)
    return number_of(found) if found else None


def number_of(found: re.Match[str]) -> Decimal | None:
    """The number that a match of `NUMBER` is: 1,234.50 or 1.8e1 as usual, 5/2 is 2.5; None if it is none."""
    try:
        value = _unsigned(found["digits"])
    except ArithmeticError:  # not a number, or too large a fraction, or over zero
        return None
    return value.copy_negate() if found["sign"] else value


def write_number(number: Decimal) -> str:
    """One way of writing for each number: no exponent, no zeros at the end of decimals."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _unsigned(digits: str) -> Decimal:
    whole, _, rest = digits.rpartition(" ")
    numerator, slash, denominator = rest.partition("/")
    if not slash:
        return _plain(digits)  # and no arithmetic, which rounds
    return Decimal(whole or 0) + _plain(numerator) / _plain(denominator)


def _plain(digits: str) -> Decimal:
    """Raise an ArithmeticError, as Decimal does, for what is not digits with or without commas and decimals."""
    return Decimal(digits.replace(",", "") if _PLAIN.fullmatch(digits) else "no number")
