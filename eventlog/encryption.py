"""Encrypts logs at rest. Needs the extra: ``pip install 'agent-eventlog[encryption]'``.

    encryption = Encryption(key)                       # 32 random bytes: os.urandom(32)
    with EventLog.open("my-log", encryption=encryption) as log: ...

docs/encryption.md says what it protects against, and what it does not.
"""

from eventlog.crypto.keys import Encryption, parse_keys, read_key_file

__all__ = ["Encryption", "parse_keys", "read_key_file"]
