"""Logs that are encrypted at rest. Needs the extra: ``pip install 'agent-eventlog[encryption]'``.

    encryption = Encryption(key)                       # 32 random bytes: os.urandom(32)
    with EventLog.open("my-log", encryption=encryption) as log: ...

What it protects against, and against what not, is in docs/encryption.md.
"""

from eventlog.crypto.keys import Encryption, parse_keys, read_key_file

__all__ = ["Encryption", "parse_keys", "read_key_file"]
