//! Exports of regions, and [`PluginImport`], which opens what the same plugin exported in another
//! process: IPC handles of the plugin, or descriptors that it names.

use core::fmt;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use umf_core::provider::NATIVE_BYTES;
use umf_core::{
    Access, Address, Error, Export, Import, ImportRequest, Imported, MemoryKind, NativeBytes, NativeExport,
    ProviderKind, Region, Result,
};
use umf_os::{FileRange, Mapping, map_error, page_size};
use umf_sync::Lock;

use super::instance::{HandleBytes, Instance};
use super::provider::PluginProvider;

impl Export for PluginProvider {
    /// Exports a region. A handle of up to 64 bytes is the export's native bytes; a longer one is
    /// in a memfd.
    ///
    /// If the plugin names descriptors, the export has a duplicate of the region's.
    fn export(&self, region: &Region) -> Result<NativeExport> {
        self.check_not_frozen()?;
        self.regions.lock().get(region)?;
        if self.has_descriptors() {
            return self.export_fd(region);
        }
        let len = self.handle_size().ok_or(self.instance.unsupported("IPC handles"))?;
        let mut bytes = self.instance.get_handle(region.base(), region.size(), len)?;
        if len <= NATIVE_BYTES {
            let native = NativeBytes::new(bytes.as_mut_slice())?;
            return Ok(NativeExport::from_bytes(native, region.id().get()));
        }
        let file = match memfd_with(bytes.as_mut_slice()) {
            Ok(file) => file,
            Err(error) => {
                // The first error is returned.
                let _ = self.instance.put_handle(bytes);
                return Err(error);
            }
        };
        let mut export = NativeExport::from_fd(Arc::new(file), 0);
        export.isolated = true;
        export.allocation_id = region.id().get();
        Ok(export)
    }

    fn unexport(&self, _region: &Region, export: NativeExport) -> Result<()> {
        if self.is_frozen() || self.has_descriptors() {
            return Ok(());
        }
        let len = self.handle_size().ok_or(self.instance.unsupported("IPC handles"))?;
        let file = export.fd.as_deref().map(OwnedFd::try_clone).transpose().map_err(|_| WRONG_LENGTH)?;
        self.instance.put_handle(read_handle(file, export.native.as_slice(), len)?)
    }

    fn uses_fd_per_export(&self) -> bool {
        self.has_descriptors() || self.handle_size().is_some_and(|size| size > NATIVE_BYTES)
    }
}

impl PluginProvider {
    fn handle_size(&self) -> Option<usize> {
        match self.importer()?.format {
            Format::Handles(size) => Some(size),
            Format::Descriptors => None,
        }
    }

    fn has_descriptors(&self) -> bool {
        self.importer().is_some_and(|import| matches!(import.format, Format::Descriptors))
    }

    /// Exports a region with a duplicate of the descriptor that the plugin names.
    fn export_fd(&self, region: &Region) -> Result<NativeExport> {
        let (fd, offset) = self.instance.fd_of(region.base(), region.size())?;
        // SAFETY: duplicates a number, and reads no memory.
        let fd = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        if fd < 0 {
            let error = std::io::Error::last_os_error();
            return Err(Error::Native {
                call: "fcntl(F_DUPFD_CLOEXEC) of the descriptor that the plugin named",
                native: error.raw_os_error().unwrap_or(0),
                hint: "the plugin must keep it open while the allocation is live",
            });
        }
        // SAFETY: the fd is new, and no other code owns it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        // Any other file has no bytes that an importer could map.
        let metadata = file.metadata().ok().filter(Metadata::is_file);
        let len = metadata.map_or(0, |metadata| metadata.len());
        let is_inside = offset.checked_add(region.size() as u64).is_some_and(|end| end <= len);
        if !is_inside || !offset.is_multiple_of(page_size() as u64) {
            return Err(self.instance.contract_violation(
                "named a descriptor and an offset whose file does not have the allocation",
            ));
        }
        if is_unsealed_memfd(&file) {
            return Err(self.instance.contract_violation(
                "named a memfd that is not sealed against shrinking, which no importer opens",
            ));
        }
        let mut export = NativeExport::from_fd(Arc::new(file.into()), offset);
        export.allocation_id = region.id().get();
        Ok(export)
    }
}

/// Returns whether a file is a memfd that any process may truncate. Named files of tmpfs have
/// `F_SEAL_SEAL`, and other files have no seals at all.
fn is_unsealed_memfd(file: &File) -> bool {
    // SAFETY: reads the seals of an open descriptor.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & (libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL) == 0
}

/// Creates a memfd with these bytes.
fn memfd_with(bytes: &[u8]) -> Result<OwnedFd> {
    let native = |call| move |error: std::io::Error| Error::native(call, error.raw_os_error().unwrap_or(0));
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"umf-c-handle".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(native("memfd_create")(std::io::Error::last_os_error()));
    }
    // SAFETY: the fd is new, and no other code owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.write_all_at(bytes, 0).map_err(native("write"))?;
    Ok(file.into())
}

