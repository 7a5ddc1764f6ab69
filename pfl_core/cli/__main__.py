"""``python -m pfl_core.cli``, where the script ``pfl`` is not installed."""

from pfl_core.cli import main

raise SystemExit(main())
