#!/usr/bin/env bash
# Everything that the make targets need, on a fresh Debian machine: a virtual environment in .venv with the pinned
# packages, and Mosquitto. Does nothing, at once, when all is there. Without root it never installs system packages:
# it says exactly what to install. `setup.sh demo` installs only the packages of `halimede demo`, `setup.sh run` adds
# those of what a system here may run, and `setup.sh` those of development, to the same .venv. `setup.sh browser` brings
# Chromium too, in which the web page is tested, `setup.sh prometheus` Prometheus, with which alerts are tested,
# `setup.sh node` npm, for the tests of programs in JavaScript, and `setup.sh fonts` fonts beside the packages of
# `setup.sh run`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
export PATH="$PATH:/usr/sbin:/sbin"

readonly VENV=.venv
readonly STAMP=$VENV/.halimede-setup
readonly OLDEST="3.11"
readonly STAGE=${1:-all}
#: extras by stage; those of a stage begin with those of the stage before, and dev has all of them
readonly DEMO_EXTRAS="gm,lc,worker,cli,demo"
readonly RUN_EXTRAS="$DEMO_EXTRAS,camera,reid,tflite,opencv,otel"
readonly FONTS=/usr/share/fonts/truetype
#: seconds between two lines about a long installation
readonly PROGRESS_S=10

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

# show_progress <log> <packages before>: copy what pip says to the log, and show every few seconds how far pip is
show_progress() {
  local line status packages=0 total=0 current="asking the package index"
  local next=$((SECONDS + PROGRESS_S))
  while true; do
    status=0
    IFS= read -r -t 1 line || status=$?
    ((status)) || line+=$'\n'
    printf '%s' "$line" >>"$1"
    ((status == 0 || status > 128)) || return 0 # above 128: pip says nothing at the moment
    case $line in
      Collecting\ * | Processing\ *)
        packages=$((packages + 1)) current=${line#* }
        current=${current%%[ $'\n']*} current=${current##*/}
        ;;
      *Downloading\ *.whl*) current="downloading ${line#*Downloading }" current=${current%$'\n'} ;;
      "Installing collected packages: "*) line=${line//[^,]/} total=$((${#line} + 1)) ;;
    esac
    ((SECONDS >= next)) || continue
    next=$((SECONDS + PROGRESS_S))
    if ((total)); then
      say "  $(($(number_of_packages) - $2)) of $total packages installed, $SECONDS s"
    else
      say "  $packages packages, $current, $SECONDS s"
    fi
  done
}

setup_packages() {
  local pins installed="" extras=dev number log
  case $STAGE in
    demo) extras=$DEMO_EXTRAS ;;
    run | fonts) extras=$RUN_EXTRAS ;;
  esac
  pins=$({ "$VENV/bin/python" --version; cat pyproject.toml constraints.txt; } | sha256sum | cut -d ' ' -f 1)
  [[ ! -f $STAMP ]] || installed=$(<"$STAMP")
  [[ $installed != "$pins dev" && $installed != "$pins $extras"* ]] || return 0
  number=$(number_of_packages)
  log=$(mktemp)
  say "installing the pinned packages of [$extras] into $VENV (minutes the first time, by what they download)"
  PYTHONUNBUFFERED=1 "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
    --root-user-action=ignore -c constraints.txt -e ".[$extras]" 2>&1 | show_progress "$log" "$number" || {
    tail -n 15 "$log" >&2
    rm -f "$log"
    die "pip could not install the packages: the lines above say why"
  }
  rm -f "$log"
  printf '%s\n' "$pins $extras" >"$STAMP"
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

# npm of Debian is 350 packages, and tests that need it skip without it: nobody who is not root has to install it
setup_node() {
  if ! command -v npm >/dev/null && may_install; then
    install "npm, for the tests of programs in JavaScript," nodejs npm
  fi
}

# the programs alone, in the environment: a package that is installed would start a service
setup_prometheus() {
  [[ ! -x $VENV/bin/promtool || ! -x $VENV/bin/prometheus ]] || return 0
  command -v apt-get >/dev/null && command -v dpkg >/dev/null ||
    die "Prometheus, for the tests of alerts, is missing." "Copy its programs prometheus and promtool to $VENV/bin."
  say "unpacking Prometheus (apt) into $VENV/bin"
  local folder
  folder=$(mktemp -d)
  [[ $(id -u) != 0 ]] || quietly apt-get update -qq || true
  if ! (cd "$folder" && quietly apt-get download -qq prometheus && dpkg -x prometheus_*.deb .); then
    rm -rf "$folder"
    die "apt could not download prometheus: the lines above say why"
  fi
  cp "$folder/usr/bin/prometheus" "$folder/usr/bin/promtool" "$VENV/bin/"
  rm -rf "$folder"
}

setup_fonts() {
  compgen -G "$FONTS/*/*.ttf" >/dev/null || install "A TrueType font, for the words of the demo," fonts-dejavu-core
}

setup_python
setup_packages
setup_mosquitto
[[ $STAGE != browser ]] || setup_browser
[[ $STAGE != node ]] || setup_node
[[ $STAGE != prometheus ]] || setup_prometheus
[[ $STAGE != fonts ]] || setup_fonts
