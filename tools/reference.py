"""Prepares the pages of the API: they show what users call, with each option and its type.

``mkdocs.yml`` names this as an extension of Griffe, which reads the source of the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe

INTERNAL = "Not for users"  # how the docstring of such a method, or of a constructor, begins


class ForUsers(griffe.Extension):
    """Removes internal methods, and spells out ``**options: Unpack[...]``."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change all classes and functions of a package that was read."""
        for parent in self._objects(pkg):
            for name, one in list(parent.members.items()):
                if one.is_alias or not (one.is_function or one.is_attribute):
                    continue
                if one.docstring and one.docstring.value.startswith(INTERNAL):
                    del parent.members[name]
                elif isinstance(one, griffe.Function):
                    _spell_out(one)

    def _objects(self, parent: Any) -> Iterator[Any]:
        yield parent
        for one in list(parent.members.values()):
            if not one.is_alias and (one.is_module or one.is_class):
                yield from self._objects(one)


def _spell_out(function: griffe.Function) -> None:
    for parameter in list(function.parameters):
        annotation = parameter.annotation
        if not str(annotation).startswith("Unpack[") or isinstance(annotation, str):
            continue
        options = function.modules_collection[annotation.slice.canonical_path]
        del function.parameters[parameter.name]
        for attribute in _attributes(options):
            function.parameters.add(
                griffe.Parameter(
                    attribute.name,
                    annotation=attribute.annotation,
                    kind=griffe.ParameterKind.keyword_only,
                    default=_default(options, attribute.name),
                )
            )


def _attributes(options: Any) -> Iterator[Any]:
    for base in options.resolved_bases:
        yield from _attributes(base)
    yield from (one for one in options.members.values() if one.is_attribute)


def _default(options: Any, name: str) -> str:
    """That of a dataclass beside the options; the docstring says the others."""
    siblings = [one for one in options.parent.members.values() if not one.is_alias and one.is_class]
    fields = [one.members.get(name) for one in siblings]
    return next((str(one.value) for one in fields if one is not None and one.value), "...")
