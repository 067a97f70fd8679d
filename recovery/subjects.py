"""Marks values that belong to a person, so that they can be forgotten."""

from recovery.values.sealed import Forgotten, SubjectError, personal

__all__ = ["Forgotten", "SubjectError", "personal"]
