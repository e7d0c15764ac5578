"""The planner: its page, its answers, and what becomes a budget."""
