"""One file a method, one folder for each paper's own. `pfl_core.registry` lists them."""
