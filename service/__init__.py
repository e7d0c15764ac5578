"""Privacy budgets over HTTP: facts are recorded, numbers are derived."""
