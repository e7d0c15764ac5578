"""Steps on their way to the service: buffered, written ahead, sent once, whatever fails."""
