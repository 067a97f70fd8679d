"""Verifies who may decide about runs, by signatures of messages to them.

    store = CheckpointStore("runs", approvers={"ann": "ssh-ed25519 AAAA..."})
    store.run("run_001").approve(call, who="ann", sign=signing_key("ann.pem"))

Ed25519 needs the extra: ``pip install 'agent-eventlog[encryption]'``. See docs/approvals.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from eventlog.encryption import read_key_file
from recovery.journal.signed_statement import Statement

__all__ = ["Approvers", "Sign", "Statement", "signing_key"]

_logger = logging.getLogger("recovery")

Sign = Callable[[bytes], bytes]
"""A function that signs bytes: given to ``RunHandle.approve`` and others as ``sign=``."""

Verify = Callable[[Statement, bytes], bool]


@dataclass(frozen=True, slots=True)
class Approvers:
    """The signers whose messages count in a store.

    ``keys``: the public Ed25519 key of each ``who``: a line of OpenSSH ("ssh-ed25519 AAAA..."), PEM
    text, or its 32 bytes. Or a function that says whether a signature under a Statement is valid;
    if it raises, the signature is not valid. ``also``: messages that need a signature besides
    decisions: "signal", "cancel", "resolve" (``resolve`` and ``retry``).
    """

    keys: Mapping[str, str | bytes] | Verify
    also: tuple[Literal["signal", "cancel", "resolve"], ...] = ()

    def __post_init__(self) -> None:
        also: object = self.also
        if not isinstance(also, tuple) or not {*also} <= {"signal", "cancel", "resolve"}:
            raise ValueError(f'also= is a tuple of "signal", "cancel" and "resolve", not {also!r}')
        if callable(self.keys):
            return
        keys: object = self.keys
        if not isinstance(keys, Mapping) or not keys:
            raise TypeError(
                "approvers= is a dict of names and public keys, or a function of a "
                f"Statement and a signature, not {self.keys!r:.80}"
            )
        for who, key in self.keys.items():
            _public(who, key)

    @classmethod
    def of(cls, given: Any) -> Approvers | None:
        """Not for users: an Approvers from the value of ``approvers=``."""
        return given if given is None or isinstance(given, cls) else cls(given)

    def needed_for(self, kind: str) -> bool:
        """Whether messages of this ``kind`` count only with a signature."""
        return kind == "decision" or kind in self.also

    def accepts(self, statement: Statement, signature: bytes) -> bool:
        """Whether ``signature`` is by ``statement.who``, for exactly this statement."""
        if callable(self.keys):
            try:
                return self.keys(statement, signature) is True
            except Exception:
                _logger.exception("approvers= raised, so this does not count: %s", statement)
                return False
        key = self.keys.get(statement.who)
        if key is None:
            return False
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - needs the extra

        try:
            _public(statement.who, key).verify(signature, statement.to_bytes())
        except InvalidSignature:
            return False
        return True


def signing_key(
    path: str | os.PathLike[str], password: bytes | Callable[[], bytes] | None = None
) -> Sign:
    """A signer with the private Ed25519 key in file ``path``: PEM, as of ``openssl genpkey
    -algorithm ed25519``, or OpenSSH, as of ``ssh-keygen -t ed25519``.

    ``password``: bytes, or a function that is called if the key has a password (None). Raises
    OSError; ValueError when the file has no such key, when it needs a password, or when every user
    may read the file; ImportError without the extra, or `bcrypt`, which OpenSSH keys with a
    password also need.
    """
    forms, private = _primitives()[:2]
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - needs the extra

    try:
        text = read_key_file(path)
    except ValueError as exc:
        raise ValueError(f"{path}: {exc}") from None
    openssh = b"OPENSSH PRIVATE KEY" in text
    load: Any = forms.load_ssh_private_key if openssh else forms.load_pem_private_key
    try:
        try:
            key = load(text, None)
        except TypeError:  # it has a password
            if password is None:
                raise ValueError from None
            key = load(text, password() if callable(password) else password)
    except (TypeError, ValueError):
        raise ValueError(
            f"{path}: no private key in PEM or OpenSSH form, or another password"
        ) from None
    except UnsupportedAlgorithm:  # or an unknown algorithm
        raise ImportError(
            f"{path}: an OpenSSH key with a password needs the package `bcrypt`: pip install bcrypt"
        ) from None
    if not isinstance(key, private):
        raise ValueError(f"{path}: no Ed25519 key: ssh-keygen -t ed25519 makes one")
    sign: Sign = key.sign
    return sign


def _public(who: str, key: str | bytes) -> Any:
    forms, _, public = _primitives()
    try:
        if isinstance(key, bytes):
            return public.from_public_bytes(key)
        text = key.strip().encode()
        load = forms.load_ssh_public_key if text.startswith(b"ssh-") else forms.load_pem_public_key
        found = load(text)
    except (AttributeError, ValueError):
        found = None
    if not isinstance(found, public):
        raise ValueError(
            f"approvers=: the key of {who!r} is no public Ed25519 key: a line as of `ssh-keygen -t "
            "ed25519` (ssh-ed25519 AAAA...), PEM text, or 32 bytes"
        )
    return found


def _primitives() -> tuple[Any, Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - needs the extra
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - as above
    except ImportError as exc:
        raise ImportError(
            "keys of Ed25519 need the package `cryptography`: "
            "pip install 'agent-eventlog[encryption]'"
        ) from exc
    return serialization, ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey
