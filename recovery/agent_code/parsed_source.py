"""Parses the source of a function, from its code."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from tokenize import TokenError
from types import CellType, CodeType, FunctionType


@functools.lru_cache(maxsize=256)
def parsed_source(code: CodeType, module: str | None) -> ast.Module | None:
    """The tree, with the line numbers of the file; None if there is no source, or no function in
    it. ``module``: the ``__name__`` among its globals. It is kept: do not change it."""
    # Of code, inspect looks for the module among all that are loaded, with ten system calls for
    # each; a function names its module. So one is made of the code.
    cells = tuple(CellType() for _ in code.co_freevars)
    function = FunctionType(code, {"__name__": module}, closure=cells)
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError, SystemError, TokenError):
        # There is no source, or no function in it: a lambda, generated code, a file that was
        # edited since (also TokenError). Python 3.11 sometimes raises SystemError for valid source
        # (recursion depth mismatch).
        return None
    ast.increment_lineno(tree, first - 1)
    return tree
