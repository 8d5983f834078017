#!/usr/bin/env bash
# Compiles the product and the tests, these as pytest rewrites them: once and on two cores, since the processes of
# `make test` begin all at the same time, and each would do it for itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

# what is wrong with a test is said by the run itself
collect() { .venv/bin/python -m pytest --collect-only -qq "$@" >/dev/null 2>&1 || true; }

collect tests/unit tests/contract tests/stateful &
collect tests --ignore=tests/unit --ignore=tests/contract --ignore=tests/stateful
wait
