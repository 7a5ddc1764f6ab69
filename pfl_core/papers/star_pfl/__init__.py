"""Star-PFL: settings, experiments, figures and claims."""
