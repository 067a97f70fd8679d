"""Refuses versions of packages that an integration does not work with, at its import."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def check_version(package: str, minimum: str, below: str = "", extra: str = "") -> None:
    """Raise ImportError when a package is missing, or is of a version that is not supported.

    ``extra``: of this library, which brings the package; "" where it has the package's name.
    """
    wanted = f"{package}>={minimum}" + (f",<{below}" if below else "")
    how = f"pip install 'agent-eventlog[{extra or package}]'"
    try:
        found = version(package)
    except PackageNotFoundError:
        raise ImportError(f"{package} is not installed: {how}") from None
    if _numbers(found) < _numbers(minimum) or (below and _numbers(found) >= _numbers(below)):
        raise ImportError(
            f"this version of agent-eventlog works with {wanted}, and {package} {found} is "
            f"installed: {how}"
        )


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split("+", maxsplit=1)[0].split(".")
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in parts[:3])
