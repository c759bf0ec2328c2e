# `kills`: a rank is killed at random moments, once in each of many jobs. Sourced by tests/mpi/run.
#
# The works of kills.c take turns. The shells that stay in place of the ranks, until all others have
# reported, keep the launcher from ending the job. The times are printed, and are no condition.

kill_ranks=4
# The works of kills.c. Open MPI 4.1.4 calls abort() if one of its own messages of one-sided operations
# fails, and ranks that wait for another rank's lock are not told.
works_of() { if [ "$1" = openmpi ]; then echo 5; else echo 6; fi; }

# kill_once LIBRARY VICTIM MOMENT WORK PATIENCE: one job; the report is in the folder.
kill_once() {
  local report=$folder/kills.txt library=$1 counters=$folder/kills.counters as=()
  shift
  : >"$report"
  chmod a+w "$report"
  fresh "$counters"
  # A /dev/shm of their own shows what is left in it.
  if unshare --mount true 2>/dev/null; then
    # shellcheck disable=SC2016 # variables of that shell
    as=(unshare --mount sh -c 'mount -t tmpfs none /dev/shm && "$@"; code=$?; ls -A /dev/shm | sed "s/^/name: /"; exit $code' sh)
  fi
  # Hydra sends SIGUSR1 when a process has failed.
  # shellcheck disable=SC2016 # variables of that shell
  FI_UMF_COUNTERS=$counters job "$limit" "$library" "$kill_ranks" sh -c 'trap "" USR1
    "$1" "$2" "$3" "$4" "$5" "$6"
    turn=0
    while [ "$(grep -c "^[teu]" "$2")" -lt "$7" ] && [ "$turn" -lt 600 ]; do sleep 0.1; turn=$((turn + 1)); done' \
    sh "$folder/$library-kills" "$report" "$@" $((kill_ranks - 1)) >"$folder/kills.log" 2>&1 || true
}

# Prints what a job has left, of umf or of the job's processes. (MPICH leaves names of its own in /dev/shm.)
kill_leftovers() {
  local process file
  sed -n '/^name: .*umf/p' "$folder/kills.log"
  for file in "$TMPDIR"/*umf* "$TMPDIR"/.*umf*; do [ ! -e "$file" ] || echo "file: $file"; done
  # Counters are whole, and of processes that have closed their endpoints.
  for file in "$folder/kills.counters"/*; do
    [ ! -e "$file" ] || grep -q '^unexpected ' "$file" || echo "incomplete counters: $file"
  done
  for process in /proc/[0-9]*; do
    case "$(readlink "$process/exe" 2>/dev/null)" in
      "$folder"/*-kills) echo "process: ${process#/proc/} $(cut -d ' ' -f 3 "$process/stat" 2>/dev/null)" ;;
    esac
  done
}

# kills LIBRARY COUNT SEED PROVIDER: prints the number of survivors that were told, and when.
kills() {
  local library=$1 count=$2 seed=$3 provider=$4 number victim moment work left bad=0 patience=60 times=$folder/kills.$1.times
  local others=$((kill_ranks - 1)) told untold
  # It is known to hang.
  [ "$provider" = umf ] || patience=3
  RANDOM=$seed
  : >"$times"
  untold=0
  for number in $(seq "$count"); do
    victim=$((RANDOM % kill_ranks))
    # A part of the kills is in the first messages.
    moment=$((number % 4 ? RANDOM % 50000 : RANDOM % 2000))
    work=$((number % $(works_of "$library")))
    kill_once "$library" "$victim" "$moment" "$work" "$patience"
    told=$(grep -c '^told\|^ended' "$folder/kills.txt" || true)
    awk '
      /^killed/ { killed = $2; next }
      /^told|^ended/ { at[$1 " " $2] = $3 }
      END { for (line in at) printf "%.3f %s\n", (at[line] - killed) / 1e6, line }' "$folder/kills.txt" >>"$times"
    untold=$((untold + others - told))
    left=$(kill_leftovers)
    [ "$provider" = umf ] || continue
    if [ "$told" != "$others" ] || [ -n "$left" ] || grep -q '^umf-hung: \|^umf-left: ' "$folder/kills.log"; then
      echo "kill $number of seed $seed (victim $victim, $moment us, work $work): $told of $others told; $left"
      cat "$folder/kills.txt" "$folder/kills.log"
      bad=$((bad + 1))
    fi
  done
  sort -g "$times" | awk -v "name=$library over $provider" -v "count=$count" -v "untold=$untold" -v "seed=$seed" '
    { value[NR] = $1; ended += $2 == "ended" }
    END {
      printf "%s: %d kills (seed %d); %d survivors told (%d of them: the library ended them); %d not told", name, count, seed, NR, ended, untold
      if (NR) printf "; after %.1f ms in the median, %.1f ms at most", value[int((NR + 1) / 2)], value[NR]
      print ""
    }' >"$folder/kills.sum"
  cat "$folder/kills.sum"
  # Shown as well if the test passes.
  cat "$folder/kills.sum" >&3
  [ "$bad" = 0 ]
}
