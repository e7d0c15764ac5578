"""Privacy statements: the certified and the charged number for one person, in sentences."""
