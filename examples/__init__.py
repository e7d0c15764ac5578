"""Trainings against a live service. A package, because Opacus installs one of this name."""
