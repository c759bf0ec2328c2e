//! The singletons of a process: settings, exporter and importer, created on first use.

#[cfg(any(feature = "domain", feature = "link"))]
use std::path::PathBuf;
use std::sync::Arc;
#[cfg(all(feature = "config", any(feature = "domain", feature = "link")))]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

#[cfg(feature = "config")]
use umf_config::{Loader, Warning};
use umf_core::{Access, Import};
#[cfg(any(feature = "domain", feature = "link"))]
use umf_ipc::Allow;
use umf_ipc::{Exporter, ExporterSettings, Handle, Importer, ImporterSettings, Mapping};
use umf_sync::{Lock, fork};

use crate::Result;
#[cfg(feature = "config")]
use crate::settings::{Leases, Settings};
#[cfg(feature = "config")]
use crate::{Error, registry};

struct Process {
    #[cfg(feature = "config")]
    settings: Settings,
    /// The directory in which processes find each other, if one is in force.
    #[cfg(all(feature = "config", any(feature = "domain", feature = "link")))]
    directory: Option<PathBuf>,
    exporter: Exporter,
    importer: Importer,
}

/// The singletons, set once and never freed. A failed initialisation leaves it null: the next call
/// tries again, since the missing resource (fds, memory, a readable file) may be available by then.
///
/// This is neither a `OnceLock` nor a `Mutex`, because a child that is forked while another thread
/// holds one would wait for ever.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
/// The owner of [`InitLock`]: the fork generation of its process plus one, or 0.
static INIT_OWNER: AtomicU32 = AtomicU32::new(0);
/// The importers registered by the program.
static IMPORTS: Lock<Vec<Arc<dyn Import>>> = Lock::new(Vec::new());

/// A spin lock around the initialisation of [`PROCESS`]. A forked child takes it over from its
/// parent.
struct InitLock;

