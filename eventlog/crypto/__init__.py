"""Encrypts and decrypts payloads: keys and ciphers."""
