//! Children of `umf info`: processes of their own for what another process sees, and for what is too dangerous to
//! try in this one.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use umf::core::Visibility;
use umf::host::{HostImport, HostProvider};
use umf::ipc::ExporterSettings;
use umf::{Exchange, Exporter, Handle, Importer, Mode, Pool};

use super::{devices, errno, kernel};
use crate::child::{Child, Parent, Silence};
use crate::sys;

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
        remedy: (!errno::ran_short(errno)).then(|| "Make pidfd work: it takes the same rights.".to_owned()),
    })
}
