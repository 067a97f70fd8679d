#!/usr/bin/env bash
# The suite without the long sweeps: tests/suite.sh PYTEST [OPTION...]. `make test` and .ci/run.
set -euo pipefail
pytest=$1
shift
tests=$(cd "$(dirname "$0")" && pwd)
cores=$(getconf _NPROCESSORS_ONLN)
# Else each process compiles all tests, each time: half a minute. See tests/conftest.py.
export PYTHONDONTWRITEBYTECODE=

suite() { "$pytest" -q --dist worksteal -m "not crash" --ignore "$tests/lint" "$@"; }

# What imports frameworks takes 560 MB, and long to begin; there, other tests would take twice as
# long. So few processes do it, beside the others. What they say comes at the end.
frameworks=("$tests/unit/integrations" "$tests/docs" "$tests/integration/kills")
said=$(mktemp)
trap 'cat "$said"; rm -f "$said"' EXIT
suite -n $(((cores + 1) / 2)) "$@" "${frameworks[@]}" >"$said" 2>&1 &
beside=$!

# Tests wait for the disk half of their time, so there are twice as many processes as cores.
code=0
suite -n $((2 * cores)) "$@" "$tests" "${frameworks[@]/#/--ignore=}" || code=$?
wait "$beside" || code=$?
exit "$code"
