//! `umf/ipc.h`.

use core::ffi::c_void;

use umf_core::Address;
use umf_ipc::HANDLE_SIZE;

use super::{opened, owners, provider_handle};
use crate::boundary::{Code, Failure, Handle, Out, Outcome, SUCCESS, call};
use crate::pool::Pool;
use crate::pools::preloaded;

/// What `umf_ipc_handle_t` points to: the bytes of a handle, and where in its block the pointer was that it is for.
#[repr(C, align(8))]
pub(crate) struct IpcHandle {
    handle: [u8; HANDLE_SIZE],
    offset: [u8; 8],
}

impl IpcHandle {
    const fn offset(&self) -> u64 {
        u64::from_le_bytes(self.offset)
    }
}

const SIZE: usize = size_of::<IpcHandle>();
const _: () = assert!(SIZE == HANDLE_SIZE + 8);

#[unsafe(no_mangle)]
extern "C" fn umfPoolGetIPCHandleSize(pool: Handle<Pool>, size: Out<usize>) -> Code {
    call("umfPoolGetIPCHandleSize", || {
        let (pool, size) = (pool.get()?, size.check()?);
        pool.check_ipc()?;
        size.set(SIZE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfGetIPCHandle(
    memory: *const c_void,
    handle: Out<Handle<IpcHandle>>,
    size: Out<usize>,
) -> Code {
    call("umfGetIPCHandle", || {
        let (handle, size) = (handle.check()?, size.check()?);
        handle.set(Handle::new(export(Address::from_ptr(memory.cast::<u8>()))?))?;
        size.set(SIZE)
    })
}

fn export(address: Address) -> Outcome<IpcHandle> {
    let Some((pool, found)) = owners::find(address) else {
        let unknown = Failure::argument("the memory is of no pool that keeps track of it");
        let (handle, offset) = preloaded::export(address).ok_or(unknown)??;
        return Ok(IpcHandle { handle, offset: offset.to_le_bytes() });
    };
    // SAFETY: of this memory C has pointers, and Rust no references.
    let exported = unsafe { umf::exporter()?.handle(address) };
    if exported.is_err() {
        Handle::from_ptr(pool).get()?.provider()?.has_failed();
    }
    let exported = exported.map_err(|error| match error {
        // As the original says of it.
        umf_ipc::Error::NotExportable { .. } => {
            Failure::from(error).with_code(crate::boundary::INVALID_ARGUMENT)
        }
        error => error.into(),
    })?;
    let block = found.region.base().checked_add(exported.offset());
    let offset =
        block.and_then(|block| address.offset_from(block)).filter(|&offset| offset < exported.length());
    let offset = offset.ok_or(Failure::argument("the memory was freed meanwhile"))?;
    Ok(IpcHandle { handle: *exported.as_bytes(), offset: offset.to_le_bytes() })
}

/// The handle stays valid wherever its bytes are, until the memory is freed.
#[unsafe(no_mangle)]
extern "C" fn umfPutIPCHandle(handle: Handle<IpcHandle>) -> Code {
    call("umfPutIPCHandle", || {
        drop(handle.take());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfPoolGetIPCHandler(pool: Handle<Pool>, handler: Out<*mut c_void>) -> Code {
    call("umfPoolGetIPCHandler", || {
        let handler = handler.check()?;
        pool.get()?.check_tracked()?;
        handler.set(pool.to_ptr().cast())
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfOpenIPCHandle(
    handler: Handle<Pool>,
    handle: Handle<IpcHandle>,
    memory: Out<*mut c_void>,
) -> Code {
    if let Some(pool) = handler.known()
        && let Some(handle) = handle.known()
        && !memory.to_ptr().is_null()
        && let Some(importer) = pool.known_importer()
    {
        let (offset, of) = (handle.offset(), pool.opens());
        // SAFETY: the pool closes all when it goes; its provider, and so the importer, is there longer.
        if let Some(address) = unsafe { opened::open_again(importer, &handle.handle, offset, of) } {
            memory.set_if_wanted(core::ptr::with_exposed_provenance_mut(address));
            return SUCCESS;
        }
    }
    open_else(handler, handle, memory)
}

#[cold]
#[inline(never)]
extern "C" fn open_else(handler: Handle<Pool>, handle: Handle<IpcHandle>, memory: Out<*mut c_void>) -> Code {
    call("umfOpenIPCHandle", || {
        let (pool, handle, memory) = (handler.get()?, handle.get()?, memory.check()?);
        pool.check_is_pool()?;
        let provider = pool.provider()?;
        let mapping = provider_handle::open_bytes(pool.importer()?, &handle.handle)
            .inspect_err(|_| provider.has_failed())?;
        if handle.offset() >= mapping.len() as u64 {
            return Err(Failure::argument("the handle is corrupt: it points outside of its block"));
        }
        let address = mapping.address().value().checked_add(handle.offset());
        let address = address.and_then(|address| usize::try_from(address).ok());
        let outside = Failure::argument("the memory lies in no address space of this process");
        let address = address.ok_or(outside)?;
        // SAFETY: the pool closes all when it goes; its provider, and so the importer, is there longer.
        unsafe { opened::keep(address, mapping, pool.opens()) };
        memory.set(core::ptr::with_exposed_provenance_mut(address))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfCloseIPCHandle(memory: *mut c_void) -> Code {
    if opened::close_own(memory.addr()) { SUCCESS } else { close_else(memory) }
}

#[cold]
#[inline(never)]
extern "C" fn close_else(memory: *mut c_void) -> Code {
    call("umfCloseIPCHandle", || opened::close(memory.addr()))
}
