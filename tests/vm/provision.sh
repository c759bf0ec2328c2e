# Fetches QEMU, busybox and kernels into the cache folder. Sourced by run.

cache=${TESTS_VM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/umf-vm}

skip() {
  echo "umf-skip: tests/vm: $*"
}

# Checks that guests can run on this machine at all.
machine_fits() {
  if [ "$(uname -m)" != x86_64 ]; then
    skip "the guest is an x86-64 machine, this is $(uname -m)"
    return 1
  fi
  if ! mkdir -p "$cache" 2>/dev/null || [ ! -w "$cache" ]; then
    skip "no cache folder can be made at $cache: set TESTS_VM_CACHE"
    return 1
  fi
}

# Locks the cache folder. Another process may hold the lock while it fetches everything.
lock() {
  exec 9>"$cache/lock"
  if command -v flock >/dev/null 2>&1 && ! flock -w 900 9; then
    exec 9>&-
    skip "another process has held $cache/lock for 15 minutes"
    return 1
  fi
}

unlock() {
  exec 9>&-
}

# apt PROGRAM [ARGUMENT ...]: runs apt-get or apt-cache with the machine's sources, and with lists and
# archives in the cache folder. Child processes do not inherit the lock, since they may outlive this script.
apt() {
  local program=$1 code=0
  shift
  timeout -k 5 300 "$program" -q -o Dir::State::lists="$cache/apt/lists" -o Dir::Cache="$cache/apt/cache" \
    -o Dir::Cache::archives="$cache/apt/archives" -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=true \
    -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::Languages=none \
    -o APT::Update::Error-Mode=any -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 \
    -o APT::Update::Post-Invoke::= -o DPkg::Post-Invoke::= "$@" 9>&- || code=$?
  if [ "$code" = 124 ]; then echo "E: $program did not end within 300 s" >>"$cache/apt/log"; fi
  return "$code"
}

apt_lists() {
  if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-deb >/dev/null 2>&1; then
    skip "no apt-get here to fetch $1 with"
    return 1
  fi
  # Once per run, since sources delete old archives.
  [ -z "${apt_is_fresh:-}" ] || return 0
  mkdir -p "$cache/apt/lists/partial" "$cache/apt/cache" "$cache/apt/archives/partial"
  if ! apt apt-get update >"$cache/apt/log" 2>&1; then
    skip "apt-get update cannot reach this machine's sources, for $1 ($(grep -m1 '^[EW]:' "$cache/apt/log" || echo no reason given))"
    return 1
  fi
  apt_is_fresh=1
}

# fetch FOLDER PACKAGE...: downloads packages into a folder.
fetch() {
  local folder=$1
  shift
  rm -rf "$folder"
  mkdir -p "$folder"
  (cd "$folder" && apt apt-get download "$@" >>"$cache/apt/log" 2>&1)
}

# tool NAME [ARGUMENT ...]: runs the machine's program of that name, or else the unpacked one with the
# unpacked libraries.
tool() {
  local name=$1 found
  shift
  if found=$(PATH="$PATH:/usr/sbin:/sbin" command -v "$name"); then
    "$found" "$@"
  else
    found=$(PATH="$cache/tools/bin:$cache/tools/usr/bin" command -v "$name") || {
      echo "tests/vm: $name was not unpacked into $cache/tools" >&2
      return 127
    }
    LD_LIBRARY_PATH="$cache/tools/usr/lib/x86_64-linux-gnu:$cache/tools/lib/x86_64-linux-gnu" "$found" "$@"
  fi
}

