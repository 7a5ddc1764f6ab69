"""pFedGate: settings, experiments, metrics and claims."""
