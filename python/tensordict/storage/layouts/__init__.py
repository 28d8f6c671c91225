"""The layouts on disk, a file each."""
