//! [`Instance`]: an initialised provider behind a table of C functions. All calls into foreign code are here, and
//! each result is validated before use.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::{NonNull, null, null_mut};
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::Mutex;

use umf_core::{Address, Error, Result};

use super::load::LoadedPlugin;
use super::table::{Code, State, Table};

const SUCCESS: Code = 0;
const OUT_OF_HOST_MEMORY: Code = 1;
const PROVIDER_SPECIFIC: Code = 2;
const INVALID_ARGUMENT: Code = 3;
const INVALID_ALIGNMENT: Code = 4;
const NOT_SUPPORTED: Code = 5;
const USER_SPECIFIC: Code = 6;
const DEPENDENCY_UNAVAILABLE: Code = 7;
const OUT_OF_RESOURCES: Code = 8;
const INVALID_CTL_PATH: Code = 9;
const UNKNOWN: Code = 0x7fff_fffe;

/// Limit of the size of an IPC handle in bytes.
const MAX_HANDLE_SIZE: usize = 1 << 20;

/// The control entry that names a descriptor for an allocation.
const FD_QUERY: &CStr = c"umf-rs.export_fd";
/// The version that a provider writes into [`FdQuery`].
const FD_QUERY_VERSION: u32 = 1;

/// The argument of [`FD_QUERY`]: `struct umf_rs_export_fd` of the crate's page.
#[repr(C)]
struct FdQuery {
    memory: *const c_void,
    size: usize,
    offset: u64,
    fd: i32,
    version: u32,
}

/// An empty `va_list`, which has at most 32 bytes in all ABIs.
#[repr(C, align(16))]
struct NoArguments([u64; 4]);

/// The bytes of an IPC handle, aligned as for any structure in C.
pub(crate) struct HandleBytes {
    words: Vec<u128>,
    len: usize,
}

impl HandleBytes {
    pub(crate) fn zeroed(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(size_of::<u128>())], len }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the vector has at least `len` initialised bytes.
        unsafe { core::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.len) }
    }

    fn as_mut_ptr(&mut self) -> *mut c_void {
        self.words.as_mut_ptr().cast()
    }
}

/// An initialised provider behind C functions. Thread-safe.
pub struct Instance {
    table: Table,
    state: State,
    /// The name in errors.
    owner: &'static str,
    /// Called with each result, before it is converted to an error.
    observe: Box<dyn Fn(Code) + Send + Sync>,
    /// The plugin, if this crate loaded it.
    loaded: Option<LoadedPlugin>,
    /// The provider was finalised, and its functions are not called any more.
    is_finalized: AtomicBool,
}

// SAFETY: UMF requires that all functions of a provider may be called by any threads at the same
// time. The state is only passed back to them.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Sync for Instance {}

impl Instance {
    /// Makes an instance that the caller finalises after it is dropped. `observe` is called with
    /// each result of `alloc`, `free`, purging and the functions for IPC handles.
    ///
    /// # Safety
    /// `initialize` of the table returned the state, and the functions of the table follow UMF's
    /// header.
    pub const unsafe fn borrowed(
        table: Table,
        state: State,
        owner: &'static str,
        observe: Box<dyn Fn(Code) + Send + Sync>,
    ) -> Self {
        Self { table, state, owner, observe, loaded: None, is_finalized: AtomicBool::new(false) }
    }

    /// Makes an instance of a loaded plugin, which is finalised when the instance is dropped.
    pub(crate) fn loaded(table: Table, state: State, loaded: LoadedPlugin) -> Result<Self> {
        let mut instance = Self {
            table,
            state,
            owner: "the plugin",
            observe: Box::new(|_| {}),
            loaded: Some(loaded),
            is_finalized: AtomicBool::new(false),
        };
        instance.owner = intern(&format!("plugin {}", instance.name()?), instance.owner);
        instance.post_initialize()?;
        Ok(instance)
    }

    /// Sets whether a forked child neither finalises nor unloads the plugin.
    pub(crate) const fn set_parent_only(&mut self, parent_only: bool) {
        if let Some(loaded) = &mut self.loaded {
            loaded.parent_only = parent_only;
        }
    }

    /// Calls `initialize`, and returns the state.
    ///
    /// # Safety
    /// The function follows UMF's header and accepts these parameters.
    pub(crate) unsafe fn initialize(table: &Table, params: Option<&CStr>) -> Result<State> {
        let mut state = null_mut();
        let params = params.map_or(null(), |text| text.as_ptr().cast());
        // SAFETY: both pointers are valid during the call.
        let code = unsafe { (table.functions.initialize)(params, &raw mut state) };
        // Without a state there is no `get_last_native_error`.
        if code == SUCCESS { Ok(state) } else { Err(error(code, "initialize", 0, 1, "the plugin", None)) }
    }

