#!/usr/bin/env bash
# Compiles the product and the tests, these as pytest rewrites them: once and on two cores, since the processes of
# `make test` begin all at the same time, and each would do it for itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

readonly STAMP=build/compiled-tests
# nothing has changed since the last time: all is compiled
if [[ -e $STAMP && -z $(find tests halimede services examples bench pyproject.toml constraints.txt -newer "$STAMP" \
  \( -name '*.py' -o -name '*.t[ox]*' \) -print -quit) ]]; then
  exit 0
fi
mkdir -p build
touch "$STAMP.begun"

# what is wrong with a test is said by the run itself
collect() { .venv/bin/python -m pytest --collect-only -qq "$@" >/dev/null 2>&1 || true; }

collect tests/unit tests/contract tests/stateful &
collect tests --ignore=tests/unit --ignore=tests/contract --ignore=tests/stateful
wait
mv "$STAMP.begun" "$STAMP"
