# Installs or names programs that a fresh machine may lack. Sourced by the scripts that README names.

# bounded_apt ARGUMENT ...: apt-get with limits for locks, downloads and the whole call.
bounded_apt() {
  local code=0
  DEBIAN_FRONTEND=noninteractive timeout -k 5 600 apt-get -o DPkg::Lock::Timeout=120 -o Acquire::Retries=2 \
    -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30 "$@" </dev/null || code=$?
  if [ "$code" = 124 ]; then echo "apt-get $* did not end within 600 s" >&2; fi
  return "$code"
}

# need PROGRAM PACKAGES WHAT-FOR: installs what is missing as root, and names it otherwise.
need() {
  command -v "$1" >/dev/null 2>&1 && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "no $1, which umf needs $3: installing $2" >&2
    # shellcheck disable=SC2086 # several packages
    bounded_apt update -q && bounded_apt install -qy $2 && return
  fi
  echo "umf needs $1 $3: apt-get install $2" >&2
  exit 1
}

# want PACKAGES FILE WHAT-FOR: as `need`, for packages without which some tests are skipped.
want() {
  compgen -G "$2" >/dev/null && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "no $1, which is used $3: installing it" >&2
    # shellcheck disable=SC2086 # several packages
    bounded_apt install -qy $1 >/dev/null 2>&1 && return
    # shellcheck disable=SC2086 # several packages
    bounded_apt update -q >/dev/null 2>&1 && bounded_apt install -qy $1 >/dev/null 2>&1 && return
  fi
  echo "some tests are skipped without $1, which is used $3: apt-get install $1" >&2
}

# The Rust toolchain needs a linker, and its own error does not name the package.
need_toolchain() {
  if ! command -v cargo >/dev/null 2>&1; then
    echo "umf needs a Rust toolchain (1.88 or later): https://rustup.rs" >&2
    exit 1
  fi
  need cc "gcc libc6-dev" "to link with"
}
