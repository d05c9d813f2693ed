"""Thin Ray shells, one per role."""
