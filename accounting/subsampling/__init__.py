"""Batches drawn afresh each step, other than by independent coins: pairs that dominate a step."""
