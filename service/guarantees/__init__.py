"""Numbers that are computed from recorded facts."""
