"""Checks of FedSelect's claims. limits: 3 to 8. masks: 12 to 17. methods: 1, 2, 9 to 11. workshop: 18 to 22."""
