"""What other tools wrote down of a training run, read as ledger events."""
