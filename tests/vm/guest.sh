# Boots a guest, which runs the commands and powers off. Sourced by run.

# pack FOLDER: prints the folder as a cpio archive.
pack() {
  (cd "$1" && find . | tool busybox cpio -o -H newc 2>/dev/null)
}

# stage_programs FOLDER: copies the programs of $work/files, and the libraries they are linked with, to
# their paths below the folder. Debug information is most of a program, and is removed.
stage_programs() {
  local stage=$1 path file
  sort -u "$work/files" | while read -r path file; do
    echo "$path $file"
    # ldd prints "name => path (address)" or "path (address)", and nothing for a static program.
    ldd "$file" 2>/dev/null | sed -n 's/.* => \(\/[^ ]*\) .*/\1 \1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1 \1/p'
  done | sort -u | while read -r path file; do
    mkdir -p "$stage$(dirname "$path")"
    strip --strip-debug -o "$stage$path" "$file" 2>/dev/null || cp -L "$file" "$stage$path"
  done
}

# Writes the guest's initramfs to $work/initrd: busybox, kernel modules, init and the programs.
make_image() {
  local stage=$work/stage module name
  rm -rf "$stage"
  mkdir -p "$stage"/bin "$stage"/modules "$stage"/dev "$stage"/proc "$stage"/sys "$stage"/tmp "$stage"/etc
  if [ -e "$cache/tools/bin/busybox" ]; then
    cp "$cache/tools/bin/busybox" "$stage/bin/busybox"
  elif [ -e "$cache/tools/usr/bin/busybox" ]; then
    cp "$cache/tools/usr/bin/busybox" "$stage/bin/busybox"
  else
    cp "$(command -v busybox)" "$stage/bin/busybox"
  fi
  cp "$vm/init" "$stage/init"
  cp "$work/commands" "$stage/commands"
  echo "$boot" >"$stage/etc/boot"
  for module in $modules; do
    if [ ! -e "$kernel_folder/load/$module" ]; then
      echo "tests/vm: the kernel has no module $module" >&2
      return 1
    fi
    while read -r name; do
      # A dependency of an earlier module.
      if [ -e "$stage/modules/$name" ]; then continue; fi
      # Without the signature and debug information, which take long to check and read in an interpreted
      # guest.
      strip --strip-debug -o "$stage/modules/$name" "$kernel_folder/modules/$name" 2>/dev/null ||
        cp "$kernel_folder/modules/$name" "$stage/modules/$name"
      echo "$name" >>"$stage/modules/order"
    done <"$kernel_folder/load/$module"
  done
  # The commands of init and of tests. Links for all of busybox would take a second.
  for name in sh mount mkdir chmod ln ip insmod stty cat sync reboot env ls true false sleep echo ps dmesg free head tail grep kill id; do
    ln -s busybox "$stage/bin/$name"
  done
  stage_programs "$stage"
  pack "$stage" >"$work/initrd"
  rm -rf "$stage"
}

# The clock is the HPET: on a busy machine the kernel may calibrate the TSC wrong by ten times.
#
# The other arguments make an interpreted guest fast. They turn off checks, clearing and mitigations that
# no test needs. norandmaps loads programs at the same addresses each time, since QEMU translates code per
# address: a moved actor has 3,500 blocks to translate again. Actors randomize their own mappings.
#
# Programs are in a ramfs. In a tmpfs their code would count as shared memory of their processes.
kernel_arguments="console=ttyS2 panic=-1 quiet rootfstype=ramfs mitigations=off tsc=reliable clocksource=hpet no_timer_check init_on_alloc=0 audit=0 nokaslr lsm=yama \
rcupdate.rcu_expedited=1 cryptomgr.notests norandmaps clearcpuid=112 random.trust_cpu=on"

