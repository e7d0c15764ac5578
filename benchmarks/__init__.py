"""Commands that print tables. A package, because Opacus installs one of this name."""
