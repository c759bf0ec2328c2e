# Python environments with packages from PyPI, in a cache folder. Sourced by tests/others and tests/mpi/run.

cache=${TESTS_OTHERS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/umf-others}

# python_with FOLDER PACKAGE ...: a Python environment with these packages; fails if it cannot be had.
python_with() {
  local folder=$cache/$1
  shift
  [ -e "$folder/complete" ] && return
  rm -rf "$folder"
  mkdir -p "$cache"
  if python3 -m venv "$folder" && timeout -k 5 900 "$folder/bin/pip" install --quiet "$@"; then
    touch "$folder/complete"
  else
    return 1
  fi >&2
}
