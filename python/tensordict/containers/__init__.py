"""The container classes. Each says what it stores; the vocabulary comes from ``ops``."""
