"""Stands in for openpi: the names that the script uses, and checks of what it is given."""
