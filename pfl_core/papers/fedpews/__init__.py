"""FedPeWS: settings, experiments, figures and claims."""
