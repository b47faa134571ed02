#!/usr/bin/env bash
# Measure an NVIDIA card in a short visit: the rows "h200" of benchmarks/results/real-cards.md.
#
#   visit.sh pack FOLDER [PYTHON_VERSION]   on a machine with a network: wheels and libraries, in parts of 56 MiB
#   visit.sh unpack FOLDER                  on the card's machine, once a call: keep the parts that came; install all
#   visit.sh measure RECORD [OPTION ...]    measure until the time is over; a further call continues the record
#
# VISIT_PACKAGES: what to pack in place of TensorFlow. VISIT_HOME: where the parts and packages are kept.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
home=${VISIT_HOME:-$repo/build/visit}
part_size=56m
packages=${VISIT_PACKAGES:-tensorflow==2.21.0 nvidia-cudnn-cu12}

pack() {
  local folder=$1 version=${2:-3.12} wheels
  wheels=$(mktemp -d)
  trap "rm -rf '$wheels'" EXIT
  mkdir -p "$folder"
  SIMULATED_CARD_WHEEL_PLATFORM=manylinux2014_x86_64 pip wheel --quiet --no-deps --wheel-dir "$wheels" "$repo"
  # shellcheck disable=SC2086
  pip download --quiet --only-binary=:all: --python-version "$version" --dest "$wheels" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 "$wheels"/*.whl $packages
  tar --create --directory "$wheels" . | split --bytes "$part_size" --numeric-suffixes - "$folder/part-"
  (cd "$folder" && sha256sum part-* >parts.sha256)
  ls -l "$folder"
}

unpack() {
  local folder=$1
  mkdir -p "$home/parts"
  cp -n "$folder"/part-* "$folder/parts.sha256" "$home/parts/"
  if ! (cd "$home/parts" && sha256sum --check --status parts.sha256); then
    echo "Parts are missing; send the others with a further call."
    return
  fi
  mkdir -p "$home/wheels"
  cat "$home"/parts/part-* | tar --extract --directory "$home/wheels"
  python3 -m venv --system-site-packages "$home/venv"
  "$home/venv/bin/pip" install --quiet --no-index --find-links "$home/wheels" "$home"/wheels/*.whl
}

measure() {
  local python=$home/venv/bin/python
  [ -x "$python" ] || python=${PYTHON:-python3}
  exec "$python" "$here/visit.py" "$@"
}

case ${1:-} in
  pack | unpack | measure) "$@" ;;
  *) sed -n '2,8s/^# \?//p' "$0" >&2; exit 2 ;;
esac
