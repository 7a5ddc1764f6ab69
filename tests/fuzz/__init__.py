"""Random faults: kills, damaged files, full disks, bad input. ``tests/README.md`` explains it and has the results."""

import os

os.environ["TQDM_DISABLE"] = "1"  # tqdm reads it when it is imported
os.environ["OMP_NUM_THREADS"] = "1"
