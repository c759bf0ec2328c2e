//! The ways in which one process's memory reaches another: which of them work here, and which umf would take.

use rustix::process::DumpableBehavior;
use serde_json::{Value, json};

use super::child::{Reached, Refusal, try_siblings};
use super::finding::{Finding, Group, Question, ask};
use super::{errno, permissions};
use crate::sys;

/// Tries every way between children of this process.
pub(crate) fn probe() -> Group {
    let questions = [
        ask("pidfd", "Fetches any fd, dma-buf as well, with no help of the producer."),
        ask("procfs", "Fetches shared memory, not dma-buf, at every yama scope."),
        ask("socket", "Crosses pid namespaces; costs the producer a thread."),
        ask("process_vm", "One copy between processes without mapping anything."),
    ];
    let auto = ask("auto", "What umf takes when the settings name no way.");
    let findings = match try_siblings() {
        Ok(reached) => findings(&reached, questions, auto),
        Err(reason) => questions
            .into_iter()
            .chain([auto])
            .map(|question| {
                let remedy = "Make room for child processes (ulimit -u, ulimit -n) and mount /proc.";
                question.limited(format!("could not be tried: {reason}"), remedy).value(Value::Null)
            })
            .collect(),
    };
    Group { key: "transfer", title: "Between two processes of this user (tried out with children)", findings }
}

fn findings(reached: &Reached, questions: [Question; 4], auto: Question) -> Vec<Finding> {
    let [pidfd, procfs, socket, memory] = questions;
    vec![
        finding(pidfd, &reached.pidfd, confinement_remedy),
        finding(procfs, &reached.procfs, |_| {
            "Run both as the same user in the same namespaces, dumpable, with /proc mounted.".to_owned()
        }),
        finding(socket, &reached.socket, |_| {
            "Run both in the same network namespace, and allow abstract sockets in the sandbox.".to_owned()
        }),
        finding(memory, &reached.memory, confinement_remedy),
        choice(reached, auto),
    ]
}

fn finding(
    question: Question,
    outcome: &Result<(), Refusal>,
    remedy: impl Fn(&Refusal) -> String,
) -> Finding {
    match outcome {
        Ok(()) => question.ok("works").value(true),
        Err(refusal) if errno::ran_short(refusal.number()) => question
            .limited(format!("could not be tried ({refusal})"), errno::make_room(refusal.number()))
            .value(Value::Null),
        Err(refusal) => question.missing(format!("refused ({refusal})"), remedy(refusal)).value(false),
    }
}

fn choice(reached: &Reached, question: Question) -> Finding {
    let ways = [("pidfd", &reached.pidfd), ("procfs", &reached.procfs), ("socket", &reached.socket)];
    // Why not the ways before it.
    let refused = ways.iter().map_while(|(way, outcome)| Some((way, outcome.as_ref().err()?)));
    let refused: Vec<_> = refused.map(|(way, refusal)| format!("{way} is refused ({refusal})")).collect();
    let refused = refused.join(", ");
    match ways.iter().find(|(_, outcome)| outcome.is_ok()) {
        Some((way @ "procfs", _)) => question.limited(
            format!("{way}, and socket for dma-buf, since {refused}"),
            "Make pidfd work (see above) to need neither a second way nor a thread.",
        ),
        Some((way @ "socket", _)) => question.limited(
            format!("{way}, since {refused}"),
            "Make pidfd work (see above) to do without a thread in each producer.",
        ),
        Some((way, _)) => question.ok(*way),
        None => {
            question.missing("none", "Remove what refuses them (see above): umf cannot share memory here.")
        }
    }
    .value(json!(ways.iter().find(|(_, outcome)| outcome.is_ok()).map(|(way, _)| way)))
}

/// What to do where the ptrace rules refuse; the first cause that is visible from here.
fn confinement_remedy(refusal: &Refusal) -> String {
    let number = refusal.number();
    if number == rustix::io::Errno::NOSYS {
        return "This kernel lacks it, or a seccomp filter hides it: use procfs or socket.".to_owned();
    }
    if !errno::refused(number) {
        return "Use procfs or socket.".to_owned();
    }
    let scope = permissions::yama_scope().ok().flatten().unwrap_or(0);
    match scope {
        _ if !matches!(sys::dumpable(), Ok(DumpableBehavior::Dumpable)) => {
            "Make the program readable by its user, without set-uid bits or file capabilities.".to_owned()
        }
        1 => {
            "yama: sysctl kernel.yama.ptrace_scope=0, or let producers allow it (PR_SET_PTRACER).".to_owned()
        }
        2 => "yama: sysctl kernel.yama.ptrace_scope=0, or --cap-add SYS_PTRACE.".to_owned(),
        3.. => "yama: boot with kernel.yama.ptrace_scope=0; until then procfs or socket.".to_owned(),
        0 => "A seccomp filter or security module refuses it: allow it, or --cap-add SYS_PTRACE.".to_owned(),
    }
}
