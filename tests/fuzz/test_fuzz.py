"""The short part of the fuzz suite, about 20 seconds on two free cores.

PFL_FUZZ_SEED chooses other cases; `make fuzz` runs many more.
"""

import json
import os
import subprocess
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("the fuzz suite forks processes", allow_module_level=True)

from tests.fuzz.cases import TRACEBACK, WRONG  # noqa: E402
from tests.fuzz.suites import SUITES, Count, Result  # noqa: E402

SEED = int(os.environ.get("PFL_FUZZ_SEED", "0"))
SHORT = f"""
import json
from tests.fuzz.suites import SUITES, run
for result in run(SUITES, [range(suite.short) for suite in SUITES], {SEED}, jobs=2):
    print(json.dumps(result), flush=True)
"""


@pytest.fixture(scope="module")
def counts() -> dict[str, Count]:
    """The outcomes of all suites, which run side by side in two processes.

    They are forked from a fresh process: the threads that other tests have left here would make a fork hang.
    """
    found = subprocess.run([sys.executable, "-c", SHORT], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    result = {suite.name: Count() for suite in SUITES}
    for one in (Result(*row) for row in map(json.loads, found.stdout.splitlines())):
        result[one.suite].add(one)
    return result


@pytest.mark.parametrize("suite", [suite for suite in SUITES if suite.short], ids=lambda suite: suite.name)
def test_nothing_is_wrong_and_nothing_ends_in_a_traceback(suite, counts):
    count = counts[suite.name]
    assert count.outcomes.total() == suite.short
    bad = count.outcomes[WRONG] + count.outcomes[TRACEBACK]
    assert not bad, f"seed {SEED}, {bad} of {suite.short}:\n" + "\n".join(sorted(count.faults))
