"""Established import path: parts of the base class, by topic."""
