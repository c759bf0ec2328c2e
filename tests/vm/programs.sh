# Builds test programs and says which a boot runs. Sourced by run.

# What cargo builds with these arguments, as lines of "package target executable file": the file is where a copy is of what the next
# build may write over.
build_programs() {
  local messages=$work/messages package target executable kept=$work/kept/$1
  shift
  if ! (cd "$root" && timeout --foreground -k 5 3600 cargo test --no-run --locked --message-format=json-render-diagnostics "$@") \
    >"$messages" 2>"$work/cargo"; then
    # (What it waits for is in there, if the time was up.)
    cat "$work/cargo" >&2
    echo "tests/vm/run: the programs were not built (within an hour)" >&2
    exit 1
  fi
  # A package is PATH#NAME@VERSION, or PATH#VERSION where its name is that of its folder.
  sed -n 's/"package_id":"\([^"#]*\/\)\([^"#\/]*\)#\([0-9][^"@]*\)"/"package_id":"\1\2#\2@\3"/
    s/.*"reason":"compiler-artifact".*"package_id":"[^"#]*#\([^@"]*\)@[^"]*".*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2 \3/p' \
    "$messages" | while read -r package target executable; do
    case "$executable" in
      */deps/*) echo "$package $target $executable $executable" ;;
      *)
        mkdir -p "$kept"
        cp "$executable" "$kept/"
        echo "$package $target $executable $kept/${executable##*/}"
        ;;
    esac
  done
}

# Builds what the boots need that were read into `needed`, as lines of "name|features|packages": for each, the programs are in
# $work/built.<name> then. Those with features of their own are built first: what is left in the target folder is what others build.
build_all() {
  local how=$1 name features packages package selection=()
  while IFS='|' read -r name features packages; do
    [ -n "$features" ] || continue
    selection=()
    for package in $packages; do selection+=(--package "$package"); done
    # (Of the workspace's crates, as tests/run has built them.)
    if [ "$how" = workspace ]; then selection=(--workspace); fi
    # shellcheck disable=SC2086 # several
    build_programs "$name" "${selection[@]}" --features "${features// /,}" $(test_targets "$name") >"$work/built.$name"
  done <"$work/needed"
  selection=()
  if [ "$how" = workspace ]; then
    selection=(--workspace)
  else
    for package in $(sed -n 's/^[^|]*||//p' "$work/needed" | tr ' ' '\n' | sort -u); do selection+=(--package "$package"); done
  fi
  if [ ${#selection[@]} != 0 ]; then build_programs all "${selection[@]}" >"$work/built.all"; fi
  while IFS='|' read -r name features packages; do
    if [ -z "$features" ]; then ln -sf built.all "$work/built.$name"; fi
  done <"$work/needed"
}

# The one target of a boot with features: nothing else is built anew.
test_targets() {
  (read_boot "$1" && for wanted in $tests; do
    wanted=${wanted#*:}
    echo "--test ${wanted%%:*}"
  done)
}

# Writes one program with its arguments as a line for the guest's shell.
write_command() {
  local file=$1
  shift
  printf '%q ' "$@" >>"$file"
  echo >>"$file"
}

# Of a boot's `tests` ("package" for all of its tests, "package:target" for one, "package:target:filter,filter" for some in it),
# what is run and what it needs.
collect_programs() {
  local wanted package target filter of name path found
  : >"$work/commands"
  : >"$work/files"
  for wanted in $tests; do
    IFS=: read -r package target filter <<<"$wanted"
    found=
    while read -r of name path file; do
      [ "$of" = "$package" ] || continue
      case "$path" in
        */deps/*)
          if [ -z "$target" ] || [ "$name" = "$target" ]; then
            found=1
            echo "$path $file" >>"$work/files"
            # shellcheck disable=SC2086 # several
            write_command "$work/commands" ${environment:+env $environment} "$path" ${options:---show-output} \
              ${test_threads:+--test-threads=$test_threads} ${filter//,/ }
          fi
          ;;
        # A program of the package, which its tests start.
        *) echo "$path $file" >>"$work/files" ;;
      esac
    done <"$built.$boot"
    if [ -z "$found" ]; then
      echo "tests/vm/run: boot $boot wants $wanted, which cargo does not build" >&2
      exit 1
    fi
  done
}
