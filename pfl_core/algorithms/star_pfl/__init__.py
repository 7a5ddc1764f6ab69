"""Star-PFL: the method, and its parts by file."""
