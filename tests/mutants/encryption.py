"""Seeded bugs in encryption: what is hidden, what is bound to its place, which key."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

ENCRYPTED, CIPHER, XAES = "eventlog/_encrypted.py", "eventlog/_cipher.py", "eventlog/_xaes.py"
API, APPENDER, TAIL = "eventlog/encryption.py", "eventlog/_appender.py", "eventlog/_tail.py"
LOG, FRAME, STORE = "eventlog/_log.py", "eventlog/_frame.py", "recovery/stores/protocol.py"

UNIT = "unit/test_encryption.py::"
VECTORS = UNIT + "test_the_cipher_is_the_one_of_the_specification"
NONCES = UNIT + "test_no_nonce_comes_twice_whoever_writes_an_lsn_again"
NO_KEY = UNIT + "test_without_the_key_nothing_is_read_written_or_called_damaged"
KEYS = UNIT + "test_keys_are_asked_for_by_id_and_once"
BEGUN = UNIT + "test_a_log_begun_in_clear_goes_on_encrypted_from_the_next_segment_on"
HIDDEN = UNIT + "test_nothing_of_a_record_is_in_any_byte"
RUNS = "unit/test_recovery_encryption.py::"

SEAL = "            payload = encrypter.encrypt(writer.header, place, payload)\n"
NONCE = "nonce = self._random_bytes(NONCE_SIZE)"

MUTANTS = [
    Mutant(
        "nonce-constant",
        "The nonce is always zero: two records under one key give away both, and the tag's key.",
        [Edit(CIPHER, NONCE, "nonce = bytes(NONCE_SIZE)")],
        [NONCES],
    ),
    Mutant(
        "nonce-is-the-lsn",
        "The nonce is segment and LSN: a backup put back writes others under the same nonces.",
        [
            Edit(
                CIPHER,
                NONCE,
                'nonce = header.number.to_bytes(16, "big") + frame.lsn.to_bytes(8, "big")',
            )
        ],
        [NONCES],
    ),
    Mutant(
        "nonce-of-12-bytes",
        "Half of the nonce is always the same: collisions after 2^48 bits, not 2^96.",
        [Edit(CIPHER, NONCE, "nonce = bytes(12) + self._random_bytes(12)")],
        [UNIT + "test_each_nonce_is_fresh_from_the_system"],
    ),
    Mutant(
        "same-key-for-every-nonce",
        "The derived key leaves out the nonce's first half: the extended nonce is none.",
        [Edit(XAES, 'prefix + nonce[:12], "big")', 'prefix + bytes(12), "big")')],
        [VECTORS],
    ),
    Mutant(
        "subkey-not-reduced",
        "The doubling forgets the polynomial: other implementations cannot read the half of keys.",
        [Edit(XAES, "(0x87 if zero >> 127 else 0)", "0")],
        [VECTORS],
    ),
    Mutant(
        "tag-not-checked",
        "What fails its tag is decrypted all the same: bits of results can be flipped at will.",
        [
            Edit(
                XAES,
                "        except InvalidTag:\n            return None\n",
                "        except InvalidTag:\n"
                "            from cryptography.hazmat.primitives.ciphers.modes import CTR\n"
                "            counter = CTR(nonce[12:] + bytes((0, 0, 0, 2)))\n"
                "            cipher = Cipher(AES(self._key_of(nonce)), counter)\n"
                "            return cipher.decryptor().update(data[:-16])\n",
            )
        ],
        [UNIT + "test_a_forged_ciphertext_does_not_count"],
    ),
    Mutant(
        "associated-data-left-out",
        "Nothing binds a payload to its place: records change places unseen.",
        [
            Edit(
                API,
                "self._aead.encrypt(nonce, data, place + self.head)",
                "self._aead.encrypt(nonce, data, self.head)",
            ),
            Edit(
                API,
                "self._aead.decrypt(nonce, data, place + self.head)",
                "self._aead.decrypt(nonce, data, self.head)",
            ),
        ],
        [UNIT + "test_records_cannot_change_places"],
    ),
    Mutant(
        "log-id-not-bound",
        "The log's id is not authenticated: a record of another run is put into this one.",
        [
            Edit(
                ENCRYPTED, "        log_id, number, frame.salt,", "        b'', number, frame.salt,"
            )
        ],
        [UNIT + "test_a_whole_segment_of_another_log_does_not_count"],
    ),
    Mutant(
        "segment-number-not-bound",
        "The segment's number is not authenticated: an old segment becomes the newest.",
        [Edit(ENCRYPTED, " log_id, number, frame.salt,", " log_id, 0, frame.salt,")],
        [UNIT + "test_a_segment_under_another_number_does_not_count"],
    ),
    Mutant(
        "salt-not-bound",
        "The salt is not authenticated: records of a backup's other life are put into this one.",
        [Edit(ENCRYPTED, " log_id, number, frame.salt,", " log_id, number, b'',")],
        [UNIT + "test_a_record_of_another_life_of_the_segment_does_not_count"],
    ),
    Mutant(
        "kind-not-bound",
        "The kind of a frame is not authenticated: a record is made a snapshot.",
        [Edit(ENCRYPTED, "frame.kind | frame.flags,", "0,")],
        [UNIT + "test_the_header_of_a_frame_is_bound_to_it"],
    ),
    Mutant(
        "marks-not-bound",
        "Durable mark and last snapshot are not authenticated: an old snapshot becomes the newest.",
        [Edit(ENCRYPTED, "frame.lsn, frame.durable, frame.snapshot,", "frame.lsn, 0, 0,")],
        [UNIT + "test_the_header_of_a_frame_is_bound_to_it"],
    ),
    Mutant(
        "lsn-not-bound",
        "The LSN is not authenticated: records change places unseen.",
        [Edit(ENCRYPTED, "frame.lsn, frame.durable,", "0, frame.durable,")],
        [UNIT + "test_records_cannot_change_places"],
    ),
    Mutant(
        "count-not-bound",
        "The count is not authenticated, and believed: records of a batch are cut off.",
        [
            Edit(ENCRYPTED, "frame.snapshot, frame.count,", "frame.snapshot, 0,"),
            Edit(
                "eventlog/_record.py",
                "len(flat) != 1 + 2 * frame.count or not",
                "len(flat) < 1 + 2 * frame.count or not",
            ),
            Edit(
                "eventlog/_record.py",
                "flat[1::2], flat[2::2]",
                "flat[1 : 1 + 2 * frame.count : 2], flat[2 : 1 + 2 * frame.count : 2]",
            ),
        ],
        [UNIT + "test_a_count_cannot_be_forged"],
    ),
    Mutant(
        "key-id-ignored",
        "The key is looked up by the id to write with: after a change nothing old can be read.",
        [
            Edit(
                CIPHER,
                "self._find(self.encryption, envelope.key_id)",
                "self._find(self.encryption, self.encryption.key_id)",
            )
        ],
        [KEYS],
    ),
    Mutant(
        "key-check-not-compared",
        "A wrong key is taken for forged records: a run is given up for lost.",
        [Edit(CIPHER, "if key.check != envelope.check:", "if False:")],
        [NO_KEY],
    ),
    Mutant(
        "key-check-is-the-key",
        "What tells a wrong key is a part of the key: it stands in every frame.",
        [Edit(API, 'hmac.digest(secret, _CHECKED, "sha256")[:CHECK_SIZE]', "secret[:CHECK_SIZE]")],
        [UNIT + "test_the_key_is_not_on_disk"],
    ),
    Mutant(
        "key-asked-for-each-frame",
        "The callback is asked again and again: a key service is called for each record.",
        [Edit(API, "if found is None:", "if True:")],
        [KEYS],
    ),
    Mutant(
        "keys-kept-for-ever",
        "A key is kept for each id that a log names: a forged log fills the memory.",
        [Edit(API, "if len(self._keys) >= KEYS_MAX:", "if False:")],
        [UNIT + "test_a_log_that_names_any_number_of_keys_fills_no_memory"],
    ),
    Mutant(
        "key-shown",
        "The key is in the repr: it ends up in tracebacks and logs.",
        [Edit(API, "Encryption(key_id={self.key_id!r})", "Encryption({self._key!r})")],
        [UNIT + "test_the_key_is_not_shown"],
    ),
    Mutant(
        "key-file-shown",
        "A line of a key file that is wrong is shown: the key is on the terminal.",
        [Edit(API, 'f"line {number} is no key:', 'f"line {line} is no key:')],
        [UNIT + "test_what_is_no_key_file_is_refused_and_not_shown"],
    ),
    Mutant(
        "snapshots-in-clear",
        "Only records are encrypted: the state of the run is in its snapshots, in clear.",
        [
            Edit(
                APPENDER,
                "        if encrypter is not None:\n            kind |= ENCRYPTED",
                "        if encrypter is not None and kind != SNAPSHOT:\n"
                "            kind |= ENCRYPTED",
            )
        ],
        [HIDDEN],
    ),
    Mutant(
        "plaintext-kept-in-the-segment",
        "The record is written in clear first and then over: space ahead keeps its end.",
        [
            Edit(
                APPENDER,
                "        frame = encode_frame(writer.salt, kind, count, payload, marks)\n",
                "        self._plain = getattr(self, '_plain', b'') + payload\n"
                "        frame = encode_frame(writer.salt, kind, count, payload, marks)\n",
            ),
            Edit(
                APPENDER,
                SEAL,
                "            self._plain = payload\n" + SEAL,
            ),
            Edit(
                APPENDER,
                "                writer.write(frame, lsn)\n",
                "                writer.write(frame, lsn)\n"
                "                write_all(writer.file, self._plain, writer.end)\n",
            ),
        ],
        [HIDDEN],
    ),
    Mutant(
        "plaintext-kept-in-the-mark",
        "The mark file ends with the newest record: it is there in clear.",
        [
            Edit(
                APPENDER,
                SEAL,
                "            write_all(self._mark_file, payload, 52)\n" + SEAL,
            )
        ],
        [HIDDEN],
    ),
    Mutant(
        "segment-flag-not-set",
        "The segment's header does not say that it is encrypted: nobody can read the log.",
        [Edit(FRAME, "self.encrypted * _SEGMENT_ENCRYPTED", "0")],
        [UNIT + "test_what_was_written_is_read_with_the_key"],
    ),
    Mutant(
        "flag-lost-in-recovery",
        "Recovery writes frames again without their flag: what was not durable becomes damage.",
        [Edit(TAIL, "kind = frame.kind | frame.flags", "kind = frame.kind")],
        [UNIT + "test_recovery_writes_the_same_bytes_again_and_encrypts_nothing_anew"],
    ),
    Mutant(
        "clear-frames-count",
        "A frame in clear counts in an encrypted segment: anybody can put in records.",
        [
            Edit(
                CIPHER,
                '            return "in clear, in an encrypted segment: not written with the key"',
                '            return ""',
            )
        ],
        [UNIT + "test_a_record_in_clear_in_an_encrypted_segment_does_not_count"],
    ),
    Mutant(
        "clear-segments-count",
        "A segment in clear counts behind encrypted ones: anybody can go on with the run.",
        [Edit(CIPHER, "if 0 < first < place.number:", "if False:")],
        [UNIT + "test_a_segment_in_clear_behind_encrypted_ones_does_not_count"],
    ),
    Mutant(
        "clear-always-accepted",
        "A log in clear is taken up without being asked: another run is put in this one's place.",
        [
            Edit(CIPHER, "        if not self.encryption.accept_clear:\n", "        if False:\n"),
        ],
        [UNIT + "test_a_log_in_clear_is_refused_unless_it_is_said"],
    ),
    Mutant(
        "clear-always-read",
        "A reader with the key believes what is in clear.",
        [
            Edit(
                CIPHER,
                "if self.encryption is not None and not self.encryption.accept_clear:\n",
                "if False:\n",
            ),
        ],
        [UNIT + "test_a_log_in_clear_is_refused_unless_it_is_said"],
    ),
    Mutant(
        "goes-on-in-clear",
        "Without a key an encrypted log is opened, and goes on in clear.",
        [
            Edit(
                CIPHER,
                "if self._check_segment(number):\n",
                "if self.encryption is None or self._check_segment(number):\n",
            ),
        ],
        [NO_KEY],
    ),
    Mutant(
        "goes-on-in-a-segment-in-clear",
        "A log begun in clear goes on in its last segment: encrypted frames where none may be.",
        [
            Edit(
                APPENDER,
                "        if self.encrypter is None:\n            return not",
                "        if True:\n            return True or not",
            )
        ],
        [BEGUN],
    ),
    Mutant(
        "goes-on-under-the-old-key",
        "A changed key goes on in the segment of the old one: retention never frees that key.",
        [
            Edit(
                APPENDER,
                "tail.header.encrypted and payload.startswith(self.encrypter.head)",
                "tail.header.encrypted",
            )
        ],
        [KEYS],
    ),
    Mutant(
        "key-looked-at-after-the-claim",
        "The key is looked at when the log is claimed already: a wrong key has written.",
        [
            Edit(LOG, "            encrypter = reader.decoder.encrypter(files.random_bytes)\n", ""),
            Edit(
                LOG,
                "            return cls._owned(reader,",
                "            encrypter = reader.decoder.encrypter(files.random_bytes)\n"
                "            return cls._owned(reader,",
            ),
        ],
        [NO_KEY],
    ),
    Mutant(
        "footer-taken-for-a-record",
        "A footer tells the key: a log whose newest segment is empty opens with any.",
        [
            Edit(
                CIPHER,
                "if frame is None or frame.kind == FOOTER or frame.flags:",
                "if frame is None or frame.flags:",
            )
        ],
        [UNIT + "test_a_wrong_key_is_told_from_damage_when_the_newest_segments_hold_no_record"],
    ),
    Mutant(
        "salt-in-a-ciphertext-allowed",
        "A ciphertext may hold the segment's salt: the search for frames looks into payloads.",
        [Edit(CIPHER, "if header.salt not in sealed:", "if True:")],
        [UNIT + "test_no_ciphertext_has_the_salt_of_its_segment"],
    ),
    Mutant(
        "salt-in-a-key-id-allowed",
        "A key id may hold the segment's salt: encrypting never ends.",
        [
            Edit(
                APPENDER,
                "bare = payload if self.encrypter is None else self.encrypter.head",
                "bare = b''",
            ),
            Edit(
                APPENDER,
                "size, bare = size + encrypter.overhead, encrypter.head",
                "size, bare = size + encrypter.overhead, b''",
            ),
            Edit(CIPHER, "if header.salt not in sealed:", "if header.salt not in sealed[60:]:"),
        ],
        [UNIT + "test_no_segment_has_a_salt_that_is_in_the_key_id"],
    ),
    Mutant(
        "log-id-in-one-place",
        "The mark file has no log id until the first flush: with a header all records are lost.",
        [
            Edit(
                APPENDER,
                "                self._write_mark(self.durable)\n",
                "                pass\n",
            )
        ],
        [UNIT + "test_a_lost_segment_header_costs_no_record"],
    ),
    Mutant(
        "size-of-the-plaintext",
        "A segment is filled by the size of what is in it, not of what is written.",
        [Edit(APPENDER, "size, bare = size + encrypter.overhead, ", "size, bare = size, ")],
        [UNIT + "test_segments_roll_at_the_size_that_is_written"],
    ),
    Mutant(
        "too-large-when-encrypted",
        "A record at the limit is written larger than it: no reader reads it again.",
        [Edit(APPENDER, "            self.encrypter.check_size(payload)\n", "            pass\n")],
        [UNIT + "test_a_record_too_large_encrypted_is_refused_before_anything_is_written"],
    ),
    Mutant(
        "forged-key-id-is-a-crash",
        "A key id is shown as it was found: control characters reach the terminal.",
        [Edit(ENCRYPTED, "or not KEY_ID.fullmatch(key_id):\n", "or not key_id:\n")],
        [UNIT + "test_garbage_with_the_flag_is_damage"],
    ),
    Mutant(
        "short-envelope-read",
        "The length of an envelope is not looked at: a cut one is another error each time.",
        [Edit(ENCRYPTED, "len(payload) < nonce_end + TAG_SIZE or", "")],
        [UNIT + "test_an_envelope_cut_anywhere_is_damage"],
    ),
    Mutant(
        "store-reads-in-clear",
        "A store hands the key to writers alone: nobody can look at its runs.",
        [
            Edit(
                STORE,
                "self._path(run_id), files=self._files, encryption=self.encryption",
                "self._path(run_id), files=self._files",
            )
        ],
        [RUNS + "test_checkpoints_of_ones_own_are_encrypted"],
    ),
    Mutant(
        "store-writes-in-clear",
        "A store forgets the key: runs are on disk as they were.",
        [Edit(STORE, "            encryption=self.encryption,\n", "")],
        [RUNS + "test_nothing_of_a_run_that_was_killed_and_resumed_is_in_any_file"],
    ),
]