    /// Queries the control entry [`FD_QUERY`]. Returns `None` if the provider has no such entry.
    ///
    /// # Errors
    /// The provider's error.
    fn query_fd(&self, mut query: FdQuery) -> Result<Option<FdQuery>> {
        let Some(ctl) = self.table.functions.ext_ctl.filter(|_| self.table.is_1_1()) else { return Ok(None) };
        const PROGRAMMATIC: i32 = 1;
        const READ: i32 = 0;
        let mut none = NoArguments([0; 4]);
        let (argument, size, more) =
            ((&raw mut query).cast(), size_of::<FdQuery>(), (&raw mut none).cast::<c_void>());
        // SAFETY: the name is a C string, and the argument is valid for reads and writes of its
        // size during the call.
        let code = unsafe { ctl(self.state, PROGRAMMATIC, FD_QUERY.as_ptr(), argument, size, READ, more) };
        match code {
            INVALID_CTL_PATH | NOT_SUPPORTED => Ok(None),
            code => self.check(code, "ext_ctl(umf-rs.export_fd)", 0).map(|()| Some(query)),
        }
    }

    /// Returns whether the provider names file descriptors for its allocations. It answers a query
    /// without an allocation by writing the version.
    pub(crate) fn has_fds(&self) -> bool {
        let query = FdQuery { memory: null(), size: 0, offset: 0, fd: -1, version: 0 };
        // Other providers answer an unknown entry with any error.
        matches!(self.query_fd(query), Ok(Some(FdQuery { version: FD_QUERY_VERSION, .. })))
    }

    /// Returns the descriptor of an allocation and the offset of the allocation in its file. The
    /// provider owns the descriptor.
    pub(crate) fn fd_of(&self, address: Address, size: usize) -> Result<(RawFd, u64)> {
        let query = FdQuery { memory: pointer(address), size, offset: 0, fd: -1, version: 0 };
        let FdQuery { fd, offset, .. } =
            self.query_fd(query)?.ok_or(self.unsupported("a descriptor of this allocation"))?;
        if fd < 0 {
            return Err(self.contract_violation("named no descriptor for an allocation"));
        }
        Ok((fd, offset))
    }

    /// Runs the control entry `post_initialize`, as UMF does from version 1.1 on. Some providers
    /// complete their initialisation there.
    fn post_initialize(&self) -> Result<()> {
        let Some(ctl) = self.table.functions.ext_ctl.filter(|_| self.table.is_1_1()) else { return Ok(()) };
        const PROGRAMMATIC: i32 = 1;
        const RUNNABLE: i32 = 2;
        let mut none = NoArguments([0; 4]);
        let (name, more) = (c"post_initialize".as_ptr(), (&raw mut none).cast());
        // SAFETY: the name is a C string, and the entry reads no arguments.
        match unsafe { ctl(self.state, PROGRAMMATIC, name, null_mut(), 0, RUNNABLE, more) } {
            INVALID_CTL_PATH => Ok(()),
            code => self.check(code, "ext_ctl(post_initialize)", 0),
        }
    }

