//! [`Handles`]: what travels to other processes, and how it comes out of a driver's handle.
//!
//! | what travels | fd | native bytes |
//! |---|---|---|
//! | an fd, taken out and put in by the driver's functions | yes | none |
//! | an fd that stands in the handle's first four bytes | yes | the handle, with no fd (-1) in them |
//! | the handle, and the driver brings over what it needs | no | the handle |
//!
//! The second is what clients of all drivers do, and works with those too that could bring the fd over by themselves: they see
//! that the number is not what they wrote, and take it as local.
//!
//! The export of regions ([`Export`]) is here too.

use core::sync::atomic::{AtomicU8, Ordering};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use level_zero_sys::ZE_MEMORY_TYPE_DEVICE;
use umf_core::provider::NATIVE_BYTES;
use umf_core::{Error, Export, NativeBytes, NativeExport, Region, Result};
use umf_os::is_dma_buf;

use crate::context::Context;
use crate::failure::error;
use crate::native;
use crate::native::handle::{self, Bytes};
use crate::provider::LevelZeroProvider;

umf_core::words! {
    /// What travels to other processes.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum Handles {
        /// What the driver can do best: the first of the others that it can.
        #[default]
        Auto = "auto",
        /// An fd, which the functions of `ZE_experimental_ipc_memory_fd` (or what a driver calls it) take out of a handle and put in.
        FdFunctions = "fd-functions",
        /// An fd that stands in the first four bytes of a handle.
        Fd = "fd",
        /// The driver's handle as it is: the driver brings over what it needs, by its own means and with its own permissions.
        /// Refused if its handles are nothing but an fd.
        Opaque = "opaque",
    }
}

/// What was found to work, once and for all.
#[derive(Debug)]
pub(crate) struct Probed(AtomicU8);

impl Probed {
    pub(crate) const fn new(wanted: Handles) -> Self {
        Self(AtomicU8::new(wanted as u8))
    }

    pub(crate) fn get(&self) -> Handles {
        match self.0.load(Ordering::Relaxed) {
            1 => Handles::FdFunctions,
            2 => Handles::Fd,
            3 => Handles::Opaque,
            _ => Handles::Auto,
        }
    }

    fn set(&self, found: Handles) {
        self.0.store(found as u8, Ordering::Relaxed);
    }
}

/// A handle that is out, and how it goes back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    bytes: Bytes,
    /// Which export it is: the number of the fd that travels.
    pub fd: Option<i32>,
    /// The fd that a driver which takes nothing back has left to us.
    left: Option<i32>,
}

/// Whether somebody's file is memory that stays: a dma-buf, or a memfd that cannot shrink.
pub(crate) fn is_memory(fd: &OwnedFd) -> Result<bool> {
    let seals = rustix::fs::fcntl_get_seals(fd);
    Ok(seals.is_ok_and(|seals| seals.contains(rustix::fs::SealFlags::SHRINK)) || is_dma_buf(fd.as_fd())?)
}

/// A duplicate of the fd in a handle's first bytes, if an fd stands there.
fn inside(bytes: &Bytes) -> Result<Option<(i32, OwnedFd)>> {
    let number = number_in(bytes);
    let Some(fd) = handle::duplicate(number) else { return Ok(None) };
    Ok(is_memory(&fd)?.then_some((number, fd)))
}

