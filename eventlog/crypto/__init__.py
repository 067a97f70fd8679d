"""Keys and ciphers."""
