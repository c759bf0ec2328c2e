//! The modes in which one process's memory reaches another, and the children of `umf info` that try
//! them.
//!
//! One child exports a block, and its siblings open it, each in one mode: the library's own
//! refusals are reported. A process that tried itself or its own child would succeed where yama
//! refuses siblings. Other children make what is too dangerous to try in this process.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use umf::Visibility;
use umf::host::{HostImport, HostProvider};
use umf::ipc::ExporterSettings;
use umf::{Exchange, Exporter, Handle, Importer, Mode, Pool};

use super::finding::{Finding, Group, Question, State, ask};
use super::{devices, kernel, kernel_files};
use crate::child::{Child, Parent, Silence};
use crate::sys;

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

/// How long a child may take before it is killed.
const TIME: Duration = Duration::from_secs(2);

/// What a child does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Role {
    /// Makes the trial of this key. Answers its error number, or 0.
    Try(String),
    /// Asks the CUDA driver for its devices.
    Cuda,
    /// Asks the Level Zero drivers for their devices.
    LevelZero,
    /// Exports a block, and keeps it until the parent closes the channel.
    Export,
    /// Opens a block in the mode of this name.
    Open(Box<Handle>, String),
    /// Reads memory of a process at an address.
    Read(u32, u64),
}

/// Has a child play a role.
pub(super) fn play<T: DeserializeOwned>(role: &Role) -> Result<T, Silence> {
    start(role).map(|(answer, _)| answer)
}

pub(super) fn start<T: DeserializeOwned>(role: &Role) -> Result<(T, Child), Silence> {
    let mut child = Child::start(&["info", "--child"], &[], Stdio::null)?;
    child.order(&serde_json::to_string(role)?, TIME)?;
    Ok((child.answer(TIME, || {})?, child))
}

/// The part of a child.
pub(super) fn serve() -> std::io::Result<()> {
    let mut parent = Parent::listen()?;
    match parent.order()? {
        Some(Role::Try(key)) => {
            let trial = kernel::find(&key).ok_or(Errno::INVAL)?;
            parent.answer(&(trial.attempt)().err().map_or(0, Errno::raw_os_error))
        }
        Some(Role::Cuda) => parent.answer(&devices::ask_cuda()),
        Some(Role::LevelZero) => parent.answer(&devices::ask_level_zero()),
        Some(Role::Export) => export(&mut parent),
        Some(Role::Open(handle, mode)) => parent.answer(&open(&handle, &mode)),
        Some(Role::Read(pid, address)) => parent.answer(&read(pid, address)),
        None => Ok(()),
    }
}

/// Why a block cannot be opened.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub(super) reason: String,
    /// What would make it work; `None` if something else than the mode failed.
    pub(super) remedy: Option<String>,
}

/// What [`Role::Export`] answers: a handle, and the address of the block.
pub(super) type Exported = Result<(Handle, u64), String>;

/// What [`Role::Open`] and [`Role::Read`] answer.
pub(super) type Opened = Result<(), Refusal>;

/// Exports a block in a way that serves all modes.
fn export(parent: &mut Parent) -> std::io::Result<()> {
    let mut settings = ExporterSettings::default();
    settings.exchange = Exchange::Order(Mode::ALL.to_vec());
    let exporter = Exporter::new(settings);
    let provider = HostProvider::builder().name("umf info").visibility(Visibility::Shared).build();
    let pool = provider.map_err(umf::Error::from).and_then(|it| Pool::builder().provider(it).build());
    let exported = || -> umf::Result<_> {
        let (exporter, pool) =
            (exporter.as_ref().map_err(Clone::clone)?, pool.as_ref().map_err(Clone::clone)?);
        let block = pool.allocate(4096)?;
        // SAFETY: no reference points into the block.
        let handle = unsafe { exporter.get(block.address()) }?.keep();
        Ok((handle, block))
    };
    match exported() {
        Ok((handle, block)) => {
            parent.answer(&Exported::Ok((handle, block.address().value())))?;
            parent.order::<()>().map(drop)
        }
        Err(error) => parent.answer(&Exported::Err(error.to_string())),
    }
}

fn open(handle: &Handle, mode: &str) -> Opened {
    let exchange = mode.parse().unwrap_or_default();
    let importer = Importer::builder().import(Arc::new(HostImport::new())).exchange(exchange).build();
    match importer.and_then(|importer| importer.open(handle).map(drop)) {
        Ok(()) => Ok(()),
        Err(umf::ipc::Error::NotPermitted { mut refusals, .. }) if refusals.len() == 1 => {
            let refusal = refusals.remove(0);
            Err(Refusal { reason: refusal.reason, remedy: Some(refusal.remedy.to_owned()) })
        }
        Err(error) => Err(Refusal { reason: error.to_string(), remedy: None }),
    }
}

fn read(pid: u32, address: u64) -> Opened {
    sys::read_remote(pid.cast_signed(), address).map(drop).map_err(|errno| Refusal {
        reason: format!("process_vm_readv: {errno}"),
        remedy: (!kernel_files::ran_short(errno))
            .then(|| "Make pidfd work: it takes the same rights.".to_owned()),
    })
}
