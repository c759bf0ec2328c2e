//! `umf/ipc.h`, and the IPC handles of memory that was allocated from a provider.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use umf_core::{Access, Address, Import, Provider, Region};
use umf_ipc::{Exporter, HANDLE_SIZE, Importer, ImporterBuilder, Mapping};
use umf_provider_host::HostImport;
use umf_runtime::tracker::{self, TrackedRegion};

use super::{destroyed_handles, openings, owners};
use crate::base;
use crate::boundary::{Code, Failure, Handle, INVALID_ARGUMENT, List, Out, Outcome, SUCCESS, call};
use crate::last_error::FailedOperation;
use crate::log;
use crate::pool::Pool;
use crate::pools::preloaded;
use crate::provider::part_around;

/// Target of a `umf_ipc_handle_t`: the bytes of a handle, and the offset of the exported pointer in
/// its block.
#[repr(C, align(8))]
pub(crate) struct IpcHandle {
    handle: [u8; HANDLE_SIZE],
    /// 48 bits of offset, and 16 bits of checksum ([`check`]).
    place: [u8; 8],
}

const OFFSET_BITS: u32 = 48;

/// Returns the checksum of an offset. It depends on each bit of the offset, and on the handle's own
/// checksum.
const fn check(offset: u64, handle: &[u8; HANDLE_SIZE]) -> u64 {
    let of_handle = u32::from_le_bytes([handle[252], handle[253], handle[254], handle[255]]);
    (offset.wrapping_mul(SPREAD).wrapping_add((of_handle as u64) << 32)) >> OFFSET_BITS
}

/// Returns an [`IpcHandle::place`].
const fn place(offset: u64, handle: &[u8; HANDLE_SIZE]) -> [u8; 8] {
    (offset | check(offset, handle) << OFFSET_BITS).to_le_bytes()
}

const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

// Offsets that differ in one bit have different checksums: the products differ by at least 2^48.
const _: () = {
    let mut bit = 0;
    while bit < OFFSET_BITS {
        let difference = SPREAD << bit;
        assert!(difference >= 1 << OFFSET_BITS && difference.wrapping_neg() >= 1 << OFFSET_BITS);
        bit += 1;
    }
};

/// Checksum and place of a destroyed handle.
const DESTROYED_MARK: [u8; 8] = [0xff; 8];

// The fast path of opening checks the offset only.
const _: () = {
    let mut destroyed = IpcHandle { handle: [0; HANDLE_SIZE], place: [0; 8] };
    destroyed.mark_as_destroyed();
    assert!(destroyed.offset().is_none());
};

impl IpcHandle {
    fn new(handle: [u8; HANDLE_SIZE], offset: u64) -> Outcome<Self> {
        if offset >> OFFSET_BITS != 0 {
            return Err(Failure::unsupported("a handle cannot say an offset of 256 TiB and more"));
        }
        Ok(Self { place: place(offset, &handle), handle })
    }

    /// Marks the handle as destroyed. Its memory is kept after `umfPutIPCHandle`.
    #[inline]
    pub(super) const fn mark_as_destroyed(&mut self) {
        let (_, checksum) = self.handle.split_last_chunk_mut().expect("a handle has 256 bytes");
        *checksum = DESTROYED_MARK;
        self.place = DESTROYED_MARK;
    }

    /// Returns whether the handle has the mark of [`IpcHandle::mark_as_destroyed`].
    fn is_destroyed(&self) -> bool {
        self.handle.ends_with(&DESTROYED_MARK) && self.place == DESTROYED_MARK
    }

    /// Returns a handle for C, which lives until `umfPutIPCHandle`.
    #[inline]
    fn give(self) -> Handle<Self> {
        Handle::from_ptr(destroyed_handles::allocate(self).as_ptr())
    }

    /// Returns the object of C's handle, which was not destroyed.
    fn live<'a>(handle: Handle<Self>) -> Outcome<&'a Self> {
        let handle = handle.get()?;
        if handle.is_destroyed() { Err(DESTROYED) } else { Ok(handle) }
    }

    /// Returns the offset of the pointer in its block; `None` if the checksum is wrong, or if the
    /// handle was destroyed.
    #[inline(always)]
    const fn offset(&self) -> Option<u64> {
        let place = u64::from_le_bytes(self.place);
        let offset = place & ((1 << OFFSET_BITS) - 1);
        if check(offset, &self.handle) == place >> OFFSET_BITS { Some(offset) } else { None }
    }

