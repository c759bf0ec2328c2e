//! Export of regions: [`HandleFormat`], and how each format is taken from a driver's IPC handle and
//! turned back into one.
//!
//! | format | fd | native bytes |
//! |---|---|---|
//! | `fd-functions` | taken from the handle by the driver's function | none |
//! | `fd` | the number in the handle's first four bytes | the handle with -1 in place of the number |
//! | `opaque` | none: the driver transfers what it needs | the handle |
//!
//! The format `fd` is what clients of all drivers do. It also works with a driver that could
//! transfer the fd itself: the driver sees that the number is not the one it wrote, and takes it as
//! an fd of the importing process.

use core::sync::atomic::{AtomicU8, Ordering};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use level_zero_sys::ZE_MEMORY_TYPE_DEVICE;
use umf_core::provider::NATIVE_BYTES;
use umf_core::{Error, Export, NativeBytes, NativeExport, Region, Result};
use umf_os::is_dma_buf;

use crate::context::Context;
use crate::native::{self, IpcHandleBytes, driver_error};
use crate::provider::LevelZeroProvider;

umf_core::words! {
    /// The format of exported handles.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum HandleFormat {
        /// The first of the other formats that the driver supports.
        #[default]
        Auto = "auto",
        /// An fd, which the functions of `ZE_experimental_ipc_memory_fd` take from a handle and put
        /// into one.
        FdFunctions = "fd-functions",
        /// An fd, whose number is in the first four bytes of a handle.
        Fd = "fd",
        /// The driver's handle as it is. The driver transfers what it needs by its own means and
        /// with its own permission checks. Fails if the handle consists of a local fd only.
        Opaque = "opaque",
    }
}

/// The format in use: the configured one, or the one that the first export with
/// [`HandleFormat::Auto`] found.
#[derive(Debug)]
pub(crate) struct ProbedFormat(AtomicU8);

impl ProbedFormat {
    pub(crate) const fn new(configured: HandleFormat) -> Self {
        Self(AtomicU8::new(configured as u8))
    }

    pub(crate) fn get(&self) -> HandleFormat {
        match self.0.load(Ordering::Relaxed) {
            1 => HandleFormat::FdFunctions,
            2 => HandleFormat::Fd,
            3 => HandleFormat::Opaque,
            _ => HandleFormat::Auto,
        }
    }

    fn set(&self, found: HandleFormat) {
        self.0.store(found as u8, Ordering::Relaxed);
    }
}

/// A driver handle behind a live export, released by `unexport`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IssuedHandle {
    bytes: IpcHandleBytes,
    /// Number of the exported fd: identifies the export.
    pub fd: Option<i32>,
    /// The fd to close on release, if the driver has no `zeMemPutIpcHandle`.
    owned_fd: Option<i32>,
}

/// Returns whether an fd is memory that cannot shrink: a dma-buf, or a memfd with that seal.
pub(crate) fn is_memory(fd: &OwnedFd) -> Result<bool> {
    let seals = rustix::fs::fcntl_get_seals(fd);
    Ok(seals.is_ok_and(|seals| seals.contains(rustix::fs::SealFlags::SHRINK)) || is_dma_buf(fd.as_fd())?)
}

/// Returns the fd in a handle's first bytes, by number and as a duplicate. `None` if they are not
/// the number of an fd of memory.
fn fd_in_handle(bytes: &IpcHandleBytes) -> Result<Option<(i32, OwnedFd)>> {
    let number = leading_number(bytes);
    let Some(fd) = native::duplicate_fd(number) else { return Ok(None) };
    Ok(is_memory(&fd)?.then_some((number, fd)))
}

