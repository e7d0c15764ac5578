"""What an operator would look at, looked at by one command."""
