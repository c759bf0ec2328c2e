# `bounded`: runs a command with a time limit, and kills processes that outlive it. Sourced by the
# scripts that README names.

# shellcheck source=processes.sh
. "$(dirname "${BASH_SOURCE[0]}")/processes.sh"

# holders FILE [PID ...]: prints the processes that have the file open, without those named.
holders() {
  local file=$1 pid open
  shift
  for pid in /proc/[0-9]*; do
    pid=${pid#/proc/}
    case " $* " in *" $pid "*) continue ;; esac
    for open in "/proc/$pid/fd"/*; do
      if [ "$(readlink "$open" 2>/dev/null)" = "$file" ]; then
        echo "$pid"
        break
      fi
    done
  done
}

# watch_step SECONDS FOLDER COMMAND: kills the command after the limit. FOLDER/pid has its pid, and is
# removed when the command ends.
watch_step() {
  local limit=$1 folder=$2 waited=0
  shift 2
  while [ "$waited" -lt "$limit" ]; do
    sleep 1
    waited=$((waited + 1))
    [ -e "$folder/pid" ] || return 0
  done
  # Opening the pipe for reading and writing does not block.
  {
    local pid
    pid=$(cat "$folder/pid") && [ -n "$pid" ] || return 0
    echo "umf-hung: took longer than $limit s and is ended: $*"
    end_family "$pid"
  } 1<>"$folder/output" 2>&1
}

# until_gone PID SECONDS: waits for the end of a child.
until_gone() {
  local turns=$(($2 * 10))
  while [ "$turns" -gt 0 ] && kill -0 "$1" 2>/dev/null; do
    sleep 0.1
    turns=$((turns - 1))
  done
}

# bounded SECONDS READER COMMAND [ARGUMENT ...]: returns the command's exit code. Its output goes through
# READER, a command without arguments.
#
# The reader of a pipe waits until every process has closed the other end. A process that outlives the
# command with its output open would therefore block the reader. It is named, with what it waits in, and
# killed, and the exit code is 125.
bounded() {
  local limit=$1 reader=$2 folder reading watching code=0 pid
  shift 2
  folder=$(cd "$(mktemp -d)" && pwd -P)
  mkfifo "$folder/output"
  "$reader" <"$folder/output" &
  reading=$!
  : >"$folder/pid"
  watch_step "$limit" "$folder" "$@" </dev/null >/dev/null 2>&1 &
  watching=$!
  # In the foreground, so that the command gets the signals of a terminal.
  (
    echo "$BASHPID" >"$folder/pid"
    exec "$@"
  ) </dev/null >"$folder/output" 2>&1 || code=$?
  rm -f "$folder/pid"
  until_gone "$reading" 10
  if kill -0 "$reading" 2>/dev/null; then
    # shellcheck disable=SC2046 # several numbers
    for pid in $(holders "$folder/output" $(family "$reading") "$watching"); do
      echo "umf-left: $* has ended, and left process $pid with its output open, which is ended" >&2
      end_family "$pid" >&2
      if [ "$code" = 0 ]; then code=125; fi
    done
    until_gone "$reading" 2
  fi
  until_gone "$watching" 2
  # shellcheck disable=SC2046 # several numbers
  kill -KILL $(family "$reading") $(family "$watching") 2>/dev/null || true
  wait "$watching" "$reading" 2>/dev/null || true
  rm -rf "$folder"
  return "$code"
}

# beside FILE COMMAND [ARGUMENT ...]: runs a command beside those that follow. Its output goes to the file.
beside() {
  beside_output=$1
  shift
  "$@" >"$beside_output" 2>&1 &
  beside=$!
}

# Waits for the command of `beside`, prints its output, and returns its exit code.
show_beside() {
  local code=0
  wait "$beside" || code=$?
  beside=
  cat "$beside_output"
  return "$code"
}

# Ends the command of `beside` if it still runs. (It ignores the signals of a terminal.)
end_beside() {
  # shellcheck disable=SC2046 # several numbers
  if [ -n "${beside:-}" ]; then kill $(family "$beside") 2>/dev/null || true; fi
}
