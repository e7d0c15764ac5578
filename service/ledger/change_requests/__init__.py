"""Changes that one person asks for and another person approves."""