const WRONG_LENGTH: Error =
    Error::Untrusted { why: "the length of the IPC handle is not that of this provider's handles" };

/// Reads a handle of exactly `len` bytes from the native bytes or the file of an export.
fn read_handle(file: Option<OwnedFd>, native: &[u8], len: usize) -> Result<HandleBytes> {
    let mut bytes = HandleBytes::zeroed(len);
    match file.map(File::from) {
        None if native.len() == len => bytes.as_mut_slice().copy_from_slice(native),
        Some(file) if len > NATIVE_BYTES && native.is_empty() => {
            if !file.metadata().is_ok_and(|file| file.is_file() && file.len() == len as u64) {
                return Err(WRONG_LENGTH);
            }
            file.read_exact_at(bytes.as_mut_slice(), 0).map_err(|_| WRONG_LENGTH)?;
        }
        _ => return Err(WRONG_LENGTH),
    }
    Ok(bytes)
}

/// The format of a plugin's exports.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Format {
    /// IPC handles of the plugin, of this size in bytes.
    Handles(usize),
    /// Descriptors and offsets that the plugin names.
    Descriptors,
}

/// An importer of files whose descriptors a plugin named, for processes that do not load it.
///
/// A file that is not sealed can be truncated by any process that may write to it, and then an
/// access to a lost page raises SIGBUS. Use it only if all these processes are trusted. A memfd
/// must be sealed against shrinking.
#[derive(Clone, Copy, Debug)]
pub struct FdImport {
    kind: ProviderKind,
}

impl FdImport {
    /// Returns an importer of exports of the kind `kind`, for a program that trusts all processes
    /// that can write to the files it opens. The kind is the name of the plugin's set in the
    /// exporter's settings, or [`super::PluginLoader::kind`].
    #[must_use]
    pub const fn trust_writers(kind: ProviderKind) -> Self {
        Self { kind }
    }
}

// SAFETY: the mapping keeps the file open, and exists until it is released. The program vouches, by
// `trust_writers` or by loading the plugin, that no process truncates the file.
unsafe impl Import for FdImport {
    fn kind(&self) -> ProviderKind {
        self.kind
    }

    fn import(&self, mut request: ImportRequest) -> Result<Imported> {
        let untrusted = |why| Error::Untrusted { why };
        let file = request.fd.take().map(File::from);
        let file = file.ok_or(untrusted("the handle needs a file descriptor, and none was received"))?;
        let metadata = file.metadata().map_err(|_| untrusted("fstat does not support the descriptor"))?;
        if !metadata.is_file() {
            return Err(untrusted("the descriptor is not a regular file"));
        }
        if is_unsealed_memfd(&file) {
            return Err(untrusted("the descriptor is an unsealed memfd, which any process may truncate"));
        }
        let FileRange { offset, size } = FileRange::of(&request, page_size(), metadata.len())?;
        let is_writable = request.access == Access::ReadWrite;
        let mapping = Mapping::of_file(file.as_fd(), offset, size, page_size(), is_writable)
            .map_err(|errno| map_error(size, "a plugin's file", errno))?;
        Ok(Imported::host(mapping.leak(), size, request.access))
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        // SAFETY: `import` mapped and leaked this range, and by the caller's contract it is not in
        // use.
        let mapping = unsafe { Mapping::of_region(&Region::new(imported.base, imported.size)) };
        mapping.map_or(Ok(()), Mapping::unmap_or_leak)
    }
}

/// An importer of a plugin's exports, from [`PluginProvider::importer`].
///
/// Descriptors are mapped as by [`FdImport`]. The rest of this page is about IPC handles.
///
/// It checks the length of a handle; the plugin checks the content. For host memory it checks that
/// the whole range is mapped. Memory that a plugin opens is always writable; a read-only import of
/// host memory is protected with `mprotect(2)`.
pub struct PluginImport {
    instance: Arc<Instance>,
    kind: ProviderKind,
    memory_kind: MemoryKind,
    format: Format,
}

/// The number of open imports of all plugins at each address.
static OPEN: Lock<BTreeMap<u64, u32>> = Lock::new(BTreeMap::new());

impl PluginImport {
    pub(crate) const fn new(
        instance: Arc<Instance>,
        kind: ProviderKind,
        memory_kind: MemoryKind,
        format: Format,
    ) -> Self {
        Self { instance, kind, memory_kind, format }
    }

    /// Checks, and protects if read-only, memory that the plugin opened.
    fn check_mapping(&self, base: Address, size: usize, access: Access) -> Result<Imported> {
        if base.checked_add(size as u64).is_none() {
            return Err(Error::Untrusted { why: "the region does not fit into the address space" });
        }
        if !self.memory_kind.is_host_accessible() {
            return Ok(Imported::device(base, size));
        }
        let pages = MappedPages::around(base, size)?;
        if self.memory_kind == MemoryKind::Host && pages.mapped() < pages.len {
            let why = "the plugin mapped less memory than the size of the export";
            return Err(Error::Untrusted { why });
        }
        if access == Access::ReadOnly {
            // Other imports of the same pages may be writable, and protecting them would be SIGSEGV
            // there.
            if self.memory_kind != MemoryKind::Host || OPEN.lock().contains_key(&base.to_bits()) {
                return Err(self.instance.unsupported("this import as read-only"));
            }
            pages.protect(libc::PROT_READ)?;
        }
        Ok(Imported::host(base, size, access))
    }
}

