"""Messages of the API and their stored form."""
