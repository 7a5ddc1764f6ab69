"""FedSelect: the checks of its claims."""
