#!/usr/bin/env bash
# Everything that the make targets need, on a fresh Debian machine: a virtual environment in .venv with the pinned
# packages, and Mosquitto. Does nothing, at once, when all is there. Without root it never installs system packages:
# it says exactly what to install. `setup.sh demo` installs only the packages of `halimede demo`, and `setup.sh` adds
# those of all other targets to the same .venv. `setup.sh browser` brings Chromium too, in which the web page is tested.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
export PATH="$PATH:/usr/sbin:/sbin"

readonly VENV=.venv
readonly STAMP=$VENV/.halimede-setup
readonly OLDEST="3.11"
readonly DEMO_EXTRAS="gm,lc,worker,cli,demo"
readonly STAGE=${1:-all}

say() { printf '==> %s\n' "$*"; }

die() {
  printf 'Error: %s\n' "$1" >&2
  shift
  for line in "$@"; do printf '       %s\n' "$line" >&2; done
  exit 1
}

# quietly <command>...: show what it says only when it fails
quietly() {
  local log status=0
  log=$(mktemp)
  DEBIAN_FRONTEND=noninteractive "$@" >"$log" 2>&1 || status=$?
  ((status == 0)) || tail -n 15 "$log" >&2
  rm -f "$log"
  return "$status"
}

may_install() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

# install <what it is for> <package>...: by apt as root, otherwise say what to do and end
install() {
  local why=$1
  shift
  may_install || die "$why is missing. Install it, then run this again:" "sudo apt-get update && sudo apt-get install -y $*"
  say "installing $* (apt)"
  quietly apt-get update -qq && quietly apt-get install -y -qq --no-install-recommends "$@" ||
    die "apt could not install $*: the lines above say why"
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3 python3.14; do
    if command -v "$candidate" >/dev/null && is_new_enough "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

setup_python() {
  # an environment that was moved or whose Python is gone is made anew
  if [[ -d $VENV ]] && ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    say "$VENV does not work any more: making it anew"
    rm -rf "$VENV"
  fi
  if [[ ! -d $VENV ]]; then
    local python
    if ! python=$(find_python); then
      install "Python $OLDEST or newer" python3 python3-venv
      python=$(find_python) || die "this machine's Python is older than $OLDEST." \
        "Install Python $OLDEST or newer, then: make setup PYTHON=/path/to/python"
    fi
    # Debian ships venv without pip; its own package brings it
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
      local version
      version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
      install "The venv module of Python $version" "python$version-venv"
    fi
    say "making $VENV with $("$python" --version)"
    "$python" -m venv "$VENV"
  fi
}

number_of_packages() {
  local packages
  shopt -s nullglob
  packages=("$VENV"/lib/python*/site-packages/*.dist-info)
  printf '%d' "${#packages[@]}"
}

# all packages contain those of the demo: a stamp without a stage is one of all packages
setup_packages() {
  local pins stamp="" extras=dev number
  pins=$({ "$VENV/bin/python" --version; cat pyproject.toml constraints.txt; } | sha256sum | cut -d ' ' -f 1)
  [[ ! -f $STAMP ]] || stamp=$(<"$STAMP")
  [[ $stamp != "$pins" ]] || return 0
  if [[ $STAGE == demo ]]; then
    [[ $stamp != "$pins demo" ]] || return 0
    extras=$DEMO_EXTRAS
    pins+=" demo"
  fi
  number=$(number_of_packages)
  say "installing the pinned packages of [$extras] into $VENV (minutes the first time, by what they download)"
  quietly "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input --root-user-action=ignore \
    -c constraints.txt -e ".[$extras]" || die "pip could not install the packages: the lines above say why"
  printf '%s\n' "$pins" >"$STAMP"
  say "$(($(number_of_packages) - number)) packages installed; $VENV has $(du -sm "$VENV" | cut -f 1) MB; ${SECONDS} s"
}

setup_mosquitto() {
  if ! command -v mosquitto >/dev/null || ! command -v mosquitto_pub >/dev/null; then
    install "Mosquitto, the MQTT broker," mosquitto mosquitto-clients
  fi
}

setup_browser() {
  if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null; then
    install "Chromium, for the tests of the web page," chromium
  fi
}

setup_python
setup_packages
setup_mosquitto
[[ $STAGE != browser ]] || setup_browser
