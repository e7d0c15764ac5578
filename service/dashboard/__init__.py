"""Pages that people look at: rendered on the server, from what the API answers."""
