"""FedPeWS with learned masks (``method.py``) and with fixed masks (``fixed.py``)."""
