"""Checks of FedPeWS's claims. tables: 1 to 5, 12. grids: 6 to 9, 11. parts: 10, 13 to 16. readings: 3 by reading."""
