"""The commands of dpledger."""
