//! What a process has one of: settings, exporter, importer.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

#[cfg(feature = "config")]
use umf_config::{Loader, Warning};
use umf_core::Access;
use umf_ipc::{Exporter, ExporterSettings, Handle, Importer, ImporterSettings, Mapping};
use umf_sync::fork;

#[cfg(feature = "config")]
use crate::settings::{Leases, Settings};
#[cfg(feature = "config")]
use crate::{Error, registry};
use crate::{Result, imports};

struct Process {
    #[cfg(feature = "config")]
    settings: Settings,
    exporter: Exporter,
    importer: Importer,
}

/// Set once it was made, and never freed. A failure is not kept: what was lacking (fds, memory, a readable file) may be there
/// next time.
///
/// (Not a `OnceLock`, nor a `Mutex` below: a child forked while another thread is in there would wait for ever.)
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());
/// Who is making it: a process, as [`fork::generation`] counts, plus one; 0 for nobody.
static MAKING: AtomicU32 = AtomicU32::new(0);

/// The turn to make it. Short, and rare: who waits for it yields.
struct Turn;

impl Turn {
    fn take() -> Self {
        let me = fork::generation().wrapping_add(1).max(1);
        loop {
            let holder = MAKING.load(Ordering::Relaxed);
            // One of a parent process holds it for ever here.
            let is_free = holder != me;
            if is_free && MAKING.compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Self;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        MAKING.store(0, Ordering::Release);
    }
}

fn current() -> Option<&'static Process> {
    // SAFETY: null, or a box that is never freed.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// Uses the settings that `loader` yields instead of those found in files and the environment.
///
/// # Errors
/// [`Error::AlreadyInitialised`] if umf was used before; [`Error::Settings`] and others if they cannot be used.
#[cfg(feature = "config")]
pub fn init(loader: Loader) -> Result<()> {
    let _turn = Turn::take();
    if current().is_some() {
        return Err(Error::AlreadyInitialised);
    }
    publish(make(loader)?);
    Ok(())
}

fn process() -> Result<&'static Process> {
    if let Some(process) = current() {
        return Ok(process);
    }
    let _turn = Turn::take();
    match current() {
        Some(process) => Ok(process),
        #[cfg(feature = "config")]
        None => Ok(publish(make(Loader::new())?)),
        #[cfg(not(feature = "config"))]
        None => Ok(publish(make()?)),
    }
}

/// In a [`Turn`].
fn publish(made: Process) -> &'static Process {
    let process: &'static Process = Box::leak(Box::new(made));
    PROCESS.store(core::ptr::from_ref(process).cast_mut(), Ordering::Release);
    // What is registered from here on is added by whoever registers it; what was before, here.
    for import in imports::imports() {
        process.importer.add_import(import);
    }
    process
}

#[cfg(feature = "config")]
fn make(loader: Loader) -> Result<Process> {
    let settings = Settings::load(loader)?;
    #[cfg(feature = "log")]
    crate::logging::start(&settings.log);
    #[cfg(not(feature = "log"))]
    if settings.log.output != crate::settings::LogOutput::Off {
        // The operator asked for a log and would otherwise wait for it. A closed stderr is no
        // error.
        let text = "umf: the settings ask for a log, and this program was built without the feature \"log\" of \
                    umf-rs; logging is off\n";
        let _ = std::io::Write::write_all(&mut umf_os::output::stderr(), text.as_bytes());
    }
    for warning in settings.loaded().warnings() {
        tracing::warn!("{warning}");
    }
    let ipc = &settings.ipc;
    let mut exporter = ExporterSettings::default();
    exporter.exchange = ipc.exchange.clone();
    exporter.ptracer = ipc.ptracer;
    exporter.max_created_handles = ipc.max_created_handles;
    exporter.limit = ipc.limit;
    let mut importer = ImporterSettings::default();
    importer.exchange = ipc.exchange.clone();
    importer.max_opened_handles = ipc.max_opened_handles;
    importer.max_opened_bytes = ipc.max_opened_bytes;
    importer.limit = ipc.limit;
    importer.open_timeout = ipc.open_timeout;
    importer.leases = ipc.leases == Leases::On;
    if let Some(shards) = ipc.importer_shards {
        importer.shards = shards as usize;
    }
    let mut builder = Importer::builder().settings(importer);
    for kind in registry::provider_kinds() {
        // The set of the kind's name if it is of that kind, else the first that is, else the defaults.
        let loaded = settings.loaded();
        let named = loaded.of_kind("provider", &kind).find(|name| *name == kind);
        let name = named.or_else(|| loaded.of_kind("provider", &kind).next()).unwrap_or(&kind);
        let import = registry::provider(&kind)
            .map_or(Ok(None), |entry| (entry.import)(&loaded.set("provider", name)))?;
        if let Some(import) = import {
            builder = builder.import(import);
        }
    }
    Ok(Process { exporter: Exporter::new(exporter)?, importer: builder.build()?, settings })
}

/// The defaults, and no other settings.
#[cfg(not(feature = "config"))]
fn make() -> Result<Process> {
    let settings = ImporterSettings::default();
    let builder = Importer::builder().settings(settings);
    let builder = imports::built_in().into_iter().fold(builder, |builder, import| builder.import(import));
    Ok(Process { exporter: Exporter::new(ExporterSettings::default())?, importer: builder.build()? })
}

/// The settings in force.
///
/// # Errors
/// [`Error::Settings`] if `umf.toml` or a variable is wrong.
#[cfg(feature = "config")]
pub fn settings() -> Result<&'static Settings> {
    Ok(&process()?.settings)
}

/// What was found odd in the settings, though not wrong.
///
/// # Errors
/// As [`settings()`].
#[cfg(feature = "config")]
pub fn warnings() -> Result<&'static [Warning]> {
    Ok(process()?.settings.loaded().warnings())
}

/// The exporter of this process, which [`crate::Block::export`] uses.
///
/// # Errors
/// [`crate::Error::Settings`] if `umf.toml` or a variable is wrong; [`crate::Error::Ipc`].
pub fn exporter() -> Result<&'static Exporter> {
    Ok(&process()?.exporter)
}

/// The importer of this process, which [`open`] uses.
///
/// # Errors
/// As [`exporter()`].
pub fn importer() -> Result<&'static Importer> {
    Ok(&process()?.importer)
}

/// Whether the importer was made, so that what is registered from now on has to be added to it.
pub(crate) fn made_importer() -> Option<&'static Importer> {
    Some(&current()?.importer)
}

/// Opens a handle for reading and writing. Closing is dropping.
///
/// # Errors
/// [`crate::Error::Ipc`] with the reason; as [`importer()`].
pub fn open(handle: &Handle) -> Result<Mapping<'static>> {
    Ok(process()?.importer.open(handle)?)
}

/// Opens a handle for reading.
///
/// # Errors
/// As [`open`].
pub fn open_read_only(handle: &Handle) -> Result<Mapping<'static>> {
    Ok(process()?.importer.open_bytes(handle.as_bytes(), Access::ReadOnly)?)
}
