//! The heap of a preloaded `libumf_proxy.so`, as other copies of umf in the same process use it:
//! [`umf_runtime::preloaded_heap`] has the table of its functions.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

use umf_core::Address;
use umf_runtime::preloaded_heap::{
    Block, Exports, HANDLE, Heap, LIMIT, NAME, NOT_FOUND, NOT_SHARED, OK, PRIVATE,
};

use crate::{Allow, Exchange, ExporterSettings, LimitPolicy, Mode, Ptracer};

/// The address of the table of functions; [`UNKNOWN`] before the first lookup, [`NONE`] if there is
/// no heap.
static TABLE: AtomicUsize = AtomicUsize::new(UNKNOWN);
const UNKNOWN: usize = 0;
const NONE: usize = 1;

/// The heap of a preloaded `libumf_proxy.so`.
#[derive(Clone, Copy, Debug)]
pub struct PreloadedHeap(&'static Heap);

/// Why memory of the heap was not exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unexported {
    /// The address lies in no live block.
    NotFound,
    /// The heap is private, or inherited from the parent of this process.
    Private,
    /// A limit of the settings or of the system was reached.
    Limit,
    /// Another error.
    Failed,
}

impl PreloadedHeap {
    /// Returns the heap, if `libumf_proxy.so` was preloaded. The first call looks it up.
    #[inline]
    #[must_use]
    pub fn get() -> Option<Self> {
        let known = match TABLE.load(Ordering::Acquire) {
            UNKNOWN => Self::look_up(),
            known => known,
        };
        // SAFETY: this versioned name denotes such a table, in a library that is never unloaded.
        (known != NONE).then(|| Self(unsafe { &*core::ptr::with_exposed_provenance::<Heap>(known) }))
    }

    #[cold]
    fn look_up() -> usize {
        // A preloaded library was loaded before this one.
        // SAFETY: a C string; the lookup covers the libraries that the program was started with.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr()) };
        let found = if found.is_null() { NONE } else { found.expose_provenance() };
        TABLE.store(found, Ordering::Release);
        found
    }

    /// Returns the table of its functions.
    #[must_use]
    pub const fn functions(self) -> &'static Heap {
        self.0
    }

    /// Returns whether other processes may map its memory.
    #[must_use]
    pub fn is_shared(self) -> bool {
        (self.0.kind)() != PRIVATE
    }

    /// Returns the live block that holds an address.
    #[must_use]
    pub fn block_at(self, address: Address) -> Option<Block> {
        let mut block = Block { base: 0, size: 0 };
        let address = address.as_ptr()?.cast::<c_void>();
        // SAFETY: a function of the table, with a place for its result.
        (unsafe { (self.0.find)(address, &raw mut block) } == OK).then_some(block)
    }

    /// Exports the live block that holds an address, until it is freed. Returns the bytes of its
    /// handle, and the block. The settings of the first export apply to all.
    ///
    /// # Errors
    /// Why not.
    pub fn export(
        self,
        address: Address,
        settings: &PreloadedExports,
    ) -> Result<([u8; HANDLE], Block), Unexported> {
        let (mut handle, mut block) = ([0; HANDLE], Block { base: 0, size: 0 });
        let place = address.as_ptr().ok_or(Unexported::NotFound)?;
        let settings = settings.as_table();
        // SAFETY: a function of the table, with places for its results.
        match unsafe { (self.0.export)(place.cast(), &raw const settings, &raw mut handle, &raw mut block) } {
            OK => {}
            NOT_FOUND => return Err(Unexported::NotFound),
            NOT_SHARED => return Err(Unexported::Private),
            LIMIT => return Err(Unexported::Limit),
            _ => return Err(Unexported::Failed),
        }
        let is_inside = place.addr().checked_sub(block.base).is_some_and(|offset| offset < block.size);
        if is_inside { Ok((handle, block)) } else { Err(Unexported::NotFound) }
    }
}

/// The settings of exports, in the form that the heap takes.
#[derive(Clone, Debug)]
pub struct PreloadedExports {
    table: Exports,
    directory: Option<CString>,
}

// SAFETY: `table` has no pointer: `as_table` adds it.
unsafe impl Send for PreloadedExports {}
// SAFETY: as above.
unsafe impl Sync for PreloadedExports {}

impl PreloadedExports {
    /// Converts the settings of an exporter.
    #[must_use]
    pub fn new(settings: &ExporterSettings) -> Self {
        let mut exchange = [0; 4];
        if let Exchange::Order(modes) = &settings.exchange {
            for (place, mode) in exchange.iter_mut().zip(modes) {
                *place = match mode {
                    Mode::Procfs => 2,
                    Mode::Socket => 3,
                    Mode::Directory => 4,
                    _ => 1,
                };
            }
        }
        let table = Exports {
            exchange,
            limit_is_hard: u32::from(settings.limit == LimitPolicy::Hard),
            ptracer: match settings.ptracer {
                Ptracer::None => 0,
                Ptracer::Any => -1,
                Ptracer::Process(process) => i64::from(process),
            },
            max_created_handles: settings.max_created_handles,
            directory: core::ptr::null(),
            allow: match settings.allow {
                Allow::SameUser => 0,
                Allow::Group => 1,
                Allow::Handle => 2,
            },
        };
        // A path with a zero byte is no path, and is not used.
        let path = settings.directory.as_ref();
        let directory = path.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
        Self { table, directory }
    }

    fn as_table(&self) -> Exports {
        let directory = self.directory.as_deref().map_or(core::ptr::null(), CStr::as_ptr);
        Exports { directory, ..self.table }
    }
}
