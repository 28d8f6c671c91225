"""The collection classes. A class implements storage; its methods come from ``ops``."""