# Runs the commands in a guest, and prints their output. The exit code is the first that is not 0, 124 if
# the guest exceeds its limit, or 125 if it ends before its last command.
run_guest() {
  make_image
  local code=0
  echo "== guest $boot: $about"
  : >"$work/codes"
  : >"$work/log"
  # Three serial lines: the output of programs, their exit codes, the kernel's log.
  bounded_qemu -machine "q35${machine:+,$machine}" -accel "$accelerator" -cpu max,-la57,-smap,-smep,-pku,-umip,-erms,-fsrm,-avx,-avx2,-fma,-f16c -m "$memory" \
    -smp "$processors" -kernel "$kernel_folder/image" -initrd "$work/initrd" \
    -append "$kernel_arguments $arguments" \
    ${devices[@]+"${devices[@]}"} -serial stdio -serial "file:$work/codes" -serial "file:$work/log" \
    </dev/null | tr -d '\r' | sed -u "s/^umf-skip: /umf-skip: in guest $boot: /" || code=$?
  code=$(cat "$work/qemu-code")
  if [ "$code" = 124 ] || [ "$code" = 137 ]; then
    echo "tests/vm: guest $boot did not end within $limit s; the last that its kernel said:" >&2
    tail -n 20 "$work/log" >&2
    return 124
  fi
  if ! grep -q '^end' "$work/codes"; then
    echo "tests/vm: guest $boot ended too early (QEMU: exit code $code); the last that its kernel said:" >&2
    tail -n 20 "$work/log" >&2
    return 125
  fi
  code=$(tr -d '\r' <"$work/codes" | sed -n 's/^exit \([0-9]*\) .*/\1/p' | grep -vx 0 | head -n 1) || true
  return "${code:-0}"
}

# Prints the times of the last guest by its own clock: "start 2.1 s, dma_buf 3.4 s".
guest_times() {
  tr -d '\r' <"$work/codes" | awk '
    FNR == NR { if (/^(begin|exit)/) at[count++] = $NF; next }
    { for (word = 1; word <= NF; word++) if ($word ~ /^\//) { name[FNR] = $word; break }
      sub(/.*\//, "", name[FNR]); sub(/-[0-9a-f]*$/, "", name[FNR]) }
    END {
      if (count) printf "start %.1f s", at[0]
      for (program = 1; program < count; program++) printf ", %s %.1f s", name[program], at[program] - at[program - 1]
    }' - "$work/commands"
}

# qemu SECONDS [ARGUMENT ...]: runs QEMU with a time limit. The machine has no default devices.
qemu() {
  local seconds=$1 share=$cache/tools/usr/share folder firmware=()
  shift
  for folder in "$share/qemu" "$share/seabios" "$cache/tools/usr/lib/ipxe/qemu"; do
    if [ -d "$folder" ]; then firmware+=(-L "$folder"); fi
  done
  LD_LIBRARY_PATH="$cache/tools/usr/lib/x86_64-linux-gnu:$cache/tools/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    timeout --kill-after=5 "$seconds" "$(qemu_path)" "${firmware[@]}" -nodefaults -no-user-config -display none -no-reboot "$@"
}

# Runs QEMU within the boot's limit. Writes the exit code to a file, since QEMU is in the middle of a pipe.
bounded_qemu() {
  local code=0
  qemu "$limit" -pidfile "$work/qemu.pid" "$@" 2>"$work/qemu" || code=$?
  if [ "$code" != 0 ]; then sed 's/^/qemu: /' "$work/qemu" >&2; fi
  echo "$code" >"$work/qemu-code"
}

# Sets `accelerator`: KVM if it works, QEMU's interpreter otherwise. KVM may exist and still run nothing,
# for example in a nested virtual machine. It is tried once per boot of this machine, with a kernel that
# panics because it has no root file system.
choose_accelerator() {
  accelerator=tcg,thread=multi
  if [ "${TESTS_VM_ACCELERATOR:-kvm}" = tcg ] || [ ! -r /dev/kvm ] || [ ! -w /dev/kvm ]; then return; fi
  local tried
  tried=$cache/kvm.$(cat /proc/sys/kernel/random/boot_id)
  if [ ! -e "$tried" ]; then
    rm -f "$cache"/kvm.*
    local said
    said=$(qemu 5 -machine q35 -accel kvm -cpu max -m 256M -kernel "$kernel_folder/image" -append "console=ttyS0 panic=-1" \
      -serial stdio </dev/null 2>&1 | tr -d '\0') || true
    case "$said" in
      *"Kernel panic"*) echo works >"$tried" ;;
      *) echo fails >"$tried" ;;
    esac
  fi
  if [ "$(cat "$tried")" = works ]; then accelerator=kvm; fi
}

qemu_path() {
  if [ -x "$cache/tools/usr/bin/qemu-system-x86_64" ]; then
    echo "$cache/tools/usr/bin/qemu-system-x86_64"
  else
    command -v qemu-system-x86_64
  fi
}
