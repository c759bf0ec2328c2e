//! [`Foreign`]: a provider that C gave as a table of functions, as this library's pools see it.

use core::ffi::c_void;
use core::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use umf::plugin::ops::{Operations, State};
use umf_core::{
    Address, Error, Export, Import, ImportRequest, Imported, Layout, MemoryKind, NativeBytes, NativeExport,
    Provider, ProviderKind, Purge, Region, Result, SplitMerge, Visibility,
};

use umf_core::provider::NATIVE_BYTES;

use super::said::say;
use crate::boundary::{Code, NOT_SUPPORTED, SUCCESS};

const OWNER: &str = "a provider that the program brought";
/// What stands in handles.
pub(super) const KIND: ProviderKind = match ProviderKind::new("c-provider") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};
/// The largest IPC handle: what does not fit into ours lies in a file of memory beside it.
const LARGEST_HANDLE: usize = 1 << 20;

/// A foreign provider. It lives as long as the program keeps the provider, which is longer than its pools, as UMF's header
/// asks.
pub(crate) struct Foreign {
    operations: Operations,
    state: State,
    name: String,
    page: usize,
    /// Bytes of its IPC handles, if it has any.
    handle_size: Option<usize>,
}

// SAFETY: UMF requires of every provider that all its operations may be called by several threads at once; the state is
// nothing but handed back to it.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

fn check(code: Code, call: &'static str) -> Result<()> {
    say(code);
    if code == SUCCESS {
        return Ok(());
    }
    Err(match code {
        crate::boundary::OUT_OF_HOST_MEMORY | crate::boundary::OUT_OF_RESOURCES => {
            Error::OutOfMemory { size: 0, owner: OWNER, native: 0 }
        }
        crate::boundary::INVALID_ALIGNMENT => Error::BadAlignment { align: 0 },
        NOT_SUPPORTED => Error::NotSupported { what: call, owner: OWNER, native: 0 },
        code => Error::Native { call, native: code, hint: "the number is a umf_result_t" },
    })
}

fn pointer(address: Address) -> *mut c_void {
    address.as_ptr().map_or(core::ptr::null_mut(), <*mut u8>::cast)
}

impl Foreign {
    pub(super) fn new(operations: Operations, state: State, name: String) -> Arc<Self> {
        let mut page = 0;
        // SAFETY: a function of the table, with a place for its result; NULL asks for what holds for all memory.
        let code = unsafe { (operations.get_min_page_size)(state, core::ptr::null(), &raw mut page) };
        let page = if code == SUCCESS && page.is_power_of_two() { page } else { 1 };
        let handle_size = operations.ipc.and_then(|ipc| {
            let mut size = 0;
            // SAFETY: as above.
            let code = unsafe { (ipc.size)(state, &raw mut size) };
            (code == SUCCESS && size > 0 && size <= LARGEST_HANDLE).then_some(size)
        });
        Arc::new(Self { operations, state, name, page, handle_size })
    }

    /// Opens what the same kind of provider exported in another process.
    pub(crate) fn import_of(self: &Arc<Self>) -> Option<Arc<dyn Import>> {
        self.handle_size.is_some().then(|| Arc::new(Opens(Arc::clone(self))) as Arc<dyn Import>)
    }

    fn allocate_at(&self, size: usize, align: usize) -> Result<Address> {
        let mut memory = core::ptr::null_mut();
        // SAFETY: a function of the table, with a place for its result.
        let code = unsafe { (self.operations.alloc)(self.state, size, align, &raw mut memory) };
        check(code, "alloc")?;
        Address::new(memory.expose_provenance()).filter(|_| !memory.is_null()).ok_or(Error::OutOfMemory {
            size,
            owner: OWNER,
            native: 0,
        })
    }

    fn free_at(&self, address: Address, size: usize) -> Result<()> {
        // SAFETY: memory that the provider allocated, in this size, and that nobody uses.
        check(unsafe { (self.operations.free)(self.state, pointer(address), size) }, "free")
    }
}

