"""Forms that pages show and take: what was typed, and what is wrong beside each field."""