    /// Returns the name in errors.
    pub(crate) const fn owner(&self) -> &'static str {
        self.owner
    }

    pub(crate) const fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the error for a violation of UMF's contract.
    pub(crate) fn contract_violation(&self, how: &str) -> Error {
        let why = intern(&format!("{} {how}", self.owner), "the provider violates UMF's contract");
        Error::Untrusted { why }
    }

    /// Returns the error for an operation that the table lacks.
    pub(crate) const fn unsupported(&self, what: &'static str) -> Error {
        Error::NotSupported { what, owner: self.owner, native: 0 }
    }

    /// Returns whether the provider was finalised: its memory and mappings went with it.
    fn is_finalized(&self) -> bool {
        self.is_finalized.load(Ordering::Acquire)
    }

    /// Notes that the caller finalises the provider.
    pub(crate) fn set_finalized(&self) {
        self.is_finalized.store(true, Ordering::Release);
    }

    fn check(&self, code: Code, operation: &'static str, size: usize) -> Result<()> {
        self.check_aligned(code, operation, size, 1)
    }

    fn check_aligned(&self, code: Code, operation: &'static str, size: usize, align: usize) -> Result<()> {
        (self.observe)(code);
        if code == SUCCESS {
            return Ok(());
        }
        let last = (code == PROVIDER_SPECIFIC).then(|| self.last_native_error()).flatten();
        Err(error(code, operation, size, align, self.owner, last))
    }

    fn last_native_error(&self) -> Option<(i32, &'static str)> {
        let mut message: *const c_char = null();
        let mut native = 0;
        let get = self.table.functions.get_last_native_error;
        // SAFETY: both pointers are valid during the call.
        if unsafe { get(self.state, &raw mut message, &raw mut native) } != SUCCESS {
            return None;
        }
        if message.is_null() {
            return Some((native, ""));
        }
        // SAFETY: by UMF's contract the message is a C string that is valid until this thread's
        // next call.
        let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
        Some((native, intern(&message, "")))
    }

    pub(crate) fn name(&self) -> Result<String> {
        let mut name = null();
        // SAFETY: the pointer is valid during the call.
        let code = unsafe { (self.table.functions.get_name)(self.state, &raw mut name) };
        self.check(code, "get_name", 0)?;
        if name.is_null() {
            return Err(self.contract_violation("has no name: get_name succeeded with NULL"));
        }
        // SAFETY: by UMF's contract the name is a C string that lives as long as the provider.
        Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }

    /// Returns the granularity of allocation in bytes.
    ///
    /// # Errors
    /// The provider's error, or [`Error::Untrusted`] if the value is not a power of two.
    pub fn min_page_size(&self) -> Result<usize> {
        let mut page = 0;
        // SAFETY: NULL queries the provider's granularity; the result pointer is valid during the
        // call.
        let code = unsafe { (self.table.functions.get_min_page_size)(self.state, null(), &raw mut page) };
        self.check(code, "get_min_page_size", 0)?;
        if page.is_power_of_two() {
            Ok(page)
        } else {
            Err(self.contract_violation("has a page size that is not a power of two"))
        }
    }

    /// Returns the recommended page size, or `None` if it is unavailable or invalid.
    pub(crate) fn recommended_page_size(&self, size: usize) -> Option<usize> {
        let mut page = 0;
        let get = self.table.functions.get_recommended_page_size;
        // SAFETY: the pointer is valid during the call.
        let code = unsafe { get(self.state, size, &raw mut page) };
        (code == SUCCESS && page.is_power_of_two()).then_some(page)
    }

    /// Allocates at a multiple of `align`. With `any_align`, the provider is called with alignment
    /// 0.
    pub(crate) fn allocate(&self, size: usize, align: usize, any_align: bool) -> Result<Address> {
        let mut memory = null_mut();
        let requested = if any_align { 0 } else { align };
        // SAFETY: the pointer is valid during the call.
        let code = unsafe { (self.table.functions.alloc)(self.state, size, requested, &raw mut memory) };
        self.check_aligned(code, "alloc", size, align)?;
        let memory =
            NonNull::new(memory).ok_or_else(|| self.contract_violation("returned NULL as memory"))?;
        match Address::new(memory.as_ptr().expose_provenance()) {
            Some(address) if address.is_aligned_to(align) => Ok(address),
            _ => {
                // SAFETY: the memory was allocated above with this size, and is not in use. The
                // first error is returned.
                let _ = unsafe { (self.table.functions.free)(self.state, memory.as_ptr(), size) };
                Err(self.contract_violation("returned memory at an address that is not aligned as requested"))
            }
        }
    }

    /// # Safety
    /// The memory is one allocation of this provider, of that size, and not in use.
    pub(crate) unsafe fn free(&self, address: Address, size: usize) -> Result<()> {
        if self.is_finalized() {
            return Ok(());
        }
        // SAFETY: the caller's contract.
        let code = unsafe { (self.table.functions.free)(self.state, pointer(address), size) };
        self.check(code, "free", size)
    }

    /// # Safety
    /// The range lies in one allocation of this provider, and its content is not needed.
    pub(crate) unsafe fn purge(&self, address: Address, size: usize, lazily: bool) -> Result<()> {
        let functions = &self.table.functions;
        let (operation, purge) = if lazily {
            ("ext_purge_lazy", functions.ext_purge_lazy)
        } else {
            ("ext_purge_force", functions.ext_purge_force)
        };
        let purge = purge.ok_or(self.unsupported(operation))?;
        // SAFETY: the caller's contract.
        let code = unsafe { purge(self.state, pointer(address), size) };
        self.check(code, operation, size)
    }

    /// Returns the size of an IPC handle in bytes, or `None` if the provider has no handles or has
    /// disabled them.
    ///
    /// # Errors
    /// The provider's error, or [`Error::Untrusted`] for an invalid size.
    pub fn handle_size(&self) -> Result<Option<usize>> {
        let operation = "ext_get_ipc_handle_size";
        let Some(get) = self.table.functions.ext_get_ipc_handle_size else { return Ok(None) };
        let mut size = 0;
        // SAFETY: the pointer is valid during the call.
        let code = unsafe { get(self.state, &raw mut size) };
        if code == NOT_SUPPORTED || code == INVALID_ARGUMENT {
            // The header specifies the first. UMF's OS provider returns the second for private
            // memory.
            return Ok(None);
        }
        self.check(code, operation, 0)?;
        if size == 0 || size > MAX_HANDLE_SIZE {
            return Err(self.contract_violation("has IPC handles of 0 bytes, or of more than 1 MiB"));
        }
        Ok(Some(size))
    }

    /// Returns the handle of an allocation, of `len` bytes.
    pub(crate) fn get_handle(&self, address: Address, size: usize, len: usize) -> Result<HandleBytes> {
        let operation = "ext_get_ipc_handle";
        let get = self.table.functions.ext_get_ipc_handle.ok_or(self.unsupported(operation))?;
        if self.handle_size()? != Some(len) {
            return Err(self.contract_violation("has changed the size of its IPC handles"));
        }
        let mut bytes = HandleBytes::zeroed(len);
        // SAFETY: the range is an allocation, and the buffer has the size of a handle.
        let code = unsafe { get(self.state, pointer(address), size, bytes.as_mut_ptr()) };
        self.check(code, operation, size)?;
        Ok(bytes)
    }

    /// Releases a handle.
    pub(crate) fn put_handle(&self, mut bytes: HandleBytes) -> Result<()> {
        let operation = "ext_put_ipc_handle";
        if self.is_finalized() {
            return Ok(());
        }
        let put = self.table.functions.ext_put_ipc_handle.ok_or(self.unsupported(operation))?;
        // SAFETY: the bytes are a handle of this provider.
        let code = unsafe { put(self.state, bytes.as_mut_ptr()) };
        self.check(code, operation, 0)
    }

    /// Opens a handle, and returns the address of the memory in this process.
    pub(crate) fn open_handle(&self, mut bytes: HandleBytes) -> Result<Address> {
        let operation = "ext_open_ipc_handle";
        let open = self.table.functions.ext_open_ipc_handle.ok_or(self.unsupported(operation))?;
        let mut memory = null_mut();
        // SAFETY: the buffer has the size of a handle, and both pointers are valid during the call.
        let code = unsafe { open(self.state, bytes.as_mut_ptr(), &raw mut memory) };
        self.check(code, operation, 0)?;
        let memory =
            NonNull::new(memory).ok_or_else(|| self.contract_violation("opened a handle as NULL"))?;
        Address::new(memory.as_ptr().expose_provenance())
            .ok_or_else(|| self.contract_violation("opened a handle outside of the address space"))
    }

    /// # Safety
    /// [`Instance::open_handle`] returned the memory, it was not closed before, and it is not in
    /// use.
    pub(crate) unsafe fn close_handle(&self, address: Address, size: usize) -> Result<()> {
        let operation = "ext_close_ipc_handle";
        if self.is_finalized() {
            return Ok(());
        }
        let close = self.table.functions.ext_close_ipc_handle.ok_or(self.unsupported(operation))?;
        // SAFETY: the caller's contract.
        let code = unsafe { close(self.state, pointer(address), size) };
        self.check(code, operation, size)
    }

    /// Returns a property of 4 or 8 bytes as a number.
    pub(crate) fn property(&self, address: Address, property: i32) -> Result<u64> {
        let operation = "ext_get_allocation_properties";
        let functions = &self.table.functions;
        let both = functions.ext_get_allocation_properties.zip(functions.ext_get_allocation_properties_size);
        let (get, get_size) = both.ok_or(self.unsupported(operation))?;
        let mut size = 0;
        // SAFETY: the pointer is valid during the call.
        let code = unsafe { get_size(self.state, property, &raw mut size) };
        self.check(code, "ext_get_allocation_properties_size", 0)?;
        if size != 4 && size != 8 {
            return Err(self.contract_violation("has a property that is neither 4 nor 8 bytes"));
        }
        let mut value = [0_u8; 8];
        // SAFETY: the buffer is at least as large as the size of the property.
        let code = unsafe { get(self.state, pointer(address), property, value.as_mut_ptr().cast()) };
        self.check(code, operation, 0)?;
        let [a, b, c, d, ..] = value;
        Ok(if size == 4 { u32::from_ne_bytes([a, b, c, d]).into() } else { u64::from_ne_bytes(value) })
    }

    pub(crate) fn cache_line_size(&self) -> Result<u64> {
        let operation = "get_cache_line_size";
        let get = self.table.functions.get_cache_line_size.ok_or(self.unsupported(operation))?;
        let mut size = 0;
        // SAFETY: the pointer is valid during the call.
        let code = unsafe { get(self.state, &raw mut size) };
        self.check(code, operation, 0)?;
        Ok(size as u64)
    }
}

