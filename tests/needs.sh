# What a fresh machine may lack. Sourced by the scripts that README names.

# The Rust toolchain needs a linker, and says so badly.
need_toolchain() {
  if ! command -v cargo >/dev/null 2>&1; then
    echo "umf needs a Rust toolchain (1.88 or later): https://rustup.rs" >&2
    exit 1
  fi
  command -v cc >/dev/null 2>&1 && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "no C compiler to link with: installing gcc and libc6-dev" >&2
    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy gcc libc6-dev && return
  fi
  echo "umf needs a C compiler to link with: apt-get install gcc libc6-dev" >&2
  exit 1
}
