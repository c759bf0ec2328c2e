//! `umf info`, group "transfer": tests each exchange mode between two child processes.
//!
//! One child exports a block, and its siblings open it, each in one mode. The report has the
//! library's error texts. A test within one process, or between parent and child, would succeed
//! although yama refuses siblings. Probes that may kill their process run in children as well.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Resource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use umf::Visibility;
use umf::host::{HostImport, HostProvider};
use umf::ipc::ExporterSettings;
use umf::{Exchange, Exporter, Handle, Importer, Mode, Pool};

use super::finding::{Finding, FindingState, Group, Question, allow, ask};
use super::{devices, kernel, procfs};
use crate::child::{Child, ChildError, Parent};
use crate::sys;

const MODES: [(Mode, &str); 3] = [
    (Mode::Pidfd, "Fetches any fd, dma-buf as well, with no help of the producer."),
    (Mode::Procfs, "Fetches shared memory, not dma-buf, at every yama scope."),
    (Mode::Socket, "Crosses pid namespaces; costs the producer a thread."),
];

/// Tries all exchange modes between children of this process.
pub(super) fn probe() -> Group {
    let process_vm = ask("process_vm", "One copy between processes without mapping anything.");
    let auto = ask("auto", "What umf takes when the settings name no mode.");
    let modes = MODES.map(|(mode, why)| (mode, ask(mode.name(), why)));
    let exported = match start_child::<Exported>(&Role::Export) {
        Ok((Ok(exported), child)) => Ok((exported, child)),
        Ok((Err(why), _)) => Err(why),
        Err(error) => Err(format!("a child {error}")),
    };
    let findings = match exported {
        Ok(((handle, address), child)) => {
            let tried = modes.map(|(mode, question)| {
                let opened = open_in_child(&Role::Open(Box::new(handle), mode.name().to_owned()));
                (mode, opened.as_ref().err().map(|error| error.reason.clone()), finding(question, opened))
            });
            let auto = auto_mode(auto, &tried);
            let mut findings: Vec<Finding> = tried.into_iter().map(|(.., finding)| finding).collect();
            findings.push(finding(process_vm, open_in_child(&Role::Read(child.pid(), address))));
            findings.push(auto);
            findings
        }
        Err(why) => {
            let questions = modes.into_iter().map(|(_, question)| question).chain([process_vm, auto]);
            let remedy = untried_remedy();
            let untried = |question: Question| {
                question.limited(format!("could not be tried: {why}"), remedy.as_str()).value(Value::Null)
            };
            questions.map(untried).collect()
        }
    };
    Group { key: "transfer", title: "Between two processes of this user (tried out with children)", findings }
}

fn open_in_child(role: &Role) -> OpenResult {
    match run_in_child(role) {
        Ok(opened) => opened,
        Err(ChildError::SeccompKill) => {
            let call = match role {
                Role::Read(..) => "process_vm_readv",
                _ => "pidfd_open and pidfd_getfd",
            };
            let remedy = format!("A seccomp filter kills for a system call. {}", allow(call));
            Err(OpenError { reason: "killed (SIGSYS)".to_owned(), remedy: Some(remedy) })
        }
        Err(error) => Err(OpenError { reason: format!("a child {error}"), remedy: None }),
    }
}

/// Returns the remedy if no block could be exported for a trial: what this process lacks.
fn untried_remedy() -> String {
    if !std::path::Path::new("/proc/self/exe").exists() {
        return "Run `mount -t proc proc /proc` as root: child processes are started through it.".to_owned();
    }
    if !kernel::has_memfd() {
        return format!("memfd_create is refused, which shared memory needs. {}", allow("memfd_create"));
    }
    if sys::resource_limit(Resource::As).current.is_some() {
        return "Raise the limit of address space (`ulimit -v`; see rlimit_as below).".to_owned();
    }
    "Raise the limits of processes (`ulimit -u`) and open files (`ulimit -n`).".to_owned()
}

fn finding(question: Question, outcome: OpenResult) -> Finding {
    match outcome {
        Ok(()) => question.ok("works").value(true),
        Err(OpenError { reason, remedy: Some(remedy) }) => {
            question.missing(format!("refused: {reason}"), remedy).value(false)
        }
        Err(OpenError { reason, remedy: None }) => question
            .limited(format!("could not be tried: {reason}"), "Run again when the machine is less busy.")
            .value(Value::Null),
    }
}

