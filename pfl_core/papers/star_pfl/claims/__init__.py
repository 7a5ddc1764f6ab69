"""Star-PFL: the checks of its claims."""
