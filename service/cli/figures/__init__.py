"""The figures of the source documents."""