/// Returns the mode that `auto` selects: the first one that works.
fn auto_mode(question: Question, tried: &[(Mode, Option<String>, Finding)]) -> Finding {
    let works = |(_, _, finding): &&(Mode, Option<String>, Finding)| finding.state == FindingState::Ok;
    let chosen = tried.iter().find(works).map(|(mode, ..)| *mode);
    let refused =
        tried.iter().map_while(|(mode, why, _)| Some(format!("{mode} is refused ({})", why.as_ref()?)));
    let refused = refused.collect::<Vec<_>>().join(", ");
    let text = chosen.map_or("none", Mode::name);
    match chosen {
        Some(Mode::Pidfd) => question.ok(text),
        Some(Mode::Procfs) => question.limited(
            format!("{text}, and socket for dma-buf, since {refused}"),
            "Make pidfd work (see above) to need neither a second mode nor a thread.",
        ),
        Some(_) => question.limited(
            format!("{text}, since {refused}"),
            "Make pidfd work (see above) to do without a thread in each producer.",
        ),
        None => {
            question.missing(text, "Remove what refuses each mode (see above): umf cannot share memory here.")
        }
    }
    .value(json!(chosen.map(Mode::name)))
}

/// The time after which a child is killed.
const CHILD_TIMEOUT: Duration = Duration::from_secs(2);

/// The task of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Role {
    /// Runs the feature test with this key. Replies with its error number, or 0.
    Test(String),
    /// Queries the CUDA driver for its devices.
    Cuda,
    /// Queries the Level Zero drivers for their devices.
    LevelZero,
    /// Exports a block, and keeps it until the parent closes the channel.
    Export,
    /// Opens a block in the mode with this name.
    Open(Box<Handle>, String),
    /// Reads memory of a process at an address.
    Read(u32, u64),
}

/// Runs a task in a child, and returns its reply.
pub(super) fn run_in_child<T: DeserializeOwned>(role: &Role) -> Result<T, ChildError> {
    start_child(role).map(|(reply, _)| reply)
}

pub(super) fn start_child<T: DeserializeOwned>(role: &Role) -> Result<(T, Child), ChildError> {
    let mut child = Child::start(&["info", "--child"], &[], Stdio::null)?;
    child.send(&serde_json::to_string(role)?, CHILD_TIMEOUT)?;
    Ok((child.receive(CHILD_TIMEOUT, || {})?, child))
}

/// Serves one request of the parent. Runs in a child.
pub(super) fn serve() -> std::io::Result<()> {
    let mut parent = Parent::listen()?;
    match parent.next_request()? {
        Some(Role::Test(key)) => {
            let test = kernel::find_test(&key).ok_or(Errno::INVAL)?;
            parent.reply(&(test.test)().err().map_or(0, Errno::raw_os_error))
        }
        Some(Role::Cuda) => parent.reply(&devices::query_cuda()),
        Some(Role::LevelZero) => parent.reply(&devices::query_level_zero()),
        Some(Role::Export) => export(&mut parent),
        Some(Role::Open(handle, mode)) => parent.reply(&open(&handle, &mode)),
        Some(Role::Read(pid, address)) => parent.reply(&read(pid, address)),
        None => Ok(()),
    }
}

/// The reason why a block cannot be opened.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OpenError {
    pub(super) reason: String,
    /// The remedy; `None` if something other than the mode failed.
    pub(super) remedy: Option<String>,
}

/// Reply to [`Role::Export`]: a handle, and the address of the block.
pub(super) type Exported = Result<(Handle, u64), String>;

/// Reply to [`Role::Open`] and [`Role::Read`].
pub(super) type OpenResult = Result<(), OpenError>;

/// Exports a block that can be opened in all modes.
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
        // SAFETY: no Rust reference points into the block.
        let handle = unsafe { exporter.get(block.address()) }?.keep();
        Ok((handle, block))
    };
    match exported() {
        Ok((handle, block)) => {
            parent.reply(&Exported::Ok((handle, block.address().value())))?;
            parent.next_request::<()>().map(drop)
        }
        Err(error) => parent.reply(&Exported::Err(error.to_string())),
    }
}

fn open(handle: &Handle, mode: &str) -> OpenResult {
    let exchange = mode.parse().unwrap_or_default();
    let importer = Importer::builder().import(Arc::new(HostImport::new())).exchange(exchange).build();
    match importer.and_then(|importer| importer.open(handle).map(drop)) {
        Ok(()) => Ok(()),
        Err(umf::ipc::Error::NotPermitted { mut attempts, .. }) if attempts.len() == 1 => {
            let attempt = attempts.remove(0);
            Err(OpenError { reason: attempt.reason, remedy: Some(attempt.remedy.to_owned()) })
        }
        Err(error) => Err(OpenError { reason: error.to_string(), remedy: None }),
    }
}

fn read(pid: u32, address: u64) -> OpenResult {
    sys::read_remote(pid.cast_signed(), address).map(drop).map_err(|errno| OpenError {
        reason: format!("process_vm_readv: {errno}"),
        remedy: (!procfs::is_temporary_shortage(errno)).then(|| {
            let filter = kernel::seccomp_mode() == Ok(kernel::SeccompMode::Installed);
            let filter = if filter { allow("process_vm_readv") } else { String::new() };
            format!("It takes the same rights as pidfd: see its remedy. {filter}").trim_end().to_owned()
        }),
    })
}
