//! [`PluginImport`]: opens what the same plugin exported in another process.

use core::fmt;
use std::sync::Arc;

use intrusive_collections::{KeyAdapter, RBTree, RBTreeLink, intrusive_adapter};
use umf_core::{
    Access, Address, Error, Import, ImportRequest, Imported, MemoryKind, NativeBytes, ProviderKind, Result,
};
use umf_sync::Lock;

use super::instance::Instance;

/// Opens handles of a plugin's memory. Got from [`super::PluginProvider::importer`].
///
/// The bytes of a handle are refused unless they are as long as the plugin's handles are; what is in them is for the
/// plugin to judge. Of host memory it is checked that all of it is mapped. What a plugin opens can always be
/// written; where it is host memory, a read-only import has its pages protected.
pub struct PluginImport {
    instance: Arc<Instance>,
    kind: ProviderKind,
    memory_kind: MemoryKind,
    handle_size: usize,
}

/// An import that is open. It keeps the plugin that opened it as it is, whatever becomes of the provider.
struct Opened {
    link: RBTreeLink,
    base: Address,
    size: usize,
    instance: Arc<Instance>,
}

intrusive_adapter!(ByBase = Box<Opened>: Opened { link: RBTreeLink });

impl<'a> KeyAdapter<'a> for ByBase {
    type Key = u64;
    fn get_key(&self, opened: &'a Opened) -> u64 {
        opened.base.to_bits()
    }
}

/// All open imports of all plugins: one may be released through another object than the one that opened it.
static OPENED: Lock<Option<RBTree<ByBase>>> = Lock::new(None);

fn holds(base: Address) -> bool {
    OPENED.lock().as_ref().is_some_and(|opened| !opened.find(&base.to_bits()).is_null())
}

fn remove(base: Address, size: usize) -> Option<Box<Opened>> {
    let mut opened = OPENED.lock();
    let mut cursor = opened.as_mut()?.find_mut(&base.to_bits());
    cursor.get().filter(|opened| opened.size == size)?;
    cursor.remove()
}

impl PluginImport {
    pub(super) const fn new(
        instance: Arc<Instance>,
        kind: ProviderKind,
        memory_kind: MemoryKind,
        handle_size: usize,
    ) -> Self {
        Self { instance, kind, memory_kind, handle_size }
    }

    fn native_of(&self, request: &ImportRequest) -> Result<NativeBytes> {
        let refused = |why| Err(Error::Untrusted { why });
        if request.fd.is_some() {
            return refused("the export has a file descriptor, which exports of plugins do not have");
        }
        if request.offset != 0 || request.size == 0 {
            return refused("the export has an offset or no size, which exports of plugins do not have");
        }
        match request.native.get(..request.native_len) {
            Some(bytes) if bytes.len() == self.handle_size => NativeBytes::new(bytes),
            _ => refused("the native bytes are not as many as an IPC handle of this plugin has"),
        }
    }

    /// What is known of memory that the plugin has just opened.
    fn examine(&self, base: Address, size: usize, access: Access) -> Result<Imported> {
        if base.checked_add(size as u64).is_none() {
            return Err(Error::Untrusted { why: "the region does not fit into the address space" });
        }
        if !self.memory_kind.is_host_accessible() {
            return Ok(Imported::device(base, size));
        }
        let pages = Pages::around(base, size)?;
        if self.memory_kind == MemoryKind::Host && pages.mapped() < pages.len {
            let why = "the plugin opened less memory than the handle says that there is";
            return Err(Error::Untrusted { why });
        }
        if access == Access::ReadOnly {
            // Protecting pages that somebody else opened for writing would take them away from there.
            if self.memory_kind != MemoryKind::Host || holds(base) {
                let owner = self.instance.owner();
                return Err(Error::NotSupported { what: "this import as read-only", owner, native: 0 });
            }
            pages.protect(libc::PROT_READ)?;
        }
        Ok(Imported::host(base, size, access))
    }
}

/// The pages of the system that memory lies in.
struct Pages {
    start: *mut libc::c_void,
    len: usize,
}

impl Pages {
    fn around(base: Address, size: usize) -> Result<Self> {
        const PAGE: usize = 4096;
        let outside = Error::Untrusted { why: "the plugin opened a handle outside of the address space" };
        let start = base.as_ptr().ok_or(outside)?;
        let inside = start.addr() % PAGE;
        let len =
            size.checked_add(inside).and_then(|len| len.checked_next_multiple_of(PAGE)).ok_or(outside)?;
        Ok(Self { start: start.wrapping_sub(inside).cast(), len })
    }

    /// How many bytes from the start on are mapped, of the same file: what the plugin has opened, and not what happens to lie behind it
    /// (`proc_pid_maps(5)`). At most as many as there should be; 0 if nobody can tell.
    fn mapped(&self) -> usize {
        let maps = std::fs::read_to_string("/proc/thread-self/maps").unwrap_or_default();
        let (start, mut end, mut file) = (self.start.addr(), self.start.addr(), None);
        for mapping in maps.lines().filter_map(SystemMapping::parse) {
            let goes_on = match file {
                None => mapping.from <= start && start < mapping.to,
                Some(file) => mapping.from == end && mapping.file == file,
            };
            if goes_on {
                (end, file) = (mapping.to, Some(mapping.file));
            } else if file.is_some() {
                break;
            }
        }
        (end - start).min(self.len)
    }

    /// Of the `size` bytes from `base` on, which these pages are around, how many are mapped.
    fn given(&self, base: Address, size: usize) -> usize {
        let inside = (base.to_bits() as usize).saturating_sub(self.start.addr());
        self.mapped().saturating_sub(inside).min(size)
    }

    fn protect(&self, protection: i32) -> Result<()> {
        // SAFETY: the plugin has opened this memory just now, and nobody else has it.
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

// SAFETY: what the plugin opened stays until it is closed, which `release` alone does; the plugin is neither finalised
// nor unloaded before that. That it cannot shrink is what the plugin is trusted in.
unsafe impl Import for PluginImport {
    fn kind(&self) -> ProviderKind {
        self.kind
    }

    fn import(&self, request: ImportRequest) -> Result<Imported> {
        let native = self.native_of(&request)?;
        let base = self.instance.open_handle(&native)?;
        let size = request.size;
        let imported = match self.examine(base, size, request.access) {
            Ok(imported) => imported,
            Err(error) => {
                // The size is the handle's, and so a stranger's: a plugin that is told to unmap more than it has mapped takes what
                // lies behind with it. Where nobody can tell how much it is, it stays open.
                let size = match self.memory_kind {
                    MemoryKind::Host => Pages::around(base, size).map_or(0, |pages| pages.given(base, size)),
                    _ => size,
                };
                if size != 0 {
                    // SAFETY: opened above, and nobody has seen it. What the plugin says to that changes nothing.
                    let _ = unsafe { self.instance.close_handle(base, size) };
                }
                return Err(error);
            }
        };
        let instance = Arc::clone(&self.instance);
        let opened = Box::new(Opened { link: RBTreeLink::new(), base, size, instance });
        OPENED.lock().get_or_insert_with(|| RBTree::new(ByBase::NEW)).insert(opened);
        Ok(imported)
    }

    unsafe fn release(&self, imported: Imported) -> Result<()> {
        let address = imported.base;
        let opened = remove(address, imported.size).ok_or(Error::NotAllocated { address })?;
        // SAFETY: it was open until now, and the caller says that nobody uses it.
        unsafe { opened.instance.close_handle(address, opened.size) }
    }
}

impl fmt::Debug for PluginImport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "import of {} memory by {}", self.kind, self.instance.owner())
    }
}
