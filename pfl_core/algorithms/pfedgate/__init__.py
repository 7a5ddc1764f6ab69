"""pFedGate: the method is in ``method.py``, its parts in the other modules."""
