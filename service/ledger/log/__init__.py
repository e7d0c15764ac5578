"""The Merkle log of every dataset."""
