"""Conversions to and from other libraries, and registrations with torch."""
