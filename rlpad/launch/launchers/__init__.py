"""Launchers: each runs the same program in another way."""
