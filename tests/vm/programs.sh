# Builds test programs and says which a boot runs. Sourced by run.

# build_programs workspace|packages: builds the test programs of the whole workspace, as tests/run has
# built them, or of the packages in `needed`. $work/built has lines of "package target executable".
build_programs() {
  local messages=$work/messages package selection=(--workspace)
  if [ "$1" != workspace ]; then
    selection=()
    for package in $(tr ' ' '\n' <"$work/needed" | sort -u); do selection+=(--package "$package"); done
  fi
  if ! (cd "$root" && timeout --foreground -k 5 3600 cargo test --no-run --locked --message-format=json-render-diagnostics \
    "${selection[@]}") >"$messages" 2>"$work/cargo"; then
    # (What it waits for is in there, if the time was up.)
    cat "$work/cargo" >&2
    echo "tests/vm/run: the programs were not built (within an hour)" >&2
    exit 1
  fi
  # A package is PATH#NAME@VERSION, or PATH#VERSION where its name is that of its folder.
  sed -n 's/"package_id":"\([^"#]*\/\)\([^"#\/]*\)#\([0-9][^"@]*\)"/"package_id":"\1\2#\2@\3"/
    s/.*"reason":"compiler-artifact".*"package_id":"[^"#]*#\([^@"]*\)@[^"]*".*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2 \3/p' \
    "$messages" >"$work/built"
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
    while read -r of name path; do
      [ "$of" = "$package" ] || continue
      case "$path" in
        */deps/*)
          if [ -z "$target" ] || [ "$name" = "$target" ]; then
            found=1
            echo "$path $path" >>"$work/files"
            # shellcheck disable=SC2086 # several
            write_command "$work/commands" ${environment:+env $environment} "$path" ${options:---show-output} \
              ${test_threads:+--test-threads=$test_threads} ${filter//,/ }
          fi
          ;;
        # A program of the package, which its tests start.
        *) echo "$path $path" >>"$work/files" ;;
      esac
    done <"$built"
    if [ -z "$found" ]; then
      echo "tests/vm/run: boot $boot wants $wanted, which cargo does not build" >&2
      exit 1
    fi
  done
}
