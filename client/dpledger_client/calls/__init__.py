"""One call for each question that a script asks a service."""
