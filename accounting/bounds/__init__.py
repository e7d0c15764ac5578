"""What bounds one event: Renyi curves, Gaussian DP, dominating pairs; from above and from below."""
