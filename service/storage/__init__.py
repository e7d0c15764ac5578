"""Databases, tables and bulk statements."""