# Fetches QEMU and the programs that build a guest, unless the machine has them.
provision_qemu() {
  machine_fits || exit 0
  lock || exit 0
  if [ ! -e "$cache/tools/complete" ]; then
    apt_lists QEMU || exit 0
    local packages="qemu-system-x86 busybox-static kmod zstd xz-utils" missing
    # The simulation lists the packages that apt would install. They are only downloaded.
    missing=$(apt apt-get install --simulate --no-install-recommends --no-remove $packages 2>/dev/null |
      sed -n 's/^Inst \([^ ]*\) .*/\1/p') || true
    if [ -z "$missing" ]; then
      missing=$(apt apt-get install --simulate --no-install-recommends $packages 2>>"$cache/apt/log" |
        sed -n 's/^Inst \([^ ]*\) .*/\1/p') || true
    fi
    if [ -n "$missing" ] && ! fetch "$cache/apt/tools" $missing; then
      skip "QEMU cannot be fetched from this machine's apt sources ($(grep -m1 '^E:' "$cache/apt/log" || echo no reason given))"
      exit 0
    fi
    rm -rf "$cache/tools"
    mkdir -p "$cache/tools"
    for archive in "$cache"/apt/tools/*.deb; do
      if [ -e "$archive" ]; then dpkg-deb -x "$archive" "$cache/tools"; fi
    done
    if ! tool qemu-system-x86_64 --version >/dev/null 2>>"$cache/apt/log" || ! tool busybox true; then
      skip "QEMU or busybox from this machine's apt sources does not run here (see $cache/apt/log)"
      exit 0
    fi
    rm -rf "$cache/apt/tools"
    # Replaces the package's links, which are absolute.
    if [ -e "$cache/tools/bin/kmod" ]; then
      for name in depmod modprobe; do ln -sf kmod "$cache/tools/bin/$name"; done
    elif [ -e "$cache/tools/usr/bin/kmod" ]; then
      for name in depmod modprobe; do ln -sf kmod "$cache/tools/usr/bin/$name"; done
    fi
    touch "$cache/tools/complete"
  fi
  unlock
}

# provision_kernel recent|old: fetches the kernel, and sets kernel_folder.
provision_kernel() {
  kernel_folder=$cache/kernels/$1
  kernel_is_complete && return
  lock || return
  local code=0
  # Another process may have fetched it while this one waited for the lock.
  kernel_is_complete || fetch_kernel "$1" || code=$?
  unlock
  return "$code"
}

# Returns whether the kernel is there, with the modules that guests need now.
kernel_is_complete() {
  [ "$(cat "$kernel_folder/complete" 2>/dev/null)" = "$guest_modules" ]
}

fetch_kernel() {
  apt_lists "a kernel" || return
  local names package
  names=$(apt apt-cache pkgnames linux-image- | grep -E '^linux-image-[0-9][0-9.]*[-+][0-9a-z+]*-?amd64$' |
    grep -vE -- '-(cloud|rt)-' | sort -V)
  case "$1" in
    # Debian's kernels have udmabuf and the system heap since 6.12.
    recent) package=$(echo "$names" | grep -vE 'linux-image-([0-5]|6\.[0-9]\.|6\.1[01]\.)' | tail -n 1) ;;
    # Without dma-buf exporters, SO_PEERPIDFD, PIDFD_THREAD and MFD_NOEXEC_SEAL.
    old) package=$(echo "$names" | grep -E '^linux-image-6\.1\.' | tail -n 1) ;;
  esac
  if [ -z "$package" ]; then
    skip "this machine's apt sources have no $1 kernel (linux-image-6.12 or newer, or 6.1 for an old one)"
    return 1
  fi
  if ! fetch "$cache/apt/kernel" "$package"; then
    skip "$package cannot be fetched ($(grep -m1 '^E:' "$cache/apt/log" || echo no reason given))"
    return 1
  fi
  unpack_kernel "$cache"/apt/kernel/*.deb
  rm -rf "$cache/apt/kernel"
}

# The modules of all boots. $kernel_folder/load/MODULE lists each with its dependencies, in load order.
guest_modules="vgem virtio_pci nd_e820 nd_pmem dax_pmem device_dax sch_netem"

unpack_kernel() {
  local tree=$kernel_folder/tree release module
  rm -rf "$kernel_folder"
  mkdir -p "$tree" "$kernel_folder/modules" "$kernel_folder/load"
  # Unpacks only the parts that guests need, of several hundred megabytes.
  dpkg-deb --fsys-tarfile "$1" | tar -x -C "$tree" --wildcards \
    --exclude '*/drm/amd/*' --exclude '*/drm/i915/*' --exclude '*/drm/nouveau/*' --exclude '*/drm/radeon/*' --exclude '*/drm/xe/*' \
    './boot/vmlinuz-*' '*/lib/modules/*/modules.*' '*/kernel/drivers/gpu/drm/*' '*/kernel/drivers/virtio/*' \
    '*/kernel/drivers/dax/*' '*/kernel/drivers/nvdimm/*' '*/kernel/drivers/media/cec/*' '*/kernel/drivers/media/rc/*' '*/kernel/net/sched/*' 2>/dev/null || true
  release=$(basename "$tree"/boot/vmlinuz-*)
  release=${release#vmlinuz-}
  echo "$release" >"$kernel_folder/release"
  # kmod expects lib/modules.
  if [ ! -d "$tree/lib/modules" ]; then
    mkdir -p "$tree/lib"
    mv "$tree/usr/lib/modules" "$tree/lib/modules"
  fi
  tool depmod -b "$tree" "$release" 2>/dev/null
  for module in $guest_modules; do
    # modprobe prints "insmod <path>" lines in load order, and "builtin" lines for built-in modules.
    { tool modprobe -d "$tree" -S "$release" --show-depends "$module" 2>/dev/null || true; } | while read -r verb path _; do
      [ "$verb" = insmod ] || continue
      local name
      name=$(basename "${path%.xz}" .zst)
      case "$path" in
        *.xz) tool xz -dc "$path" >"$kernel_folder/modules/$name" ;;
        *.zst) tool zstd -dqc "$path" >"$kernel_folder/modules/$name" ;;
        *) cp "$path" "$kernel_folder/modules/$name" ;;
      esac
      echo "$name"
    done >"$kernel_folder/load/$module"
  done
  extract_image "$tree/boot/vmlinuz-$release" "$kernel_folder/image"
  rm -rf "$tree"
  echo "$guest_modules" >"$kernel_folder/complete"
}

# extract_image COMPRESSED IMAGE: writes the uncompressed kernel, with which a guest starts seconds faster.
extract_image() {
  local compressed=$1 image=$2 offset
  for unpacker in "zstd:\x28\xb5\x2f\xfd" "xz:\xfd7zXZ\x00"; do
    for offset in $(LC_ALL=C grep -aobP "${unpacker#*:}" "$compressed" | cut -d: -f1); do
      # Both programs fail at the data after the kernel.
      tail -c "+$((offset + 1))" "$compressed" | tool "${unpacker%%:*}" -dqc >"$image" 2>/dev/null || true
      if [ "$(head -c 4 "$image" | tail -c 3)" = ELF ]; then return; fi
    done
  done
  # Compressed in another format. QEMU boots the compressed image, too.
  cp "$compressed" "$image"
}
