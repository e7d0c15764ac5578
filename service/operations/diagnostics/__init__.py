"""What `dpledger doctor` examines."""
