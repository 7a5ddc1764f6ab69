"""pFedGate: the method, and its parts by file."""
