# Builds test programs, and lists those of a boot. Sourced by run.

# build_programs workspace|packages: builds the test programs of the whole workspace, as tests/run does,
# or of the packages in $work/needed. Writes lines of "package target executable" to $work/built.
build_programs() {
  local messages=$work/messages package selection=(--workspace)
  if [ "$1" != workspace ]; then
    selection=()
    for package in $(tr ' ' '\n' <"$work/needed" | sort -u); do selection+=(--package "$package"); done
  fi
  if ! (cd "$root" && timeout --foreground -k 5 3600 cargo test --no-run --locked --message-format=json-render-diagnostics \
    "${selection[@]}") >"$messages" 2>"$work/cargo"; then
    # After a timeout, this shows what cargo waits for.
    cat "$work/cargo" >&2
    echo "tests/vm/run: the programs were not built (within an hour)" >&2
    exit 1
  fi
  # A package id is PATH#NAME@VERSION, or PATH#VERSION if the folder has the package's name.
  sed -n 's/"package_id":"\([^"#]*\/\)\([^"#\/]*\)#\([0-9][^"@]*\)"/"package_id":"\1\2#\2@\3"/
    s/.*"reason":"compiler-artifact".*"package_id":"[^"#]*#\([^@"]*\)@[^"]*".*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2 \3/p' \
    "$messages" >"$work/built"
}

# write_command FILE PROGRAM [ARGUMENT ...]: appends the command as one line for the guest's shell.
write_command() {
  local file=$1
  shift
  printf '%q ' "$@" >>"$file"
  echo >>"$file"
}

# Writes the commands and files of a boot to $work/commands and $work/files. Its `tests` are words of
# "package" (all its test programs), "package:target" (one), or "package:target:filter,filter" (some tests
# of one).
collect_programs() {
  local wanted package target filter of name path found
  : >"$work/commands"
  : >"$work/files"
  for path in $files; do echo "$path $path" >>"$work/files"; done
  if [ -n "$before" ]; then echo "$before" >>"$work/commands"; fi
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
            # shellcheck disable=SC2086 # several words
            write_command "$work/commands" ${environment:+env $environment} "$path" ${options:---show-output} \
              ${test_threads:+--test-threads=$test_threads} ${filter//,/ }
          fi
          ;;
        # A program of the package, which its tests run.
        *) echo "$path $path" >>"$work/files" ;;
      esac
    done <"$built"
    if [ -z "$found" ]; then
      echo "tests/vm/run: boot $boot wants $wanted, which cargo does not build" >&2
      exit 1
    fi
  done
}