impl InitLock {
    fn acquire() -> Self {
        let own = fork::generation().wrapping_add(1).max(1);
        loop {
            let owner = INIT_OWNER.load(Ordering::Relaxed);
            // An owner of another generation is a thread of the parent, which does not exist in
            // this process.
            let is_free = owner != own;
            if is_free
                && INIT_OWNER.compare_exchange(owner, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Self;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for InitLock {
    fn drop(&mut self) {
        INIT_OWNER.store(0, Ordering::Release);
    }
}

fn current() -> Option<&'static Process> {
    // SAFETY: the pointer is null or comes from a box that is never freed.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// Initialises umf with the settings of `loader`, in place of those of files and the environment.
///
/// # Errors
/// [`Error::AlreadyInitialised`] if umf was used before; [`Error::Settings`] and others if the
/// settings cannot be used.
#[cfg(feature = "config")]
pub fn init(loader: Loader) -> Result<()> {
    let _lock = InitLock::acquire();
    if current().is_some() {
        return Err(Error::AlreadyInitialised);
    }
    publish(create(loader)?);
    Ok(())
}

fn process() -> Result<&'static Process> {
    if let Some(process) = current() {
        return Ok(process);
    }
    let _lock = InitLock::acquire();
    match current() {
        Some(process) => Ok(process),
        #[cfg(feature = "config")]
        None => Ok(publish(create(Loader::new())?)),
        #[cfg(not(feature = "config"))]
        None => Ok(publish(create()?)),
    }
}

/// Publishes the singletons. The caller holds an [`InitLock`].
fn publish(process: Process) -> &'static Process {
    let process: &'static Process = Box::leak(Box::new(process));
    PROCESS.store(std::ptr::from_ref(process).cast_mut(), Ordering::Release);
    // Importers registered so far. `register_import` adds later ones itself, since it finds
    // `PROCESS` set.
    let imports = IMPORTS.lock().clone();
    for import in imports {
        process.importer.add_import(import);
    }
    process
}

#[cfg(feature = "config")]
fn create(loader: Loader) -> Result<Process> {
    let settings = Settings::load(loader)?;
    // With a subscriber of the program, `[log]` and `UMF_LOG` have no effect.
    let has_own_log = tracing::dispatcher::get_default(|log| !log.is::<tracing::subscriber::NoSubscriber>());
    #[cfg(feature = "log")]
    if !has_own_log {
        crate::logging::start(&settings.log);
    }
    #[cfg(not(feature = "log"))]
    if !has_own_log && settings.log.output != crate::settings::LogOutput::Off {
        // The operator expects a log. A closed stderr is no error.
        let text = "umf: the settings ask for a log, and this program was built without the feature \"log\" of \
                    umf-rs; logging is off\n";
        let _ = std::io::Write::write_all(&mut umf_os::output::stderr(), text.as_bytes());
    }
    // Neither the log nor a subscriber of the program takes warnings.
    let on_stderr = settings.log.warnings && !tracing::enabled!(tracing::Level::WARN);
    for warning in settings.loaded().warnings() {
        tracing::warn!("{warning}");
        let is_of_log = matches!(warning, Warning::BadLegacyVariable { variable: "UMF_LOG", .. });
        if on_stderr && !(has_own_log && is_of_log) {
            let line = format!("umf: {warning} (UMF_LOG_WARNINGS=false hides this)\n");
            let _ = std::io::Write::write_all(&mut umf_os::output::stderr(), line.as_bytes());
        }
    }
    let ipc = &settings.ipc;
    let mut exporter = ExporterSettings::default();
    let directory = ipc.directory_in_force();
    exporter.exchange = ipc.exchange.clone();
    exporter.directory = directory.clone();
    exporter.allow = ipc.allow;
    exporter.ptracer = ipc.ptracer;
    exporter.max_created_handles = ipc.max_created_handles;
    exporter.limit = ipc.limit;
    let mut importer = ImporterSettings::default();
    importer.exchange = ipc.exchange.clone();
    importer.directory = directory.clone();
    importer.allow = ipc.allow;
    importer.max_opened_handles = ipc.max_opened_handles;
    importer.max_opened_bytes = ipc.max_opened_bytes;
    importer.limit = ipc.limit;
    importer.open_timeout = ipc.open_timeout;
    importer.leases = ipc.leases == Leases::On;
    if let Some(shards) = ipc.importer_shards {
        importer.shards = shards as usize;
    }
    umf_ipc::transit::set_limits(ipc.max_in_transit, ipc.expire_after);
    let mut builder = Importer::builder().settings(importer);
    for kind in registry::provider_kinds() {
        // The settings of the set named after the kind, else of the first set of the kind, else the
        // defaults.
        let loaded = settings.loaded();
        let named = loaded.of_kind("provider", &kind).find(|name| *name == kind);
        let name = named.or_else(|| loaded.of_kind("provider", &kind).next()).unwrap_or(&kind);
        let import = registry::provider(&kind)
            .map_or(Ok(None), |entry| (entry.import)(&loaded.set("provider", name)))?;
        if let Some(import) = import {
            builder = builder.import(import);
        }
    }
    Ok(Process {
        exporter: Exporter::new(exporter)?,
        importer: builder.build()?,
        settings,
        #[cfg(any(feature = "domain", feature = "link"))]
        directory,
    })
}

/// Creates the singletons with default settings.
#[cfg(not(feature = "config"))]
fn create() -> Result<Process> {
    let settings = ImporterSettings::default();
    let builder = Importer::builder().settings(settings);
    let builder = built_in_imports().into_iter().fold(builder, |builder, import| builder.import(import));
    Ok(Process { exporter: Exporter::new(ExporterSettings::default())?, importer: builder.build()? })
}

/// Returns the settings of this process.
///
/// # Errors
/// [`Error::Settings`] if `umf.toml` or a variable is wrong.
#[cfg(feature = "config")]
pub fn settings() -> Result<&'static Settings> {
    Ok(&process()?.settings)
}

/// Returns the directory in which the processes of domains and links find each other, and which
/// processes are permitted.
///
/// # Errors
/// As [`importer()`].
#[cfg(any(feature = "domain", feature = "link"))]
pub(crate) fn rendezvous() -> Result<(Option<PathBuf>, Allow)> {
    #[cfg(feature = "config")]
    let found = process().map(|process| {
        let (directory, allow) = (process.directory.clone(), process.settings.ipc.allow);
        static HAS_WARNED: AtomicBool = AtomicBool::new(false);
        if directory.is_none() && allow != Allow::SameUser && !HAS_WARNED.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "ipc.allow = \"{allow}\" has no effect on domains and links without a directory: they find processes of \
                 this user only; set UMF_IPC_DIR in all processes"
            );
        }
        (directory, allow)
    });
    #[cfg(not(feature = "config"))]
    let found = Ok((None, Allow::SameUser));
    found
}

