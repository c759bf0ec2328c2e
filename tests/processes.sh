# Describes and kills processes with their children. Sourced by watch and bounded.sh.

# started PID: prints the start time (field 22). A reused pid has another one.
started() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

# tell PID: prints a process, its threads with what they wait in, and its children. The thread of a test
# has the name of the test.
tell() {
  local pid=$1 task child
  echo "process $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | cut -c1-300)"
  for task in "/proc/$pid/task"/*; do
    printf '  thread %s %-15s %s %s\n' "${task##*/}" "$(cat "$task/comm" 2>/dev/null)" \
      "$(sed 's/.*) //; s/ .*//' "$task/stat" 2>/dev/null)" "$(cat "$task/wchan" 2>/dev/null)"
  done
  if command -v gdb >/dev/null 2>&1; then
    timeout -k 5 60 gdb -p "$pid" -batch -ex 'set pagination off' -ex 'thread apply all backtrace 30' 2>/dev/null </dev/null | grep -E '^(Thread|#)'
  fi
  for child in $(cat "/proc/$pid/task"/*/children 2>/dev/null); do tell "$child"; done
}

# family PID: prints the process and its descendants, children before parents.
family() {
  local child
  for child in $(cat "/proc/$1/task"/*/children 2>/dev/null); do family "$child"; done
  echo "$1"
}

# end_family PID: describes a process and its descendants, and kills them. The description may hang on the
# process itself, so it has a limit of 300 s.
end_family() {
  local pid=$1 telling waited=0
  tell "$pid" &
  telling=$!
  while [ "$waited" -lt 300 ] && kill -0 "$telling" 2>/dev/null; do
    sleep 1
    waited=$((waited + 1))
  done
  # shellcheck disable=SC2046 # several numbers
  kill -KILL $(family "$telling") 2>/dev/null
  # A stopped process starts no further children while its descendants are listed.
  kill -STOP "$pid" 2>/dev/null
  # shellcheck disable=SC2046 # several numbers
  kill -KILL $(family "$pid") 2>/dev/null
}
