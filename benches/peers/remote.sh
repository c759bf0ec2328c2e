# Part of benches/peers/run: reads of another process's memory over libfabric, ours (the bench `remote`) and
# without umf (reads_fabric.c), in turns. Uses $folder, $repeats and $quick.

# remote_rows LABEL LIBRARY PROVIDER ADDRESS: appends `name value` of both to LABEL.ours and LABEL.peer.
remote_rows() {
  local label=$1 library=$2 provider=$3 address=$4 path
  path=$(dirname "$library")
  [ "$path" = . ] && path=""
  for repeat in $(seq "$repeats"); do
    echo "$label: repeat $repeat of $repeats" >&2
    {
      for readers in 1 2 64; do
        LD_LIBRARY_PATH=$path timeout -k 5 120 "$folder/reads_fabric" "$provider" "$address" "$readers" 0.5 |
          sed "s/^/remote./; /^remote.read.1m/s/remote.read/remote.readers.$readers/; s/remote.readers.1.1m/remote.read.1m/"
      done
    } >>"$folder/$label.peer" 2>"$folder/said" || skip "$label without umf: $(tail -n 1 "$folder/said")"
    UMF_REMOTE_LIBRARY=$library UMF_REMOTE_PROVIDER=$provider UMF_REMOTE_INTERFACE=${address#-} timeout -k 5 240 \
      cargo bench --quiet --locked --package umf-benches --bench remote -- $quick --json 2>"$folder/said" |
      sed -n 's/.*"name":"\([^"]*\)".*"value":\([0-9.e+-]*\).*/\1 \2/p' | grep '^remote\.' >>"$folder/$label.ours" ||
      skip "$label: $(tail -n 1 "$folder/said")"
  done
}

# Prints the table.
remote() {
  if ! cc -O2 -o "$folder/reads_fabric" benches/peers/reads_fabric.c -lfabric 2>"$folder/said"; then
    skip "reads_fabric.c: $(tail -n 1 "$folder/said"); apt-get install libfabric-dev"
    exit
  fi
  echo "building" >&2
  cargo bench --quiet --locked --package umf-benches --bench remote --no-run
  remote_rows "installed" "libfabric.so.1" tcp 127.0.0.1
  if [ -n "${TESTS_LIBFABRIC:-}" ]; then
    remote_rows "other" "$TESTS_LIBFABRIC" tcp 127.0.0.1
  else
    skip "another libfabric: set TESTS_LIBFABRIC to the path of its libfabric.so.1"
  fi
  awk '
    function median(list, count,   sorted, at, other, swap) {
      for (at = 1; at <= count; at++) sorted[at] = list[at]
      for (at = 1; at <= count; at++)
        for (other = at + 1; other <= count; other++)
          if (sorted[other] < sorted[at]) { swap = sorted[at]; sorted[at] = sorted[other]; sorted[other] = swap }
      return sorted[int((count + 1) / 2)]
    }
    {
      file = FILENAME; sub(/.*\//, "", file)
      split(file, part, ".")
      key = part[1] SUBSEP $1
      if (!(key in known)) { known[key]; order[++rows] = key }
      values[key, part[2], ++counts[key, part[2]]] = $2
    }
    END {
      printf "%-36s %10s %10s %8s\n", "name", "ours", "peer", "ratio"
      for (row = 1; row <= rows; row++) {
        key = order[row]
        for (side in result) delete result[side]
        for (number = 1; number <= 2; number++) {
          side = number == 1 ? "ours" : "peer"
          count = counts[key, side]
          for (at = 1; at <= count; at++) list[at] = values[key, side, at]
          if (count) result[side] = median(list, count)
        }
        split(key, part, SUBSEP)
        ratio = ("ours" in result) && ("peer" in result) ? sprintf("%.2f", result["ours"] / result["peer"]) : "-"
        printf "%-36s %10s %10s %8s\n", part[1] ":" part[2], result["ours"], result["peer"], ratio
      }
    }
  ' "$folder"/*.ours "$folder"/*.peer
  echo "64b: us (less is better); others GB/s of all readers (more is better). message.64b: a tagged message and its answer"
}
