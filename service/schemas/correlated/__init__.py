"""Messages of correlated noise: its steps, and the strategies that they name."""
