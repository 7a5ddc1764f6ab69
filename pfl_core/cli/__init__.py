"""The ``pfl`` command: figures, methods, run, runs, data, compare, search, report.

`main` handles signals before anything slow is imported; the commands are in ``command``. This module imports nothing
but ``signals``, so that Ctrl-C in the first moments is handled as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from pfl_core.cli import signals


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: done. 1: a run or a notebook failed. 2: bad input. 3: the time of --stop-after is up. 130 or 143: ended by Ctrl-C
    or SIGTERM. Every error is one line on stderr; ``--debug`` adds the traceback. Without ``argv`` the command is taken
    from ``sys.argv``, and this is the whole process: it then keeps its signal handlers.
    """
    try:
        if argv is None:
            signals.handle()
        from pfl_core.cli.command import run_command

        return run_command(argv)
    except KeyboardInterrupt as interrupt:
        return signals.interrupted(interrupt)
    finally:
        signals.ended()
