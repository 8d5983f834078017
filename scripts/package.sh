#!/usr/bin/env bash
# Builds the wheel and the source archive in dist/, twice, and compares the bytes: `package.sh`, or for a release
# `package.sh v0.1.0`, which ends with an error if that is not the tag of this version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

readonly VENV=build/package AGAIN=build/package-again

die() {
  printf 'Error: %s\n' "$1" >&2
  exit 1
}

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
[[ $# == 0 || $1 == "v$version" ]] ||
  die "the tag $1 is not that of version $version in pyproject.toml: set that version, or tag v$version"

# the builder itself, without pip's isolation: so its version is the pinned one
"${PYTHON:-python3}" -m venv "$VENV"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling
rm -rf dist "$AGAIN"
for folder in dist "$AGAIN"; do
  "$VENV/bin/python" -m hatchling build -d "$folder" >/dev/null
done
diff -r dist "$AGAIN" || die "two builds of the same files differ: the lines above say which"
sha256sum dist/*