    /// Reads and checks what a process received from another one.
    fn from_bytes(bytes: &[u8]) -> Outcome<Self> {
        const TEXT: &[u8] = b"umf1.";
        if let Some((handle, place)) = bytes.split_first_chunk()
            && let Ok(place) = place.try_into()
        {
            umf_ipc::Handle::from_bytes(handle).map_err(umf_ipc::Error::from)?;
            let read = Self { handle: *handle, place };
            return if read.offset().is_some() { Ok(read) } else { Err(CORRUPT) };
        }
        let handle = if bytes.trim_ascii_start().starts_with(TEXT) {
            let text = core::str::from_utf8(bytes).map_err(|_| NOT_TEXT)?;
            // C may count the NUL.
            text.trim_end_matches('\0').parse()
        } else if bytes.len() == HANDLE_SIZE {
            umf_ipc::Handle::from_bytes(bytes)
        } else {
            return Err(WRONG_SIZE);
        };
        Self::new(handle.map_err(umf_ipc::Error::from)?.to_bytes(), 0)
    }

    /// Exports the block or region that holds an address.
    fn of(region: &Region, address: Address) -> Outcome<Self> {
        // SAFETY: C has pointers to this memory, and Rust has no references.
        let exported = unsafe { exporter()?.handle(address) }.map_err(|error| match error {
            // The original reports an invalid argument.
            umf_ipc::Error::NotExportable { .. } => Failure::from(error).with_code(INVALID_ARGUMENT),
            error => error.into(),
        })?;
        Self::at(region, address, &exported)
    }

    /// Makes the handle of an address in an exported block of this region, or in the region.
    fn at(region: &Region, address: Address, exported: &umf_ipc::Handle) -> Outcome<Self> {
        let block = region.base().checked_add(exported.offset());
        let offset = block.and_then(|block| address.offset_from(block));
        let offset = offset.filter(|&offset| offset < exported.length());
        Self::new(*exported.as_bytes(), offset.ok_or(FREED)?)
    }

    /// Opens the handle. Returns the mapping, and the pointer's address in this process.
    fn open<'i>(
        &self,
        importers: &'i OwnImporters,
        imports: impl FnOnce() -> Vec<Arc<dyn Import>>,
    ) -> Outcome<(Mapping<'i>, usize)> {
        let importer = importers.main(imports)?;
        let mapping = match importer.open_bytes(&self.handle, Access::ReadWrite) {
            // The memory is read-only for this process.
            Err(umf_ipc::Error::ReadOnly) => importer.open_bytes(&self.handle, Access::ReadOnly)?,
            // Memory of `malloc` under `libumf_proxy.so` has a name, and so no seals.
            Err(refused @ umf_ipc::Error::Memory(umf_core::Error::Untrusted { .. })) => {
                match importers.named_heap()?.open_bytes(&self.handle, Access::ReadWrite) {
                    Ok(mapping) => mapping,
                    Err(_) => return Err(refused.into()),
                }
            }
            opened => opened?,
        };
        let offset = self.offset().filter(|&offset| offset < mapping.len() as u64).ok_or(CORRUPT)?;
        let address = mapping.address().value().checked_add(offset);
        let address = address.and_then(|address| usize::try_from(address).ok());
        let outside = Failure::argument("the memory lies in no address space of this process");
        Ok((mapping, address.ok_or(outside)?))
    }
}

/// Importers of one pool, or of one provider. Each pool maps memory at addresses of its own, as in
/// the original: `umfCloseIPCHandle` gets an address only, and must close the opening of the right
/// pool.
#[derive(Default)]
pub(crate) struct OwnImporters {
    main: OnceLock<Importer>,
    named_heap: OnceLock<Importer>,
}

impl OwnImporters {
    /// Returns the importer. The first call creates it with the settings and the kinds of memory of
    /// the process's importer, and with `imports`.
    fn main(&self, imports: impl FnOnce() -> Vec<Arc<dyn Import>>) -> Outcome<&Importer> {
        Self::create_once(&self.main, imports)
    }

    /// Returns the importer if [`OwnImporters::main`] has created it.
    pub(crate) fn known_main(&self) -> Option<&Importer> {
        self.main.get()
    }

    /// Returns the importer of heaps of `libumf_proxy.so` with a name, which the original opens
    /// through any provider of shared OS memory.
    fn named_heap(&self) -> Outcome<&Importer> {
        Self::create_once(&self.named_heap, || {
            vec![Arc::new(HostImport::new().allow_unsealed_below("/dev/shm/umf_proxy_lib_shm_pid_"))]
        })
    }

    fn create_once(
        cell: &OnceLock<Importer>,
        imports: impl FnOnce() -> Vec<Arc<dyn Import>>,
    ) -> Outcome<&Importer> {
        if let Some(importer) = cell.get() {
            return Ok(importer);
        }
        let builder = umf::importer().map_err(log::report_settings)?.to_builder();
        let made = imports().into_iter().fold(builder, ImporterBuilder::import).build()?;
        // If two threads create one, the second is dropped unused.
        Ok(cell.get_or_init(|| made))
    }
}

