"""pFedGate: the checks of its claims."""