fn number_in(bytes: &Bytes) -> i32 {
    i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Whether a handle says which process it is of. One that does not means another's memory, or none, wherever its fd is not
/// brought over first.
fn names_process(bytes: &Bytes) -> bool {
    let pid = std::process::id().to_ne_bytes();
    bytes.chunks_exact(4).skip(1).any(|word| word == pid)
}

/// The handle with another fd in it.
fn with_number(mut bytes: Bytes, number: i32) -> Bytes {
    bytes[..4].copy_from_slice(&number.to_ne_bytes());
    bytes
}

/// Makes an export of an allocation's handle.
pub(crate) fn export(
    context: &Context,
    bytes: Bytes,
    allocation_id: u64,
    probed: &Probed,
) -> Result<(NativeExport, Given)> {
    let wanted = probed.get();
    let found = match wanted {
        Handles::Auto => {
            let by_functions = by_functions(context, &bytes);
            match by_functions {
                Ok(found) => {
                    probed.set(Handles::FdFunctions);
                    Found::Fd(found, NativeBytes::EMPTY)
                }
                Err(_) => match inside(&bytes)? {
                    Some((number, fd)) => {
                        probed.set(Handles::Fd);
                        Found::Fd((number, fd), NativeBytes::new(&with_number(bytes, -1))?)
                    }
                    None => {
                        probed.set(Handles::Opaque);
                        Found::Opaque
                    }
                },
            }
        }
        Handles::FdFunctions => Found::Fd(by_functions(context, &bytes)?, NativeBytes::EMPTY),
        Handles::Fd => {
            let none = Error::NotSupported {
                what: "an fd in the first bytes of a handle (handles = \"fd\")",
                owner: "this Level Zero driver; use auto or opaque",
                native: 0,
            };
            Found::Fd(inside(&bytes)?.ok_or(none)?, NativeBytes::new(&with_number(bytes, -1))?)
        }
        Handles::Opaque => {
            if inside(&bytes)?.is_some() && !names_process(&bytes) {
                return Err(Error::NotSupported {
                    what: "a handle that travels as it is (handles = \"opaque\")",
                    owner: "this Level Zero driver: its handles are an fd of this process; use auto or fd",
                    native: 0,
                });
            }
            Found::Opaque
        }
    };
    Ok(match found {
        Found::Opaque => {
            let left =
                if context.takes_handles_back { None } else { inside(&bytes)?.map(|(number, _)| number) };
            let export = NativeExport::from_bytes(NativeBytes::new(&bytes)?, allocation_id);
            (export, Given { bytes, fd: None, left })
        }
        Found::Fd((number, fd), native) => {
            let given = Given {
                bytes,
                fd: Some(fd.as_raw_fd()),
                left: (!context.takes_handles_back).then_some(number),
            };
            let mut export = NativeExport::from_fd(Arc::new(fd), 0);
            export.native = native;
            export.allocation_id = allocation_id;
            (export, given)
        }
    })
}

enum Found {
    Fd((i32, OwnedFd), NativeBytes),
    Opaque,
}

/// The fd of a handle as the driver's function tells it, and a duplicate.
fn by_functions(context: &Context, bytes: &Bytes) -> Result<(i32, OwnedFd)> {
    let number = handle::fd_of(context, *bytes).map_err(error)?;
    let lost = Error::Native {
        call: "zeMemGetFileDescriptorFromIpcHandleExp",
        native: 0,
        hint: "the driver's answer is no fd of memory: use handles = \"fd\" or \"opaque\"",
    };
    let number = number.ok_or(lost)?;
    let fd = handle::duplicate(number).ok_or(lost)?;
    if is_memory(&fd)? { Ok((number, fd)) } else { Err(lost) }
}

/// Gives a handle back, once.
pub(crate) fn put(context: &Context, given: &Given) -> Result<()> {
    if let Some(number) = given.left {
        handle::close_fd(number);
        return Ok(());
    }
    match handle::put(context, given.bytes).map_err(error) {
        // The loader is older than the function is. The driver closes what is out when the memory is freed.
        Err(Error::NotSupported { .. }) => Ok(()),
        answer => answer,
    }
}

/// The handle of what came from another process, for the driver of this one.
pub(crate) fn import(
    context: &Context,
    fd: Option<&OwnedFd>,
    native: &[u8; NATIVE_BYTES],
    length: usize,
) -> Result<Bytes> {
    if let Some(fd) = fd
        && !is_memory(fd)?
    {
        return Err(Error::Untrusted {
            why: "the descriptor is neither a dma-buf nor a memfd that cannot shrink",
        });
    }
    match (fd, length) {
        (Some(fd), 0) => handle::from_fd(context, fd.as_raw_fd()).map_err(error),
        (Some(fd), NATIVE_BYTES) => Ok(with_number(*native, fd.as_raw_fd())),
        (None, NATIVE_BYTES) if number_in(native) != -1 => Ok(*native),
        (None, _) => Err(Error::Untrusted { why: "no file descriptor came along" }),
        _ => Err(Error::Untrusted { why: "the driver's handle has not the length of one" }),
    }
}

impl Export for LevelZeroProvider {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        let context = self.context();
        context.check()?;
        if self.native_kind() != ZE_MEMORY_TYPE_DEVICE {
            return Err(Error::NotSupported {
                what: "handles of host or shared memory",
                owner: "Level Zero; use device memory, or the host provider",
                native: 0,
            });
        }
        let mut records = self.records();
        let record = records.live.get_mut(region)?;
        let now = native::memory::facts(context, region.base()).map_err(error)?;
        if now.id != record.id {
            return Err(Error::Native {
                call: "zeMemGetAllocProperties",
                native: 0,
                hint: "another allocation lies at the region's address: it was freed past umf",
            });
        }
        let bytes = handle::get(context, region.base()).map_err(error)?;
        match export(context, bytes, record.id, self.probed()) {
            Ok((export, given)) => {
                record.given.push(given);
                Ok(export)
            }
            Err(error) => {
                let _ = handle::put(context, bytes);
                Err(error)
            }
        }
    }

    fn unexport(&self, region: &Region, export: NativeExport) -> Result<()> {
        use std::os::fd::AsRawFd;
        let context = self.context();
        context.check()?;
        let fd = export.fd.as_ref().map(|fd| fd.as_raw_fd());
        let given = {
            let mut records = self.records();
            let given = &mut records.live.get_mut(region)?.given;
            let is_it = given.iter().position(|given| given.fd == fd);
            let nothing =
                Error::InvalidArgument { what: "export", why: "is not one that this region has out" };
            given.swap_remove(is_it.ok_or(nothing)?)
        };
        put(context, &given)
    }

    fn fd_opens_through_procfs(&self) -> bool {
        // Those of real drivers are dma-bufs, which have no file that could be opened again.
        false
    }
}
