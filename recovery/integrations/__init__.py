"""Agents made with other frameworks: a module for each, imported by those who use it."""
