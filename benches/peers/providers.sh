# `providers`: messages over umf's provider of libfabric beside other providers and the MPI libraries'
# own transports. Sourced by benches/peers/run.
#
# A way is "LIBRARY:TRANSPORT". LIBRARY runs the program, with umf as with each peer.

. tests/python_with.sh

# The processors of the ranks: the first two cores that this process may use, without their siblings.
two_processors() {
  local allowed
  allowed=$(taskset -cp $$ | sed 's/.*: //')
  lscpu -p=CPU,CORE | awk -F, -v "allowed=$allowed" '
    function is_allowed(cpu,  ranges, count, part, ends) {
      count = split(allowed, ranges, ",")
      for (part = 1; part <= count; part++) {
        split(ranges[part], ends, "-")
        if (cpu >= ends[1] + 0 && cpu <= (ends[2] == "" ? ends[1] : ends[2]) + 0) return 1
      }
      return 0
    }
    /^[0-9]/ && is_allowed($1) && !($2 in cores) { cores[$2]; list = list (count++ ? "," : "") $1 }
    count == 2 { exit }
    END { print list; exit count != 2 }'
}

# start WAY: runs the program of the way's library.
start() {
  local library=${1%%:*} transport=${1#*:} command=() program=("$folder/halves_${1%%:*}")
  case "$transport" in
    # The launchers do not get the preloaded library.
    umf-proxy) program=(env "LD_PRELOAD=$folder/libumf_proxy.so" UMF_PROXY=page.disposition=shared-fd "${program[@]}") ;;
  esac
  case "$library" in
    mpich) command=("$mpich/bin/mpiexec" -n 2 "${program[@]}") ;;
    openmpi)
      command=(mpirun.openmpi --host localhost:2 --bind-to none -n 2)
      case "$transport" in
        umf*) command+=(--mca pml cm --mca mtl ofi --mca osc pt2pt --mca btl self --mca mtl_ofi_provider_include umf) ;;
        vader) command+=(--mca pml ob1 --mca btl self,vader) ;;
        # Without these it refuses machines without certain network devices.
        ucx) command+=(--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any) ;;
      esac
      command+=("${program[@]}")
      ;;
    libfabric) command=("${program[@]}" "${transport%%-*}") ;;
  esac
  case "$library:$transport" in
    mpich:umf*) command=(MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=umf "${command[@]}") ;;
    mpich:ofi-shm) command=(MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=shm "${command[@]}") ;;
    mpich:ucx) command=(MPIR_CVAR_CH4_NETMOD=ucx MPIR_CVAR_NOLOCAL=1 "${command[@]}") ;;
    mpich:own) command=(MPIR_CVAR_CH4_NETMOD=ucx MPIR_CVAR_NOLOCAL=0 "${command[@]}") ;;
  esac
  case "$transport" in
    umf*) command=("FI_PROVIDER_PATH=$folder/fi" "FI_UMF_COUNTERS=$folder/counters" "${command[@]}") ;;
  esac
  timeout -k 5 300 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "${command[@]}" "$processors" "$seconds"
}

# What carried the bytes that were received over umf. Fails if that is less than was measured.
carried() {
  cat "$folder"/counters/umf-*.txt 2>/dev/null | awk -v "way=$1" '
    $1 ~ /^received[.]/ || $1 == "got" { sub(/^received[.]/, "", $1); bytes[$1] += $3; all += $3 }
    END {
      # At least one message of the largest size in each direction.
      if (all < 2 * 16777216) exit 1
      printf "%s carried", way
      for (name in bytes) if (bytes[name] > 0) printf ", %s: %.1f %%", name, bytes[name] * 100 / all
      print ""
    }'
}

# measure_way WAY: appends "LIBRARY TRANSPORT ROW VALUE" to the rows, separated by tabs.
measure_way() {
  local code=0
  rm -rf "$folder/counters"
  mkdir "$folder/counters"
  start "$1" >"$folder/way" 2>"$folder/said" || code=$?
  if [ "$code" != 0 ]; then
    echo "exit code $code: $(grep -v '^-*$' "$folder/said" | tail -n 1)"
    return 1
  fi
  case "$1" in
    *:umf*) carried "$1" >"$folder/carried.${1/:/.}" || { echo "umf did not carry its messages"; return 1; } ;;
  esac
  awk -v "way=$1" '/^(halfrtt|stream)[.]/ { sub(/:/, "\t", way); print way "\t" $1 "\t" $2 }' "$folder/way" >>"$folder/rows"
}

