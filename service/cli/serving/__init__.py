"""What `dpledger serve` is made of: what it says, and its processes."""