// SAFETY: regions are what the program's provider allocated, which is trusted in that as UMF trusts it. As it does not say
// what its memory is, the CPU does not touch it.
unsafe impl Provider for Foreign {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn visibility(&self) -> Visibility {
        // Whether a child shares the memory is not known; the original's pools work on in a child.
        Visibility::Private
    }

    fn page_size(&self) -> usize {
        self.page
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        // UMF's providers take 0 for "any".
        let align = if layout.align() <= self.page { 0 } else { layout.align() };
        let base = self.allocate_at(layout.size(), align)?;
        if !base.is_aligned_to(layout.align()) {
            self.free_at(base, layout.size())?;
            return Err(Error::BadAlignment { align: layout.align() });
        }
        Ok(Region::new(base, layout.size()))
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        self.free_at(region.base(), region.size())
    }

    fn export(&self) -> Option<&dyn Export> {
        self.handle_size.is_some().then_some(self)
    }

    fn purge(&self) -> Option<&dyn Purge> {
        (self.operations.purge_lazy.is_some() || self.operations.purge_force.is_some()).then_some(self)
    }

    fn split_merge(&self) -> Option<&dyn SplitMerge> {
        self.operations.split_merge.is_some().then_some(self)
    }
}

impl Purge for Foreign {
    unsafe fn purge_lazy(&self, base: Address, size: usize) -> Result<()> {
        let purge = self.operations.purge_lazy.ok_or(Error::NotSupported {
            what: "purging",
            owner: OWNER,
            native: 0,
        })?;
        // SAFETY: a range of the provider's memory whose content nobody needs.
        check(unsafe { purge(self.state, pointer(base), size) }, "ext_purge_lazy")
    }

    unsafe fn purge_forced(&self, base: Address, size: usize) -> Result<()> {
        let purge = self.operations.purge_force.ok_or(Error::NotSupported {
            what: "purging",
            owner: OWNER,
            native: 0,
        })?;
        // SAFETY: as above.
        check(unsafe { purge(self.state, pointer(base), size) }, "ext_purge_force")
    }
}

impl SplitMerge for Foreign {
    unsafe fn split(&self, region: Region, first: usize) -> Result<(Region, Region)> {
        let both = self.operations.split_merge.ok_or(UNSPLIT)?;
        let high = region.base().checked_add(first as u64).ok_or(UNSPLIT)?;
        check(
            // SAFETY: a live region of this provider; `first` lies inside.
            unsafe { (both.split)(self.state, pointer(region.base()), region.size(), first) },
            "ext_allocation_split",
        )?;
        Ok((Region::new(region.base(), first), Region::new(high, region.size() - first)))
    }

    unsafe fn merge(&self, low: Region, high: Region) -> Result<Region> {
        let both = self.operations.split_merge.ok_or(UNSPLIT)?;
        let total = low.size() + high.size();
        let (first, second) = (pointer(low.base()), pointer(high.base()));
        // SAFETY: live regions of this provider, side by side.
        check(unsafe { (both.merge)(self.state, first, second, total) }, "ext_allocation_merge")?;
        Ok(Region::new(low.base(), total))
    }
}

const UNSPLIT: Error = Error::NotSupported { what: "splitting and merging", owner: OWNER, native: 0 };

/// Bytes aligned as for any structure in C.
fn aligned(len: usize) -> Vec<u128> {
    vec![0; len.div_ceil(size_of::<u128>())]
}

fn file_with(bytes: &[u8]) -> Result<OwnedFd> {
    let failed = |call| move |errno: std::io::Error| Error::native(call, errno.raw_os_error().unwrap_or(0));
    let file = umf_ipc::system::memfd("umf-c-handle", bytes.len() as u64);
    let file = file.map_err(|errno| Error::native("memfd_create", errno.raw_os_error()))?;
    let file = std::fs::File::from(file);
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).map_err(failed("write"))?;
    Ok(file.into())
}

