"""Adapters of training frameworks."""
