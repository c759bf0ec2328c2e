//! What a process has one of: settings, exporter, importer.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::Arc;

use umf_config::{Loader, Settings, Warning};
use umf_core::Access;
use umf_ipc::{
    Exporter, ExporterSettings, Handle, Importer, ImporterSettings, LimitPolicy, Mapping, Mode, Ptracer,
};
use umf_provider_dma_buf::DmaBufImport;
use umf_provider_host::HostImport;
use umf_sync::fork;

use crate::assembly::{cuda, level_zero};
use crate::{Error, Result, logging, registry};

struct Process {
    settings: Settings,
    warnings: Vec<Warning>,
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
        None => Ok(publish(make(Loader::new())?)),
    }
}

/// In a [`Turn`].
fn publish(made: Process) -> &'static Process {
    let process: &'static Process = Box::leak(Box::new(made));
    PROCESS.store(core::ptr::from_ref(process).cast_mut(), Ordering::Release);
    // What is registered from here on is added by whoever registers it; what was before, here.
    for import in registry::imports() {
        process.importer.add_import(import);
    }
    process
}

fn make(loader: Loader) -> Result<Process> {
    let loaded = loader.load()?;
    logging::start(&loaded.settings.log);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let ipc = &loaded.settings.ipc;
    let limit = match ipc.limit {
        umf_config::LimitPolicy::Hard => LimitPolicy::Hard,
        _ => LimitPolicy::Soft,
    };
    let mut exporter = ExporterSettings::default();
    exporter.exchange = exchange(&ipc.exchange);
    exporter.ptracer = match ipc.ptracer {
        umf_config::Ptracer::Any => Ptracer::Any,
        umf_config::Ptracer::Pid(pid) => Ptracer::Process(pid),
        _ => Ptracer::None,
    };
    exporter.max_created_handles = ipc.max_created_handles;
    exporter.limit = limit;
    let mut importer = ImporterSettings::default();
    importer.exchange = exchange(&ipc.exchange);
    importer.max_opened_handles = ipc.max_opened_handles;
    importer.max_opened_bytes = ipc.max_opened_bytes.get();
    importer.limit = limit;
    importer.open_timeout = ipc.open_timeout();
    importer.leases = ipc.leases != umf_config::LeasePolicy::Off;
    if let umf_config::Shards::Count(shards) = ipc.importer_shards {
        importer.shards = shards as usize;
    }
    let importer = Importer::builder()
        .settings(importer)
        .import(Arc::new(HostImport::new()))
        .import(Arc::new(DmaBufImport::new()))
        .import(Arc::new(cuda::import(&loaded.settings)))
        .import(Arc::new(level_zero::import(&loaded.settings)))
        .build()?;
    Ok(Process {
        exporter: Exporter::new(exporter)?,
        importer,
        settings: loaded.settings,
        warnings: loaded.warnings,
    })
}

fn exchange(setting: &umf_config::Exchange) -> umf_ipc::Exchange {
    match setting {
        umf_config::Exchange::Order(methods) => {
            let mode = |method: &umf_config::ExchangeMethod| match method {
                umf_config::ExchangeMethod::Procfs => Mode::Procfs,
                umf_config::ExchangeMethod::Socket => Mode::Socket,
                _ => Mode::Pidfd,
            };
            umf_ipc::Exchange::Order(methods.iter().map(mode).collect())
        }
        _ => umf_ipc::Exchange::Auto,
    }
}

/// The settings in force.
///
/// # Errors
/// [`Error::Settings`] if `umf.toml` or a variable is wrong.
pub fn settings() -> Result<&'static Settings> {
    Ok(&process()?.settings)
}

/// What was found odd in the settings, though not wrong.
///
/// # Errors
/// As [`settings`].
pub fn warnings() -> Result<&'static [Warning]> {
    Ok(&process()?.warnings)
}

/// The exporter of this process, which [`crate::Block::export`] uses.
///
/// # Errors
/// As [`settings`].
pub fn exporter() -> Result<&'static Exporter> {
    Ok(&process()?.exporter)
}

/// The importer of this process, which [`open`] uses.
///
/// # Errors
/// As [`settings`].
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
/// [`Error::Ipc`] with the reason; as [`settings`].
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