/// The range of pages that contains an import.
struct MappedPages {
    start: *mut libc::c_void,
    len: usize,
}

impl MappedPages {
    fn around(base: Address, size: usize) -> Result<Self> {
        const PAGE: usize = 4096;
        let outside = Error::Untrusted { why: "the plugin opened a handle outside of the address space" };
        let start = base.as_ptr().ok_or(outside)?;
        let inside = start.addr() % PAGE;
        let len =
            size.checked_add(inside).and_then(|len| len.checked_next_multiple_of(PAGE)).ok_or(outside)?;
        Ok(Self { start: start.wrapping_sub(inside).cast(), len })
    }

    /// Returns how many bytes from the start are mapped contiguously from one file, at most `len`
    /// (`proc_pid_maps(5)`). Returns 0 without `/proc`. A following mapping of another file is not
    /// part of the import.
    fn mapped(&self) -> usize {
        let maps = std::fs::read_to_string("/proc/thread-self/maps").unwrap_or_default();
        let (start, mut end, mut file) = (self.start.addr(), self.start.addr(), None);
        for mapping in maps.lines().filter_map(SystemMapping::parse) {
            let is_contiguous = match file {
                None => mapping.from <= start && start < mapping.to,
                Some(file) => mapping.from == end && mapping.file == file,
            };
            if is_contiguous {
                (end, file) = (mapping.to, Some(mapping.file));
            } else if file.is_some() {
                break;
            }
        }
        (end - start).min(self.len)
    }

    /// Returns how many of the `size` bytes from `base` are mapped.
    fn mapped_from(&self, base: Address, size: usize) -> usize {
        let inside = (base.to_bits() as usize).saturating_sub(self.start.addr());
        self.mapped().saturating_sub(inside).min(size)
    }

    fn protect(&self, protection: i32) -> Result<()> {
        // SAFETY: the plugin has just mapped this memory, and it is not in use.
        if unsafe { libc::mprotect(self.start, self.len, protection) } == 0 {
            return Ok(());
        }
        let native = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Err(Error::NotSupported { what: "protecting a read-only import", owner: "this system", native })
    }
}

/// A line of `/proc/thread-self/maps`.
struct SystemMapping<'l> {
    from: usize,
    to: usize,
    /// Device and inode.
    file: (&'l str, &'l str),
}

impl<'l> SystemMapping<'l> {
    fn parse(line: &'l str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let number = |digits| usize::from_str_radix(digits, 16).ok();
        Some(Self { from: number(from)?, to: number(to)?, file: (fields.nth(2)?, fields.next()?) })
    }
}

// SAFETY: memory that the plugin opened is valid until `release` closes it; the plugin is neither
// finalised nor unloaded before. By UMF's contract the memory does not shrink.
unsafe impl Import for PluginImport {
    fn kind(&self) -> ProviderKind {
        self.kind
    }

    fn import(&self, request: ImportRequest) -> Result<Imported> {
        let Format::Handles(handle_size) = self.format else {
            return FdImport::trust_writers(self.kind).import(request);
        };
        if request.offset != 0 || request.size == 0 {
            let why = "the handle has an offset or no size, unlike handles of plugins";
            return Err(Error::Untrusted { why });
        }
        let native = request.native.get(..request.native_len).unwrap_or_default();
        let handle = read_handle(request.fd, native, handle_size)?;
        let base = self.instance.open_handle(handle)?;
        let size = request.size;
        let checked = self.check_mapping(base, size, request.access);
        if checked.is_ok() {
            *OPEN.lock().entry(base.to_bits()).or_default() += 1;
            return checked;
        }
        // The exporter chose the size. A plugin that is told to close more than it mapped would
        // unmap what follows. If the mapped size is unknown, the memory stays open.
        let size = match self.memory_kind {
            MemoryKind::Host => {
                MappedPages::around(base, size).map_or(0, |pages| pages.mapped_from(base, size))
            }
            _ => size,
        };
        if size != 0 {
            // SAFETY: the memory was opened above, and is not in use. The first error is returned.
            let _ = unsafe { self.instance.close_handle(base, size) };
        }
        checked
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        if matches!(self.format, Format::Descriptors) {
            // SAFETY: the caller's contract.
            return unsafe { FdImport::trust_writers(self.kind).release(imported) };
        }
        if let Entry::Occupied(mut count) = OPEN.lock().entry(imported.base.to_bits()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        // SAFETY: the caller's contract.
        unsafe { self.instance.close_handle(imported.base, imported.size) }
    }
}

impl fmt::Debug for PluginImport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "import of {} memory by {}", self.kind, self.instance.owner())
    }
}