# Prints the table of the rows: medians of the repeats.
providers_table() {
  sort -t "$(printf '\t')" -k1,3 -k4,4g "$folder/rows" | awk -F '\t' '
    { key = $1 FS $2 FS $3; values[key, ++count[key]] = $4 }
    !($2 ~ /^umf/) && !(($1, $2) in known) { known[$1, $2]; peers[$1] = peers[$1] " " $2 }
    function median(library, transport, row,  key) {
      key = library FS transport FS row
      return count[key] ? values[key, int((count[key] + 1) / 2)] : 0
    }
    function lines(library, row, transport, suffix,  part, number, all, ours, peer, best) {
      number = split(peers[library], part, " ")
      ours = median(library, transport, row)
      for (all = 1; all <= number; all++) {
        peer = median(library, part[all], row)
        if (peer > 0 && (!best || (row ~ /^stream/ ? peer > best : peer < best))) best = peer
      }
      for (all = 1; all <= number; all++) {
        peer = median(library, part[all], row)
        if (peer > 0 && ours > 0)
          printf "%-36s %12.3f %12.3f %8.2f  %s\n", library "." row suffix, ours, peer, ours / peer, part[all] (peer == best ? " (best)" : "")
      }
    }
    END {
      libraries = split("libfabric mpich openmpi", library, " ")
      rows = split("halfrtt.8b halfrtt.4k halfrtt.64k halfrtt.1m halfrtt.16m halfrtt.64k.calls halfrtt.1m.calls " \
        "halfrtt.16m.calls stream.1m stream.16m", row, " ")
      for (a = 1; a <= libraries; a++)
        for (b = 1; b <= rows; b++) {
          lines(library[a], row[b], "umf", "")
          lines(library[a], row[b], "umf-proxy", ".proxy")
        }
    }'
}

# Builds what is measured, and measures all ways in turn, as often as said.
providers() {
  local ways=() way repeat reason failed=0 before after mpich
  need taskset util-linux "to pin processes"
  processors=$(two_processors) || {
    skip "--mpi: this process may use only one core"
    return
  }
  mpich=${TESTS_MPICH:-$cache/mpich}
  if [ -n "${TESTS_MPICH:-}" ] || python_with mpich mpich==5.0.2; then
    "$mpich/bin/mpicc" -O3 -o "$folder/halves_mpich" benches/peers/halves_mpi.c
    ways+=(mpich:umf mpich:ofi-shm mpich:umf-proxy mpich:ucx mpich:own)
  else
    missing+=("MPICH (pip install mpich==5.0.2 in a virtual environment that TESTS_MPICH names)")
  fi
  if command -v mpicc.openmpi >/dev/null && command -v mpirun.openmpi >/dev/null; then
    mpicc.openmpi -O3 -o "$folder/halves_openmpi" benches/peers/halves_mpi.c
    ways+=(openmpi:umf openmpi:vader openmpi:umf-proxy)
    if ompi_info | grep -q 'MCA pml: ucx'; then ways+=(openmpi:ucx); else missing+=("UCX of Open MPI"); fi
  else
    missing+=("Open MPI (apt-get install openmpi-bin libopenmpi-dev)")
  fi
  if "${CC:-cc}" -O3 -o "$folder/halves_libfabric" benches/peers/halves_fabric.c -lfabric 2>"$folder/said"; then
    ways+=(libfabric:umf libfabric:shm libfabric:umf-proxy)
  else
    missing+=("libfabric (apt-get install libfabric-dev)")
  fi
  if [ ${#missing[@]} != 0 ]; then skip "not installed: $(printf '%s; ' "${missing[@]}" | sed 's/; $//')"; fi

  echo "building" >&2
  cargo bench --quiet --locked --package umf-benches --bench link --no-run
  crates/umf-ofi/install "$folder/fi"
  cargo build --quiet --locked --release --package umf-malloc --lib
  cp "${CARGO_TARGET_DIR:-target}/release/libumf_proxy.so" "$folder/"

  : >"$folder/rows"
  before=$(marker)
  for repeat in $(seq "$repeats"); do
    echo "repeat $repeat of $repeats" >&2
    for way in "${ways[@]}"; do
      [[ "$way" == *"$only"* && " ${lost[*]:-} " != *" $way "* ]] || continue
      if ! reason=$(measure_way "$way"); then
        lost+=("$way")
        case "$way" in
          *:umf*) echo "$way: $reason" >&2; failed=1 ;;
          *) skip "$way: $reason" ;;
        esac
      fi
    done
  done
  after=$(marker)
  printf "%-36s %12s %12s %8s\n" name ours peer ratio
  printf "%-36s %12.4f %12.4f\n" "link.line (before, after)" "$before" "$after"
  providers_table
  cat "$folder"/carried.* 2>/dev/null || true
  echo "half round trips in us (less is better), with the data written and read each time (.calls: without the" \
    "time of that); stream in GB/s (more is better)"
  return "$failed"
}
