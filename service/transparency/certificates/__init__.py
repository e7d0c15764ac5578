"""Certificates: issued, rendered and verified."""