/// Returns the warnings about the settings of this process.
///
/// # Errors
/// As [`settings()`].
#[cfg(feature = "config")]
pub fn warnings() -> Result<&'static [Warning]> {
    Ok(process()?.settings.loaded().warnings())
}

/// Returns the exporter of this process, which [`crate::Block::export`] uses.
///
/// # Errors
/// [`crate::Error::Settings`] if `umf.toml` or a variable is wrong; [`crate::Error::Ipc`].
pub fn exporter() -> Result<&'static Exporter> {
    Ok(&process()?.exporter)
}

/// Returns the exporter if this process has used one.
#[doc(hidden)]
#[must_use]
#[inline]
pub fn known_exporter() -> Option<&'static Exporter> {
    current().map(|process| &process.exporter)
}

/// Returns exporter and importer if this process has used one.
pub(crate) fn known() -> Option<(&'static Exporter, &'static Importer)> {
    current().map(|process| (&process.exporter, &process.importer))
}

/// Returns the importer of this process, which [`open`] uses.
///
/// # Errors
/// As [`exporter()`].
pub fn importer() -> Result<&'static Importer> {
    Ok(&process()?.importer)
}

/// Registers an importer for one more kind of memory, for use by [`open`]. Replaces an earlier
/// importer of the same kind.
pub fn register_import(import: Arc<dyn Import>) {
    let kind = import.kind();
    let replaced: Vec<_> = {
        let mut imports = IMPORTS.lock();
        let replaced = imports.extract_if(.., |known| known.kind() == kind).collect();
        imports.push(Arc::clone(&import));
        replaced
    };
    // Dropped without the lock, because an importer may own pools.
    drop(replaced);
    if let Some(process) = current() {
        process.importer.add_import(import);
    }
}

/// Returns the importers of the built-in kinds, with their default settings.
#[cfg(not(feature = "config"))]
fn built_in_imports() -> Vec<Arc<dyn Import>> {
    macro_rules! imports {
        ($trait:ident: $($feature:literal $kind:literal $factory:ty,)+) => {
            [None, $(#[cfg(feature = $feature)] <$factory as umf_core::$trait>::import(&Default::default()),)+]
        };
    }
    crate::kinds::providers!(imports ProviderFactory).into_iter().flatten().collect()
}

/// Opens a handle for reading and writing. Dropping the mapping closes it.
///
/// # Errors
/// [`crate::Error::Ipc`] with the reason; as [`importer()`].
pub fn open(handle: &Handle) -> Result<Mapping<'static>> {
    Ok(process()?.importer.open(handle)?)
}

/// Opens a handle read-only.
///
/// # Errors
/// As [`open`].
pub fn open_read_only(handle: &Handle) -> Result<Mapping<'static>> {
    Ok(process()?.importer.open_bytes(handle.as_bytes(), Access::ReadOnly)?)
}

/// Cancels a handle that this process has sent ([`crate::Block::send_handle`],
/// [`Mapping::send_handle`]) and that no process will open: it becomes a plain handle. Returns
/// `false` if all readers have opened it, or if this process did not send it.
///
/// # Errors
/// As [`exporter()`].
pub fn cancel_handle(handle: &Handle) -> Result<bool> {
    Ok(process()?.exporter.cancel(handle) || umf_ipc::importer::cancel_passed_on(handle))
}

/// Returns whether this process has sent a handle for a message, and readers have still to open it.
///
/// # Errors
/// As [`exporter()`].
pub fn is_in_transit(handle: &Handle) -> Result<bool> {
    Ok(process()?.exporter.is_in_transit(handle) || umf_ipc::importer::is_passed_on(handle))
}

/// Returns the number of handles that this process has sent and that not all readers have opened.
/// Releases the memory of the others.
///
/// # Errors
/// As [`exporter()`].
pub fn handles_in_transit() -> Result<usize> {
    Ok(process()?.exporter.poll_tickets() + umf_ipc::importer::poll_passed_on())
}
