"""Federated learning methods: one file per method, one folder for each of the four papers' own; see README.md."""
