"""What users declare: tools, retries, budgets, options; and the scope of the present code."""
