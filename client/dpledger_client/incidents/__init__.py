"""Incidents: what needs attention, and what was done about it."""
