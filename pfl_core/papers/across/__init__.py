"""All methods on one federation, each at searched settings."""
