"""What is measured: one module for each package, imported in a process of its own (see _serve)."""
