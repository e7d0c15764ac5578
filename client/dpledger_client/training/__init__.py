"""A run while it is trained: its steps, its checkpoints, its ranks and how it is resumed."""
