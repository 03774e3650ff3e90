"""Arithmetic that pages work out by hand, done again: `2 x (3 + 1,000) / 4`, exactly."""

import ast
import operator
from fractions import Fraction

_OPERATORS = {ast.Add: operator.add, ast.Mult: operator.mul, ast.Div: operator.truediv}
# An indented line of a page: a sum, and what it comes to.
SUM = r"^    ([\d,. x+/()]+) = ([\d,.]+)$"


def calculated(text: str) -> Fraction:
    """What `text` comes to, with no rounding anywhere; KeyError for anything but +, x and /."""
    source = text.replace(",", "").replace("x", "*").strip()

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        return Fraction(ast.get_source_segment(source, node))

    return value(ast.parse(source, mode="eval").body)
