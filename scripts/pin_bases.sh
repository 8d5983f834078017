#!/usr/bin/env bash
# Pins the base images of Dockerfiles: `pin_bases.sh Dockerfile` writes `FROM python:3.11-slim-bookworm@sha256:...`, the
# digest that the registry has for the tag at this moment, of all architectures. A release does so. It needs skopeo.
set -euo pipefail

die() {
  printf 'Error: %s\n' "$1" >&2
  exit 1
}

(($#)) || die "name the Dockerfiles: scripts/pin_bases.sh Dockerfile"
command -v skopeo >/dev/null || die "skopeo is not installed: apt install skopeo"
manifest=$(mktemp)
trap 'rm -f "$manifest"' EXIT
for file in "$@"; do
  # a tag, and no digest yet
  for image in $(sed -nE 's/^FROM ([^ @]+:[^ @]+)( .*)?$/\1/p' "$file" | sort -u); do
    skopeo inspect --raw "docker://$image" >"$manifest" || die "$file: no digest of $image"
    digest=$(sha256sum "$manifest")
    sed -i -E "s#^FROM $image( |\$)#FROM $image@sha256:${digest%% *}\1#" "$file"
    printf '%s: %s@sha256:%s\n' "$file" "$image" "${digest%% *}"
  done
done
