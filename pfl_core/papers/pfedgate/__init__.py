"""pFedGate: settings, experiments, figures and claims."""
