#!/usr/bin/env bash
# The suite without the long sweeps: tests/suite.sh PYTEST [OPTION...]. `make test` and .ci/run.
set -euo pipefail
pytest=$1
shift
tests=$(cd "$(dirname "$0")" && pwd)
# Else each process compiles all tests, each time: half a minute. See tests/conftest.py.
export PYTHONDONTWRITEBYTECODE=

# Tests wait for the disk half of their time, so there are twice as many processes as cores.
processes=$((2 * $(getconf _NPROCESSORS_ONLN)))

suite() { "$pytest" -q -n "$processes" --dist worksteal -m "not crash" --ignore "$tests/lint" "$@"; }

# In the processes that import frameworks (560 MB), the other tests would take twice as long.
frameworks=("$tests/unit/integrations" "$tests/docs" "$tests/integration/kills")
suite "$@" "$tests" "${frameworks[@]/#/--ignore=}"
suite "$@" "${frameworks[@]}"
