# Looks at processes and what is under them. Sourced by watch and bounded.sh.

# The 22nd field, when the process was started: a number that is used again is another process.
started() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

# A process, its threads by name (a test's thread has the test's name) and what they wait in; then its children.
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

# The process and all under it, the youngest first.
family() {
  local child
  for child in $(cat "/proc/$1/task"/*/children 2>/dev/null); do family "$child"; done
  echo "$1"
}

# Says what a process and all under it wait in, and ends them, however long that takes to say: what hangs may be what is asked.
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
  # What is stopped starts nothing more while the others are looked for.
  kill -STOP "$pid" 2>/dev/null
  # shellcheck disable=SC2046 # several numbers
  kill -KILL $(family "$pid") 2>/dev/null
}