impl Export for Foreign {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        let unsupported = Error::NotSupported { what: "IPC handles", owner: OWNER, native: 0 };
        let (ipc, len) = self.operations.ipc.zip(self.handle_size).ok_or(unsupported)?;
        let mut bytes = aligned(len);
        let place = bytes.as_mut_ptr().cast::<c_void>();
        check(
            // SAFETY: a live region of this provider, and room for as many bytes as it said that it needs.
            unsafe { (ipc.get)(self.state, pointer(region.base()), region.size(), place) },
            "ext_get_ipc_handle",
        )?;
        // SAFETY: the vector has at least that many bytes, all initialised.
        let bytes = unsafe { core::slice::from_raw_parts(place.cast::<u8>(), len) };
        if len <= NATIVE_BYTES {
            return Ok(NativeExport::from_bytes(NativeBytes::new(bytes)?, region.id().get()));
        }
        let mut export = NativeExport::from_fd(Arc::new(file_with(bytes)?), 0);
        export.isolated = true;
        export.allocation_id = region.id().get();
        Ok(export)
    }

    fn unexport(&self, _region: &Region, export: NativeExport) -> Result<()> {
        let Some((ipc, len)) = self.operations.ipc.zip(self.handle_size) else { return Ok(()) };
        let mut bytes = bytes_of(export.fd.as_deref(), export.native.as_slice(), len)?;
        // SAFETY: the bytes of a handle of this provider.
        check(unsafe { (ipc.put)(self.state, bytes.as_mut_ptr().cast()) }, "ext_put_ipc_handle")
    }

    fn uses_fd_per_export(&self) -> bool {
        self.handle_size.is_some_and(|size| size > NATIVE_BYTES)
    }
}

/// The bytes of a handle, of exactly this length.
fn bytes_of(file: Option<&OwnedFd>, native: &[u8], len: usize) -> Result<Vec<u128>> {
    let mut bytes = aligned(len);
    // SAFETY: the vector has at least that many bytes, all initialised.
    let place = unsafe { core::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<u8>(), len) };
    let wrong = Error::Untrusted { why: "the IPC handle is not as long as those of this provider" };
    match file {
        None if native.len() == len => place.copy_from_slice(native),
        Some(file) if len > NATIVE_BYTES => {
            let file = std::fs::File::from(file.as_fd().try_clone_to_owned().map_err(|_| wrong)?);
            if !file.metadata().is_ok_and(|file| file.is_file() && file.len() == len as u64) {
                return Err(wrong);
            }
            std::os::unix::fs::FileExt::read_exact_at(&file, place, 0).map_err(|_| wrong)?;
        }
        _ => return Err(wrong),
    }
    Ok(bytes)
}

/// Opens memory of a foreign provider.
struct Opens(Arc<Foreign>);

// SAFETY: what the program's provider opened stays until it is closed, as UMF's header says.
unsafe impl Import for Opens {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn import(&self, request: ImportRequest) -> Result<Imported> {
        let foreign = &self.0;
        let unsupported = Error::NotSupported { what: "IPC handles", owner: OWNER, native: 0 };
        let (ipc, len) = foreign.operations.ipc.zip(foreign.handle_size).ok_or(unsupported)?;
        let native = request.native.get(..request.native_len).unwrap_or_default();
        let mut bytes = bytes_of(request.fd.as_ref(), native, len)?;
        let mut memory = core::ptr::null_mut();
        // SAFETY: as many bytes as the provider's handles have, and a place for the result.
        let code = unsafe { (ipc.open)(foreign.state, bytes.as_mut_ptr().cast(), &raw mut memory) };
        check(code, "ext_open_ipc_handle")?;
        let outside = Error::Untrusted { why: "the provider opened a handle at no address" };
        let base = Address::new(memory.expose_provenance()).filter(|_| !memory.is_null()).ok_or(outside)?;
        Ok(Imported::device(base, request.size))
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        let Some(ipc) = self.0.operations.ipc else { return Ok(()) };
        // SAFETY: opened by `import`, and nobody uses it.
        let code = unsafe { (ipc.close)(self.0.state, pointer(imported.base), imported.size) };
        check(code, "ext_close_ipc_handle")
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "provider {:?} of the program", self.name)
    }
}
