"""pFedGate: the checks of its claims.

accuracy: 1 to 6, 14, 21. parts: 7, 8, 10 to 13, 19. studies: 9, 15 to 18, 20, 22, 23.
"""