fn pointer(address: Address) -> *mut c_void {
    address.as_ptr().unwrap_or(null_mut()).cast()
}

/// Converts a result other than success. `last` is the result of `get_last_native_error`.
fn error(
    code: Code,
    operation: &'static str,
    size: usize,
    align: usize,
    owner: &'static str,
    last: Option<(i32, &'static str)>,
) -> Error {
    let call = intern(&format!("{operation} of {owner}"), operation);
    let (native, message) = last.unwrap_or((code, ""));
    let native_with = |hint| Error::Native { call, native, hint };
    match code {
        OUT_OF_HOST_MEMORY | OUT_OF_RESOURCES => Error::OutOfMemory { size, owner, native: 0 },
        PROVIDER_SPECIFIC if message.is_empty() => {
            native_with("the provider gives no text for its error; see its documentation")
        }
        PROVIDER_SPECIFIC => native_with(message),
        INVALID_ARGUMENT => Error::InvalidArgument { what: call, why: "the provider rejects the arguments" },
        INVALID_ALIGNMENT => Error::BadAlignment { align },
        NOT_SUPPORTED => Error::NotSupported { what: operation, owner, native: 0 },
        USER_SPECIFIC => native_with("UMF_RESULT_ERROR_USER_SPECIFIC: see the provider's own messages"),
        DEPENDENCY_UNAVAILABLE => native_with(
            "UMF_RESULT_ERROR_DEPENDENCY_UNAVAILABLE: install the library or driver that the provider needs",
        ),
        INVALID_CTL_PATH => native_with("UMF_RESULT_ERROR_INVALID_CTL_PATH"),
        UNKNOWN => native_with("UMF_RESULT_ERROR_UNKNOWN: see the provider's own messages"),
        _ => native_with("a result that UMF does not define"),
    }
}

/// Interns `text`, truncated, for use in [`Error`]. Each distinct text is leaked once. Returns
/// `fallback` when the table is full.
fn intern(text: &str, fallback: &'static str) -> &'static str {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    const MAX_TEXTS: usize = 512;
    const MAX_LENGTH: usize = 200;
    const TRIES: usize = 1000;
    let text = text.trim();
    let end = (0..=MAX_LENGTH.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    let text = &text[..end.unwrap_or(0)];
    // A bounded wait, because the lock stays taken in a child that is forked while another thread
    // holds it.
    let locked = (0..TRIES).find_map(|_| {
        let locked = TEXTS.try_lock().ok();
        if locked.is_none() {
            std::thread::yield_now();
        }
        locked
    });
    let Some(mut texts) = locked else { return fallback };
    if let Some(known) = texts.get(text) {
        return known;
    }
    if texts.len() >= MAX_TEXTS {
        return fallback;
    }
    let interned: &'static str = Box::leak(text.to_owned().into_boxed_str());
    texts.insert(interned);
    interned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intern_truncates_between_characters() {
        let text = intern(&"ä".repeat(150), "");
        assert_eq!(text.chars().count(), 100);
        assert_eq!(intern(" same \n", ""), intern("same", ""));
    }

    #[test]
    fn each_result_code_has_its_error() {
        let of = |code| error(code, "alloc", 4096, 64, "plugin test", None);
        assert!(matches!(of(OUT_OF_HOST_MEMORY), Error::OutOfMemory { size: 4096, .. }));
        assert!(matches!(of(OUT_OF_RESOURCES), Error::OutOfMemory { size: 4096, .. }));
        assert!(matches!(of(INVALID_ALIGNMENT), Error::BadAlignment { align: 64 }));
        assert!(matches!(of(NOT_SUPPORTED), Error::NotSupported { what: "alloc", .. }));
        assert!(matches!(of(INVALID_ARGUMENT), Error::InvalidArgument { what: "alloc of plugin test", .. }));
        assert!(matches!(of(4711), Error::Native { native: 4711, .. }));
        let native = error(PROVIDER_SPECIFIC, "alloc", 1, 1, "plugin test", Some((1001, "cannot map")));
        assert!(matches!(
            native,
            Error::Native { native: 1001, hint: "cannot map", call: "alloc of plugin test" }
        ));
    }
}
