"""Star-PFL: claim checks. ``tables``: claims 1 to 5, 7 and 8. ``freezing``: claims 6 and 9 to 12."""
