"""FedSelect: settings, experiments, figures and claims."""