/// Returns the process's exporter. Wrong settings are reported.
fn exporter() -> Outcome<&'static Exporter> {
    umf::exporter().map_err(log::report_settings)
}

const NOT_TEXT: Failure = Failure::argument(
    "cannot make an IPC handle: the text of a handle is not ASCII; pass what the process printed, unchanged",
);
const WRONG_SIZE: Failure = Failure::argument(
    "cannot make an IPC handle: the size is of no form of handle; pass the 256 bytes of a Rust handle, the 264 bytes \
     of a C handle, or the 347 characters of a handle's text",
);
const FREED: Failure = Failure::argument("the memory was freed meanwhile");
const CORRUPT: Failure = Failure::argument("the handle is corrupt: where it points is not what was written");

const DESTROYED: Failure = Failure::argument("the handle was put before: get a new one");

const SIZE: usize = size_of::<IpcHandle>();

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
    if !handle.to_ptr().is_null()
        && !size.to_ptr().is_null()
        && let Some(again) = get_again(Address::from_ptr(memory.cast::<u8>()))
    {
        handle.set_if_wanted(again);
        size.set_if_wanted(SIZE);
        return SUCCESS;
    }
    get_slow(memory, handle, size)
}

/// Returns a handle of memory of which this thread got one before, and which begins a block.
#[inline(always)]
fn get_again(address: Address) -> Option<Handle<IpcHandle>> {
    let exporter = umf::known_exporter()?;
    exporter
        .copy_kept(address, |handle| IpcHandle::give(IpcHandle { handle: *handle, place: place(0, handle) }))
}

#[cold]
#[inline(never)]
extern "C" fn get_slow(memory: *const c_void, handle: Out<Handle<IpcHandle>>, size: Out<usize>) -> Code {
    call("umfGetIPCHandle", || {
        // A program may begin with the handle of a block of `malloc`. The log of this library has
        // to exist before the process's exporter, which would start another one.
        base::ensure();
        let (handle, size) = (handle.check()?, size.check()?);
        handle.set(IpcHandle::give(export(Address::from_ptr(memory.cast::<u8>()))?))?;
        size.set(SIZE)
    })
}

fn export(address: Address) -> Outcome<IpcHandle> {
    let Some((pool, found)) = owners::find(address) else {
        let unknown = Failure::argument("the memory is of no pool that keeps track of it");
        let (handle, offset) = preloaded::export(address).ok_or(unknown)??;
        return IpcHandle::new(handle, offset);
    };
    let exported = IpcHandle::of(&found.region, address);
    exported.or_else(|failure| {
        let provider = Handle::from_ptr(pool).get()?.provider()?;
        let failure = provider.check_ipc().err().unwrap_or(failure);
        provider.has_failed_to_share(FailedOperation::Export, &failure);
        Err(failure)
    })
}

/// Frees the handle's bytes. Copies stay valid until the memory is freed.
#[unsafe(no_mangle)]
extern "C" fn umfPutIPCHandle(handle: Handle<IpcHandle>) -> Code {
    call("umfPutIPCHandle", || {
        let Some(memory) = NonNull::new(handle.to_ptr()) else { return Ok(()) };
        IpcHandle::live(handle)?;
        // SAFETY: C guarantees that the handle is of this library, and is not used any more.
        unsafe { destroyed_handles::destroy(memory) };
        Ok(())
    })
}

