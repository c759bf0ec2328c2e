//! The IPC handle of a region that was allocated without a pool: the bytes of a [`Handle`].

use core::ffi::c_void;
use std::sync::Arc;

use umf_core::{Access, Address, Import};
use umf_ipc::{HANDLE_SIZE, Handle, Importer, Mapping};

use super::opened;
use crate::boundary::{Failure, Outcome};

/// Its size in bytes.
pub(crate) const SIZE: usize = HANDLE_SIZE;

const NULL: Failure = Failure::argument("a handle is NULL");

fn bytes<'a>(handle: *mut c_void) -> Outcome<&'a [u8; SIZE]> {
    // SAFETY: C promises as many bytes as the provider says that its handles have.
    unsafe { handle.cast::<[u8; SIZE]>().as_ref() }.ok_or(NULL)
}

/// Exports the region at `address`, and writes its handle.
pub(crate) fn get(address: Address, handle: *mut c_void) -> Outcome<()> {
    if handle.is_null() {
        return Err(NULL);
    }
    // SAFETY: of this memory C has pointers, and Rust no references.
    let exported = unsafe { umf::exporter()?.handle(address) }?;
    // SAFETY: C promises room for as many bytes as the provider says that its handles have.
    unsafe { handle.cast::<[u8; SIZE]>().write_unaligned(*exported.as_bytes()) };
    Ok(())
}

/// Whether it is a handle at all.
pub(crate) fn check(handle: *mut c_void) -> Outcome<()> {
    let bytes = bytes(handle)?;
    Handle::from_bytes(bytes).map(|_| ()).map_err(|error| umf_ipc::Error::from(error).into())
}

/// Opens bytes for writing, or for reading where only that is offered.
pub(super) fn open_bytes<'i>(importer: &'i Importer, bytes: &[u8]) -> Outcome<Mapping<'i>> {
    match importer.open_bytes(bytes, Access::ReadWrite) {
        Err(umf_ipc::Error::ReadOnly) => Ok(importer.open_bytes(bytes, Access::ReadOnly)?),
        opened => Ok(opened?),
    }
}

/// Opens the region that a handle names.
pub(crate) fn open(handle: *mut c_void, importer: &Importer, of: usize) -> Outcome<*mut c_void> {
    let mapping = open_bytes(importer, bytes(handle)?)?;
    let outside = Failure::argument("the memory lies in no address space of this process");
    let address = usize::try_from(mapping.address().value()).map_err(|_| outside)?;
    // SAFETY: the provider closes all when it goes, and its importer after that; the process's own stays.
    unsafe { opened::keep(address, mapping, of) };
    Ok(core::ptr::with_exposed_provenance_mut(address))
}

/// Closes it.
pub(crate) fn close(memory: *mut c_void) -> Outcome<()> {
    opened::close(memory.addr())
}

/// An importer for one kind of memory, otherwise as the process's own.
pub(crate) fn importer_of(import: Arc<dyn Import>) -> Outcome<Importer> {
    let settings = umf::importer()?.settings().clone();
    Ok(Importer::builder().settings(settings).import(import).build()?)
}
