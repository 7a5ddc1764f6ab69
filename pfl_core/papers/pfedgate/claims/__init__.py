"""pFedGate: claim checks.

``accuracy``: claims 1 to 6, 14 and 21. ``parts``: 7, 8, 10 to 13 and 19. ``studies``: 9, 15 to 18, 20, 22 and 23.
"""
