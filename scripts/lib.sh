# What the scripts here have in common. A script reads it by `. "$(dirname "$0")/lib.sh"`, after `set -eu`.
# What an install script prints on standard output is its answer, so everything else goes to standard error.

scripts=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$(command -v python3 || command -v python || echo python3)}
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1

# fail MESSAGE: ends the script.
fail() {
  echo "$(basename "$0"): $1" >&2
  exit 1
}

# usage ARGUMENTS: says how the script is called, and ends it.
usage() {
  echo "usage: $(basename "$0") $1" >&2
  exit 2
}

# folder DIR: makes it and prints its absolute path.
folder() { mkdir -p "$1" && (cd "$1" && pwd); }

# work_folder: sets $work to a new folder that is removed when the script ends.
work_folder() {
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

# is_complete DIR [WHAT], mark_complete DIR [WHAT]: the last file to be written says that all is there.
is_complete() { [ -e "$1/.complete${2:+-$2}" ]; }
mark_complete() { : > "$1/.complete${2:+-$2}"; }

# retry COMMAND...: up to three times.
retry() { "$scripts/retry.sh" "$@"; }

# venv DIR [OPTION...]: makes a Python environment.
venv() {
  venv_dir=$1
  shift
  "$python" -m venv "$@" "$venv_dir" >&2
}

# pip_install PYTHON OPTION-OR-PACKAGE...: installs from PyPI with that interpreter.
pip_install() {
  pip_python=$1
  shift
  retry "$pip_python" -m pip install --quiet "$@" >&2
}

# pip_download DIR PACKAGE...: wheels from PyPI, without what they depend on.
pip_download() {
  pip_dir=$1
  shift
  retry "$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$pip_dir" "$@" >&2
}

# unpack WHEEL BASE PREFIX DIR: the wheel's files below the folder BASE whose names there begin with PREFIX.
unpack() {
  "$python" - "$@" <<'PYTHON'
import os, shutil, sys, zipfile
wheel, base, prefix, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        _, found, tail = name.partition(base)
        if not found or name.endswith("/") or not tail.startswith(prefix):
            continue
        to = os.path.join(out, tail)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        with archive.open(name) as source, open(to, "wb") as target:
            shutil.copyfileobj(source, target)
PYTHON
}

# find_nvcc: sets $nvcc as build.rs finds it: NVCC, CUDA_HOME, PATH. Exit status 77 where there is none.
find_nvcc() {
  nvcc=${NVCC:-}
  if [ -z "$nvcc" ] && [ -n "${CUDA_HOME:-}" ]; then
    nvcc=$CUDA_HOME/bin/nvcc
  fi
  nvcc=$(command -v "${nvcc:-nvcc}") || {
    echo "skipped: no nvcc (scripts/install-nvcc.sh installs one)"
    exit 77
  }
}
