"""Keys, sessions and rights of callers."""
