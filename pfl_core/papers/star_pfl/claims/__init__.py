"""Star-PFL: the checks of its claims. tables: 1 to 5, 7, 8. freezing: 6, 9 to 12."""
