"""FedPeWS: the checks of its claims."""