/// Makes an IPC handle from bytes that a process received: those of a Rust handle or of a C one, or
/// the text of a Rust handle. A Rust handle names a block, so its pointer is the block's start.
#[unsafe(no_mangle)]
extern "C" fn umfrsIPCHandleFromBytes(bytes: List<u8>, size: usize, handle: Out<Handle<IpcHandle>>) -> Code {
    call("umfrsIPCHandleFromBytes", || {
        let handle = handle.check()?;
        handle.set(IpcHandle::give(IpcHandle::from_bytes(&bytes.get(size)?)?))
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
        && let Some(offset) = handle.offset()
    {
        let of = pool.opening_owner();
        // SAFETY: the pool closes its openings when it is destroyed, before its importers.
        if let Some(address) = unsafe { openings::open_again(importer, &handle.handle, offset, of) } {
            memory.set_if_wanted(core::ptr::with_exposed_provenance_mut(address));
            return SUCCESS;
        }
    }
    open_slow(handler, handle, memory)
}

#[cold]
#[inline(never)]
extern "C" fn open_slow(handler: Handle<Pool>, handle: Handle<IpcHandle>, memory: Out<*mut c_void>) -> Code {
    call("umfOpenIPCHandle", || {
        let (pool, handle, memory) = (handler.get()?, IpcHandle::live(handle)?, memory.check()?);
        pool.check_is_pool()?;
        let provider = pool.provider()?;
        let opened = handle.open(pool.importers(), || provider.imports());
        let (mapping, address) =
            opened.inspect_err(|failure| provider.has_failed_to_share(FailedOperation::Open, failure))?;
        pool.keep_importer();
        // SAFETY: the pool closes its openings when it is destroyed, before its importers.
        unsafe { openings::insert(address, mapping, pool.opening_owner()) };
        memory.set(core::ptr::with_exposed_provenance_mut(address))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfCloseIPCHandle(memory: *mut c_void) -> Code {
    if openings::close_fast(memory.addr()) { SUCCESS } else { close_slow(memory) }
}

#[cold]
#[inline(never)]
extern "C" fn close_slow(memory: *mut c_void) -> Code {
    call("umfCloseIPCHandle", || openings::close(memory.addr()))
}

/// IPC handles of providers: the bytes of an [`IpcHandle`].
pub(crate) mod provider_handle {
    use super::*;

    /// Size in bytes.
    pub(crate) const SIZE: usize = super::SIZE;

    /// The most addresses of one handle. Each costs an importer, which has descriptors.
    const MOST_ADDRESSES: usize = 16;

    const NULL: Failure = Failure::argument("a handle is NULL");

    fn read(handle: *mut c_void) -> Outcome<IpcHandle> {
        if handle.is_null() {
            return Err(NULL);
        }
        // SAFETY: C guarantees as many bytes as the provider's handle size.
        Ok(unsafe { handle.cast::<IpcHandle>().read_unaligned() })
    }

    /// Exports the provider's region that holds the pointer, and writes the handle. Other providers
    /// may have forwarded to this one, and pools may have blocks there.
    pub(crate) fn get(address: Address, provider: &dyn Provider, handle: *mut c_void) -> Outcome<()> {
        if handle.is_null() {
            return Err(NULL);
        }
        // SAFETY: C has pointers to this memory, and Rust has no references.
        let exported = unsafe { exporter()?.region_handle(address, provider) }?;
        let is_exported = |found: &TrackedRegion| found.region.id().get() == exported.region_id();
        let region = tracker::find_where(address, is_exported).ok_or(FREED)?.region;
        part_around(&region, address).ok_or(umf_core::Error::NotAllocated { address })?;
        let exported = IpcHandle::at(&region, address, &exported)?;
        // SAFETY: C guarantees room for as many bytes as the provider's handle size.
        unsafe { handle.cast::<IpcHandle>().write_unaligned(exported) };
        Ok(())
    }

    /// Checks that the bytes are a valid handle.
    pub(crate) fn check(handle: *mut c_void) -> Outcome<()> {
        let handle = read(handle)?;
        umf_ipc::Handle::from_bytes(&handle.handle).map_err(umf_ipc::Error::from)?;
        handle.offset().map(|_| ()).ok_or(CORRUPT)
    }

    /// Importers of a provider. Each opening of a handle has an address of its own, as in the
    /// original, up to [`MOST_ADDRESSES`]: two pools may open it through one provider of the program that forwards here.
    #[derive(Default)]
    pub(crate) struct ImporterChain {
        importers: OwnImporters,
        next: OnceLock<Box<Self>>,
    }

    impl ImporterChain {
        /// Opens a handle by the first importer that does not have it open.
        pub(crate) fn open(
            &self,
            handle: *mut c_void,
            imports: impl Fn() -> Vec<Arc<dyn Import>>,
            of: usize,
        ) -> Outcome<*mut c_void> {
            let handle = read(handle)?;
            let (mut chain, mut before) = (self, None);
            for length in 1.. {
                let (mapping, address) = handle.open(&chain.importers, &imports)?;
                // A driver may return one address for each opening, and counts them itself.
                let may_repeat = before == Some(address) || length == MOST_ADDRESSES;
                // SAFETY: the provider closes its openings when it is destroyed, before its
                // importers.
                if unsafe { openings::insert_of_provider(address, mapping, of, may_repeat) } {
                    return Ok(core::ptr::with_exposed_provenance_mut(address));
                }
                before = Some(address);
                chain = chain.next.get_or_init(Box::default);
            }
            unreachable!("the last importer may repeat an address")
        }
    }

    /// Closes one opening through the provider with this state.
    pub(crate) fn close(memory: *mut c_void, of: usize) -> Outcome<()> {
        openings::close_of_provider(memory.addr(), of)
    }
}
