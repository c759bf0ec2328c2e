//! `umf info`, group "transfer": tests each exchange mode between two child processes.
//!
//! One child exports a block, and its siblings open it, each in one mode. The report has the
//! library's error texts. A test within one process, or between parent and child, would succeed
//! although yama refuses siblings. Probes that may kill their process run in children as well.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
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
use umf::ipc::{ExporterSettings, ImporterSettings};
use umf::settings::{Loader, Settings};
use umf::{Exchange, Exporter, Handle, Importer, Mode, Pool};

use super::finding::{Finding, FindingState, Group, Question, allow, ask};
use super::{devices, fabrics, kernel, mpi, procfs};
use crate::child::{Child, ChildError, Parent};
use crate::sys;

const MODES: [(Mode, &str); 4] = [
    (Mode::Pidfd, "Fetches any fd, dma-buf as well, with no help of the producer."),
    (Mode::Procfs, "Fetches shared memory, not dma-buf, at every yama scope."),
    (Mode::Socket, "Crosses pid namespaces; costs the producer a thread."),
    (Mode::Directory, "Crosses containers that have mounted one directory; costs the producer a thread."),
];

/// Tries all exchange modes between children of this process.
pub(super) fn probe() -> Group {
    let process_vm = ask("process_vm", "One copy between processes without mapping anything.");
    let auto = ask("auto", "What umf takes when the settings name no mode.");
    let modes = MODES.map(|(mode, why)| (mode, ask(mode.name(), why)));
    let temporary = TemporaryDirectory::new();
    let exported = match start_child::<Exported>(&Role::Export(temporary.0.clone())) {
        Ok((Ok(exported), child)) => Ok((exported, child)),
        Ok((Err(why), _)) => Err(why),
        Err(error) => Err(format!("a child {error}")),
    };
    let findings = match exported {
        Ok(((handle, address, directory), child)) => {
            let path = directory.as_ref().map(|directory| directory.path.clone());
            let tried = modes.map(|(mode, question)| {
                let opened =
                    open_in_child(&Role::Open(Box::new(handle), mode.name().to_owned(), path.clone()));
                let refused = opened.as_ref().err().map(|error| error.reason.clone());
                let works = match &directory {
                    Some(directory) if mode == Mode::Directory => directory.works(),
                    _ => "works".to_owned(),
                };
                (mode, refused, finding(question, opened, &works))
            });
            let auto = auto_mode(auto, &tried);
            let mut findings: Vec<Finding> = tried.into_iter().map(|(.., finding)| finding).collect();
            findings.push(finding(process_vm, open_in_child(&Role::Read(child.pid(), address)), "works"));
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

/// The directory of sockets for the trial.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Directory {
    path: PathBuf,
    /// No directory is set: this one was made for the trial.
    is_temporary: bool,
}

impl Directory {
    /// Returns the directory of this process's settings, or the temporary one of the parent.
    fn of_settings(temporary: Option<PathBuf>) -> Option<Self> {
        let settings = Settings::load(Loader::new()).ok();
        if let Some(path) = settings.and_then(|settings| settings.ipc.directory_in_force()) {
            return Some(Self { path, is_temporary: false });
        }
        temporary.map(|path| Self { path, is_temporary: true })
    }

    fn works(&self) -> String {
        if self.is_temporary {
            "works; UMF_IPC_DIR is not set, and was tried with a temporary directory".to_owned()
        } else {
            format!("works in {}", self.path.display())
        }
    }
}

/// A directory of this process alone, for a child that finds none in its settings; `None` if it
/// could not be made. Dropping this removes it, with what a child has left that was killed.
struct TemporaryDirectory(Option<PathBuf>);

impl TemporaryDirectory {
    fn new() -> Self {
        let folder = umf_os::environment::variable("TMPDIR").map_or_else(|| "/tmp".into(), PathBuf::from);
        // Other users may write to the folder, and must not know the name before.
        let path = umf_os::process::random()
            .map(|random| folder.join(format!("umf-info-{:032x}", u128::from_ne_bytes(random))));
        let made = |path: &PathBuf| std::fs::DirBuilder::new().mode(0o700).create(path).is_ok();
        Self(path.ok().filter(made))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

fn finding(question: Question, outcome: OpenResult, works: &str) -> Finding {
    match outcome {
        Ok(()) => question.ok(works).value(true),
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
pub(super) const CHILD_TIMEOUT: Duration = Duration::from_secs(2);

/// The task of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Role {
    /// Runs the feature test with this key. Replies with its error number, or 0.
    Test(String),
    /// Queries the CUDA driver for its devices.
    Cuda,
    /// Queries the Level Zero drivers for their devices.
    LevelZero,
    /// Opens libfabric and umf's provider of it.
    Libfabric,
    /// Asks libfabric for the providers that can read remote memory.
    Fabrics,
    /// Serves memory to other machines for a moment.
    ServeRemote,
    /// Exports a block, and keeps it until the parent closes the channel. Answers in the
    /// directory of the settings, else in this one.
    Export(Option<PathBuf>),
    /// Opens a block in the mode with this name. Sockets are in the directory.
    Open(Box<Handle>, String, Option<PathBuf>),
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
        Some(Role::Libfabric) => parent.reply(&mpi::query_libraries()),
        Some(Role::Fabrics) => parent.reply(&fabrics::query()),
        Some(Role::ServeRemote) => parent.reply(&fabrics::try_to_serve()),
        Some(Role::Export(temporary)) => export(&mut parent, temporary),
        Some(Role::Open(handle, mode, directory)) => parent.reply(&open(&handle, &mode, directory)),
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

/// Reply to [`Role::Export`]: a handle, the address of the block, and the directory of the socket.
pub(super) type Exported = Result<(Handle, u64, Option<Directory>), String>;

/// Reply to [`Role::Open`] and [`Role::Read`].
pub(super) type OpenResult = Result<(), OpenError>;

/// Exports a block that can be opened in all modes.
fn export(parent: &mut Parent, temporary: Option<PathBuf>) -> std::io::Result<()> {
    let directory = Directory::of_settings(temporary);
    let mut settings = ExporterSettings::default();
    let modes = Mode::ALL.into_iter().filter(|&mode| mode != Mode::Directory || directory.is_some());
    settings.exchange = Exchange::Order(modes.collect());
    settings.directory = directory.as_ref().map(|directory| directory.path.clone());
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
            parent.reply(&Exported::Ok((handle, block.address().value(), directory)))?;
            parent.next_request::<()>().map(drop)
        }
        Err(error) => parent.reply(&Exported::Err(error.to_string())),
    }
}

fn open(handle: &Handle, mode: &str, directory: Option<PathBuf>) -> OpenResult {
    let mut settings = ImporterSettings::default();
    settings.exchange = mode.parse().unwrap_or_default();
    settings.directory = directory;
    let importer = Importer::builder().import(Arc::new(HostImport::new())).settings(settings).build();
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
