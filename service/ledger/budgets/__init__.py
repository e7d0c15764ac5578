"""Budgets and what is charged to them."""
