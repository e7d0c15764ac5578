"""Change requests: what one person asks for and another decides."""
