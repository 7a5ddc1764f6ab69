"""Star-PFL: settings, experiments, claims, and what a run stores, by subject."""
