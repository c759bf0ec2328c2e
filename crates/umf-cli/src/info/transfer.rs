//! The modes in which one process's memory reaches another: children try them, and the library's own refusals are
//! reported.
//!
//! One child exports a block, and its siblings open it, each in one mode. A process that tried itself or its own
//! child would succeed where yama refuses siblings.

use serde_json::{Value, json};
use umf::Mode;

use super::children::{Exported, Opened, Refusal, Role, play, start};
use super::finding::{Finding, Group, Question, State, ask};
use crate::child::Silence;

const MODES: [(Mode, &str); 3] = [
    (Mode::Pidfd, "Fetches any fd, dma-buf as well, with no help of the producer."),
    (Mode::Procfs, "Fetches shared memory, not dma-buf, at every yama scope."),
    (Mode::Socket, "Crosses pid namespaces; costs the producer a thread."),
];

/// Tries all modes between children of this process.
pub(super) fn probe() -> Group {
    let process_vm = ask("process_vm", "One copy between processes without mapping anything.");
    let auto = ask("auto", "What umf takes when the settings name no mode.");
    let modes = MODES.map(|(mode, why)| (mode, ask(mode.name(), why)));
    let exported = match start::<Exported>(&Role::Export) {
        Ok((Ok(exported), child)) => Ok((exported, child)),
        Ok((Err(why), _)) => Err(why),
        Err(silence) => Err(format!("a child {silence}")),
    };
    let findings = match exported {
        Ok(((handle, address), child)) => {
            let tried = modes.map(|(mode, question)| {
                let opened = outcome(&Role::Open(Box::new(handle), mode.name().to_owned()));
                (mode, opened.as_ref().err().map(|refusal| refusal.reason.clone()), finding(question, opened))
            });
            let auto = choice(auto, &tried);
            let mut findings: Vec<Finding> = tried.into_iter().map(|(.., finding)| finding).collect();
            findings.push(finding(process_vm, outcome(&Role::Read(child.pid(), address))));
            findings.push(auto);
            findings
        }
        Err(why) => {
            let questions = modes.into_iter().map(|(_, question)| question).chain([process_vm, auto]);
            let remedy = "Make room for child processes (ulimit -u, ulimit -n) and mount /proc.";
            let untried = |question: Question| {
                question.limited(format!("could not be tried: {why}"), remedy).value(Value::Null)
            };
            questions.map(untried).collect()
        }
    };
    Group { key: "transfer", title: "Between two processes of this user (tried out with children)", findings }
}

fn outcome(role: &Role) -> Opened {
    match play(role) {
        Ok(opened) => opened,
        Err(Silence::BadCall) => {
            let remedy = "A seccomp filter kills for it: allow it in the container's profile.";
            Err(Refusal { reason: "killed (SIGSYS)".to_owned(), remedy: Some(remedy.to_owned()) })
        }
        Err(silence) => Err(Refusal { reason: format!("a child {silence}"), remedy: None }),
    }
}

fn finding(question: Question, outcome: Opened) -> Finding {
    match outcome {
        Ok(()) => question.ok("works").value(true),
        Err(Refusal { reason, remedy: Some(remedy) }) => {
            question.missing(format!("refused: {reason}"), remedy).value(false)
        }
        Err(Refusal { reason, remedy: None }) => question
            .limited(format!("could not be tried: {reason}"), "Run again when the machine is less busy.")
            .value(Value::Null),
    }
}

/// Which mode `auto` takes: the first one that works.
fn choice(question: Question, tried: &[(Mode, Option<String>, Finding)]) -> Finding {
    let works = |(_, _, finding): &&(Mode, Option<String>, Finding)| finding.state == State::Ok;
    let chosen = tried.iter().find(works).map(|(mode, ..)| *mode);
    let before =
        tried.iter().map_while(|(mode, why, _)| Some(format!("{mode} is refused ({})", why.as_ref()?)));
    let before = before.collect::<Vec<_>>().join(", ");
    let text = chosen.map_or("none", Mode::name);
    match chosen {
        Some(Mode::Pidfd) => question.ok(text),
        Some(Mode::Procfs) => question.limited(
            format!("{text}, and socket for dma-buf, since {before}"),
            "Make pidfd work (see above) to need neither a second mode nor a thread.",
        ),
        Some(_) => question.limited(
            format!("{text}, since {before}"),
            "Make pidfd work (see above) to do without a thread in each producer.",
        ),
        None => question.missing(text, "Remove what refuses them (see above): umf cannot share memory here."),
    }
    .value(json!(chosen.map(Mode::name)))
}
