# Sums up a log of tests/run: tests that could not run, programs that hung, tests that failed with
# their first panic, and the closing line. The exit code is 1 if anything failed.
#
# A test program without a result line (it aborted, or a signal killed it) is one failure. So is a program
# that cargo reports as failed although its result line has no failure. A step of tests/run that failed
# without a failed test (a build, a virtual machine) is one, too.

# Closes the current program, and counts it as failed if its failure is not counted yet.
function close_program() {
  if (program != "" && (!results || (refused && !program_failed))) {
    broken[++breaks] = program
    failed++
    step_failed++
  }
  program = ""
  results = refused = program_failed = 0
}

/^ +Running (as uid |.*[.]rs \()/ || /^ +Doc-tests / {
  close_program()
  program = $0
  sub(/^ +/, "", program)
}
/^error: (test|doctest|bench) failed, to rerun pass/ { refused = 1 }
/^test result: / {
  results++
  passed += $4
  failed += $6
  skipped += $8
  program_failed += $6
  step_failed += $6
}
# Of libtest and the shell scripts; of pytest, and of the container matrix.
/^test .* [.][.][.] FAILED/ {
  name = substr($0, 6)
  sub(/ [.][.][.] FAILED.*/, "", name)
  if (!((program, name) in entry)) entry[program, name] = ++bads
  bad[entry[program, name]] = program ": " substr($0, 6)
}
/^(FAILED|ERROR) .*::/ || /^FAILED found: / { bad[++bads] = $0 }
# The output of one test, of which the first panic is shown: its place, and its first line.
/^---- .* stdout ----$/ {
  output = $0
  gsub(/^---- | stdout ----$/, "", output)
}
/^thread .* panicked at / && (program, output) in entry && !shown[program, output]++ {
  place = $0
  sub(/.* panicked at /, "at ", place)
  number = entry[program, output]
  if ((getline) > 0) bad[number] = bad[number] "\n    " place "\n    " $0
}
/^umf-hung: / { hung[++hangs] = substr($0, 11) }
/^umf-left: / { left[++leaves] = substr($0, 11) }
/^umf-skip: / && !($0 in known) { known[$0]; skip[++skips] = substr($0, 11) }
# tests/vm/run writes this line after each guest: exit code and name.
/^umf-guest: / {
  close_program()
  if ($2 != 0 && step_failed == guests_failed) {
    broken[++breaks] = "guest " $3 " (exit code " $2 ")"
    failed++
    step_failed++
  }
  guests_failed = step_failed
}
# tests/run writes this line after each step: exit code and command.
/^umf-step: / {
  close_program()
  if ($2 != 0 && !step_failed) {
    broken[++breaks] = substr($0, 11)
    failed++
  }
  step_failed = guests_failed = 0
}

function list(title, lines, count,   i) {
  if (count) printf "\n%s:\n", title
  for (i = 1; i <= count; i++) print "  " lines[i]
}
END {
  close_program()
  list("hung, and was ended", hung, hangs)
  list("left processes running, which were ended", left, leaves)
  list("ended before its result, or failed beside it", broken, breaks)
  list("could not run here", skip, skips)
  list("failed", bad, bads)
  printf "\n%d passed, %d failed, %d skipped\n", passed, failed, skipped
  exit failed > 0
}
