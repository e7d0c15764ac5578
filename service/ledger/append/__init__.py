"""The append of steps, from admission to rows."""
