"""FedSelect (CVPR 2024), its ablations, and its workshop version (ICML 2023)."""