fn leading_number(bytes: &IpcHandleBytes) -> i32 {
    i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Returns whether a handle contains the pid of this process. Without it, the fd number in the
/// handle would refer to another fd in the importing process.
fn has_own_pid(bytes: &IpcHandleBytes) -> bool {
    let pid = std::process::id().to_ne_bytes();
    bytes.chunks_exact(4).skip(1).any(|word| word == pid)
}

/// Replaces the fd number in a handle.
fn with_number(mut bytes: IpcHandleBytes, number: i32) -> IpcHandleBytes {
    bytes[..4].copy_from_slice(&number.to_ne_bytes());
    bytes
}

/// The part of a handle that is sent to other processes.
enum Payload {
    Fd((i32, OwnedFd), NativeBytes),
    Opaque,
}

/// Converts an allocation's IPC handle to an export.
fn export_handle(
    context: &Context,
    bytes: IpcHandleBytes,
    allocation_id: u64,
    format: &ProbedFormat,
) -> Result<(NativeExport, IssuedHandle)> {
    let payload = match format.get() {
        HandleFormat::Auto => match fd_by_function(context, &bytes) {
            Ok(fd) => {
                format.set(HandleFormat::FdFunctions);
                Payload::Fd(fd, NativeBytes::EMPTY)
            }
            Err(_) => match fd_in_handle(&bytes)? {
                Some(fd) => {
                    format.set(HandleFormat::Fd);
                    Payload::Fd(fd, NativeBytes::new(&with_number(bytes, -1))?)
                }
                None => {
                    format.set(HandleFormat::Opaque);
                    Payload::Opaque
                }
            },
        },
        HandleFormat::FdFunctions => Payload::Fd(fd_by_function(context, &bytes)?, NativeBytes::EMPTY),
        HandleFormat::Fd => {
            let no_fd = Error::NotSupported {
                what: "an fd in the first bytes of a handle (handles = \"fd\")",
                owner: "this Level Zero driver; use auto or opaque",
                native: 0,
            };
            Payload::Fd(fd_in_handle(&bytes)?.ok_or(no_fd)?, NativeBytes::new(&with_number(bytes, -1))?)
        }
        HandleFormat::Opaque => {
            if fd_in_handle(&bytes)?.is_some() && !has_own_pid(&bytes) {
                return Err(Error::NotSupported {
                    what: "sending the driver's handle unchanged (handles = \"opaque\")",
                    owner: "this Level Zero driver: its handles are an fd of this process; use auto or fd",
                    native: 0,
                });
            }
            Payload::Opaque
        }
    };
    Ok(match payload {
        Payload::Opaque => {
            let owned_fd =
                if context.has_put_handle { None } else { fd_in_handle(&bytes)?.map(|(number, _)| number) };
            let export = NativeExport::from_bytes(NativeBytes::new(&bytes)?, allocation_id);
            (export, IssuedHandle { bytes, fd: None, owned_fd })
        }
        Payload::Fd((number, fd), native) => {
            let issued = IssuedHandle {
                bytes,
                fd: Some(fd.as_raw_fd()),
                owned_fd: (!context.has_put_handle).then_some(number),
            };
            let mut export = NativeExport::from_fd(Arc::new(fd), 0);
            export.native = native;
            export.allocation_id = allocation_id;
            (export, issued)
        }
    })
}

/// Returns the fd that the driver's function takes from a handle, by number and as a duplicate.
fn fd_by_function(context: &Context, bytes: &IpcHandleBytes) -> Result<(i32, OwnedFd)> {
    let number = native::fd_of_ipc_handle(context, *bytes).map_err(driver_error)?;
    let not_memory = Error::Native {
        call: "zeMemGetFileDescriptorFromIpcHandleExp",
        native: 0,
        hint: "the driver returned a number that is not an fd of memory: use handles = \"fd\" or \"opaque\"",
    };
    let number = number.ok_or(not_memory)?;
    let fd = native::duplicate_fd(number).ok_or(not_memory)?;
    if is_memory(&fd)? { Ok((number, fd)) } else { Err(not_memory) }
}

/// Releases the driver handle of an export. Called once per handle.
pub(crate) fn release_handle(context: &Context, issued: &IssuedHandle) -> Result<()> {
    if let Some(number) = issued.owned_fd {
        native::close_fd(number);
        return Ok(());
    }
    match native::put_ipc_handle(context, issued.bytes).map_err(driver_error) {
        // The loader is older than the function. The driver closes the handle when the memory is
        // freed.
        Err(Error::NotSupported { .. }) => Ok(()),
        result => result,
    }
}

/// Converts what an importer received to an IPC handle for this process's driver.
pub(crate) fn handle_from_request(
    context: &Context,
    fd: Option<&OwnedFd>,
    native: &[u8; NATIVE_BYTES],
    length: usize,
) -> Result<IpcHandleBytes> {
    if let Some(fd) = fd
        && !is_memory(fd)?
    {
        return Err(Error::Untrusted {
            why: "the descriptor is neither a dma-buf nor a memfd that cannot shrink",
        });
    }
    match (fd, length) {
        (Some(fd), 0) => native::ipc_handle_from_fd(context, fd.as_raw_fd()).map_err(driver_error),
        (Some(fd), NATIVE_BYTES) => Ok(with_number(*native, fd.as_raw_fd())),
        (None, NATIVE_BYTES) if leading_number(native) != -1 => Ok(*native),
        (None, _) => {
            Err(Error::Untrusted { why: "the handle needs a file descriptor, and none was received" })
        }
        _ => Err(Error::Untrusted { why: "the driver's handle has the wrong length" }),
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
        let mut regions = self.regions();
        let record = regions.live.get_mut(region)?;
        let current = native::allocation_info(context, region.base()).map_err(driver_error)?;
        if current.id != record.allocation_id {
            return Err(Error::Native {
                call: "zeMemGetAllocProperties",
                native: 0,
                hint: "another allocation is at the region's address: the region was freed without umf",
            });
        }
        let bytes = native::get_ipc_handle(context, region.base()).map_err(driver_error)?;
        match export_handle(context, bytes, record.allocation_id, self.handle_format()) {
            Ok((export, issued)) => {
                record.issued.push(issued);
                Ok(export)
            }
            Err(error) => {
                let _ = native::put_ipc_handle(context, bytes);
                Err(error)
            }
        }
    }

    fn unexport(&self, region: &Region, export: NativeExport) -> Result<()> {
        let context = self.context();
        context.check()?;
        let fd = export.fd.as_ref().map(|fd| fd.as_raw_fd());
        let handle = {
            let mut regions = self.regions();
            let issued = &mut regions.live.get_mut(region)?.issued;
            let index = issued.iter().position(|handle| handle.fd == fd);
            let unknown =
                Error::InvalidArgument { what: "export", why: "is not a live export of this region" };
            issued.swap_remove(index.ok_or(unknown)?)
        };
        release_handle(context, &handle)
    }

    fn fd_opens_through_procfs(&self) -> bool {
        // The fds of hardware drivers are dma-bufs, which cannot be reopened through /proc.
        false
    }
}
