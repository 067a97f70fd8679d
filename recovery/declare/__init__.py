"""Declares tools, retries, budgets and options; and knows the scope of the present code."""
