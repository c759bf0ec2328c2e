//! [`Instance`]: a provider that was initialised, behind its table of C functions. All calls into
//! foreign code are here, and each result is checked before it is used.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::{NonNull, null, null_mut};
use std::collections::BTreeSet;
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

/// The largest IPC handle in bytes.
const LARGEST_HANDLE: usize = 1 << 20;

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
        // SAFETY: the vector has at least that many bytes, all initialised.
        unsafe { core::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.len) }
    }

    fn as_mut_ptr(&mut self) -> *mut c_void {
        self.words.as_mut_ptr().cast()
    }
}

/// A provider behind C functions. Thread-safe.
pub struct Instance {
    table: Table,
    state: State,
    /// What errors call it.
    owner: &'static str,
    /// Is told of each result, before it becomes an error.
    observe: fn(Code),
    /// What ends it, where this crate started it.
    loaded: Option<LoadedPlugin>,
}

// SAFETY: UMF requires of every provider that all its functions may be called by several threads at
// once, and by other threads than the one that initialised it. The state is only handed back to it.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Sync for Instance {}

impl Instance {
    /// A provider that something else finalises, after this is dropped. `observe` is told of each
    /// result of `alloc`, `free`, purging and the functions for IPC handles.
    ///
    /// # Safety
    /// The state is one that `initialize` of the table made, and its functions do what UMF says.
    pub const unsafe fn borrowed(table: Table, state: State, owner: &'static str, observe: fn(Code)) -> Self {
        Self { table, state, owner, observe, loaded: None }
    }

    /// A provider of a shared object, which is finalised when this is dropped.
    pub(crate) fn loaded(table: Table, state: State, loaded: LoadedPlugin) -> Result<Self> {
        let mut instance = Self { table, state, owner: "the plugin", observe: |_| {}, loaded: Some(loaded) };
        instance.owner = intern(&format!("plugin {}", instance.name()?), instance.owner);
        instance.post_initialize()?;
        Ok(instance)
    }

    /// Sets whether a forked child leaves the plugin as it is.
    pub(crate) const fn set_parent_only(&mut self, stays: bool) {
        if let Some(loaded) = &mut self.loaded {
            loaded.parent_only = stays;
        }
    }

    /// Has `initialize` make a state.
    ///
    /// # Safety
    /// The function does what UMF says, with such parameters.
    pub(crate) unsafe fn initialize(table: &Table, params: Option<&CStr>) -> Result<State> {
        let mut state = null_mut();
        let params = params.map_or(null(), |text| text.as_ptr().cast());
        // SAFETY: the text and the place for the state live as long as the call.
        let code = unsafe { (table.functions.initialize)(params, &raw mut state) };
        // There is no state yet that could be asked for the native error.
        if code == SUCCESS { Ok(state) } else { Err(error(code, "initialize", 0, 1, "the plugin", None)) }
    }

    /// UMF runs this entry of a provider's control tree after `initialize`, from version 1.1 on;
    /// some providers start there.
    fn post_initialize(&self) -> Result<()> {
        let Some(ctl) = self.table.functions.ext_ctl.filter(|_| self.table.is_1_1()) else { return Ok(()) };
        const PROGRAMMATIC: i32 = 1;
        const RUNNABLE: i32 = 2;
        /// An empty `va_list`, of which ABIs need at most 32 bytes.
        #[repr(C, align(16))]
        struct NoArguments([u64; 4]);
        let mut none = NoArguments([0; 4]);
        let (name, more) = (c"post_initialize".as_ptr(), (&raw mut none).cast());
        // SAFETY: the name is a constant, and the entry has no arguments.
        match unsafe { ctl(self.state, PROGRAMMATIC, name, null_mut(), 0, RUNNABLE, more) } {
            INVALID_CTL_PATH => Ok(()),
            code => self.check(code, "ext_ctl(post_initialize)", 0),
        }
    }

    /// Its name in errors.
    pub(crate) const fn owner(&self) -> &'static str {
        self.owner
    }

    pub(crate) const fn table(&self) -> &Table {
        &self.table
    }

    /// The error for something that no provider may do.
    pub(crate) fn contract_violation(&self, how: &str) -> Error {
        let why = intern(&format!("{} {how}", self.owner), "the provider breaks UMF's rules");
        Error::Untrusted { why }
    }

    pub(crate) const fn unsupported(&self, what: &'static str) -> Error {
        Error::NotSupported { what, owner: self.owner, native: 0 }
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
        // SAFETY: both places live as long as the call.
        if unsafe { get(self.state, &raw mut message, &raw mut native) } != SUCCESS {
            return None;
        }
        if message.is_null() {
            return Some((native, ""));
        }
        // SAFETY: UMF says that the message ends with a NUL and stays this thread's until the next
        // call.
        let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
        Some((native, intern(&message, "")))
    }

    pub(crate) fn name(&self) -> Result<String> {
        let mut name = null();
        // SAFETY: the place lives as long as the call.
        let code = unsafe { (self.table.functions.get_name)(self.state, &raw mut name) };
        self.check(code, "get_name", 0)?;
        if name.is_null() {
            return Err(self.contract_violation("has no name: get_name succeeded with NULL"));
        }
        // SAFETY: UMF says that a name ends with a NUL and lives as long as the provider.
        Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }

    /// The granularity of all its memory.
    ///
    /// # Errors
    /// What the provider says, or [`Error::Untrusted`] if it is no power of two.
    pub fn min_page_size(&self) -> Result<usize> {
        let mut page = 0;
        // SAFETY: NULL asks for that of the provider; the place lives as long as the call.
        let code = unsafe { (self.table.functions.get_min_page_size)(self.state, null(), &raw mut page) };
        self.check(code, "get_min_page_size", 0)?;
        if page.is_power_of_two() {
            Ok(page)
        } else {
            Err(self.contract_violation("has a page size that is no power of two"))
        }
    }

    /// `None` if it says none, or nothing that can be one.
    pub(crate) fn recommended_page_size(&self, size: usize) -> Option<usize> {
        let mut page = 0;
        let get = self.table.functions.get_recommended_page_size;
        // SAFETY: the place lives as long as the call.
        let code = unsafe { get(self.state, size, &raw mut page) };
        (code == SUCCESS && page.is_power_of_two()).then_some(page)
    }

    /// Allocates at a multiple of `align`. Where `any_align`, the provider is asked for any
    /// alignment.
    pub(crate) fn allocate(&self, size: usize, align: usize, any_align: bool) -> Result<Address> {
        let mut memory = null_mut();
        let asked = if any_align { 0 } else { align };
        // SAFETY: the place lives as long as the call.
        let code = unsafe { (self.table.functions.alloc)(self.state, size, asked, &raw mut memory) };
        self.check_aligned(code, "alloc", size, align)?;
        let memory =
            NonNull::new(memory).ok_or_else(|| self.contract_violation("returned NULL as memory"))?;
        match Address::new(memory.as_ptr().expose_provenance()) {
            Some(address) if address.is_aligned_to(align) => Ok(address),
            _ => {
                // SAFETY: allocated above, with this size, and not in use. The first error counts.
                let _ = unsafe { (self.table.functions.free)(self.state, memory.as_ptr(), size) };
                Err(self.contract_violation("returned memory at an address that is not aligned as asked"))
            }
        }
    }

    /// # Safety
    /// The memory is one allocation of this provider, of that size, and not in use.
    pub(crate) unsafe fn free(&self, address: Address, size: usize) -> Result<()> {
        // SAFETY: passed on to the caller.
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
        // SAFETY: passed on to the caller.
        let code = unsafe { purge(self.state, pointer(address), size) };
        self.check(code, operation, size)
    }

    /// The bytes of an IPC handle; `None` if the provider has none, or has them switched off.
    ///
    /// # Errors
    /// What the provider says, or [`Error::Untrusted`] for a size that no handle has.
    pub fn handle_size(&self) -> Result<Option<usize>> {
        let operation = "ext_get_ipc_handle_size";
        let Some(get) = self.table.functions.ext_get_ipc_handle_size else { return Ok(None) };
        let mut size = 0;
        // SAFETY: the place lives as long as the call.
        let code = unsafe { get(self.state, &raw mut size) };
        if code == NOT_SUPPORTED || code == INVALID_ARGUMENT {
            // The first is what the header says; the second is what UMF's own provider says of
            // private memory.
            return Ok(None);
        }
        self.check(code, operation, 0)?;
        if size == 0 || size > LARGEST_HANDLE {
            return Err(self.contract_violation("has IPC handles of 0 bytes, or of more than 1 MiB"));
        }
        Ok(Some(size))
    }

    /// Gets the handle of an allocation, which has `len` bytes.
    pub(crate) fn get_handle(&self, address: Address, size: usize, len: usize) -> Result<HandleBytes> {
        let operation = "ext_get_ipc_handle";
        let get = self.table.functions.ext_get_ipc_handle.ok_or(self.unsupported(operation))?;
        if self.handle_size()? != Some(len) {
            return Err(self.contract_violation("has IPC handles of another size than it said first"));
        }
        let mut bytes = HandleBytes::zeroed(len);
        // SAFETY: the range is an allocation, and there is room for the handle.
        let code = unsafe { get(self.state, pointer(address), size, bytes.as_mut_ptr()) };
        self.check(code, operation, size)?;
        Ok(bytes)
    }

    pub(crate) fn put_handle(&self, mut bytes: HandleBytes) -> Result<()> {
        let operation = "ext_put_ipc_handle";
        let put = self.table.functions.ext_put_ipc_handle.ok_or(self.unsupported(operation))?;
        // SAFETY: the bytes of a handle of this provider.
        let code = unsafe { put(self.state, bytes.as_mut_ptr()) };
        self.check(code, operation, 0)
    }

    /// Opens a handle; returns where the memory begins here.
    pub(crate) fn open_handle(&self, mut bytes: HandleBytes) -> Result<Address> {
        let operation = "ext_open_ipc_handle";
        let open = self.table.functions.ext_open_ipc_handle.ok_or(self.unsupported(operation))?;
        let mut memory = null_mut();
        // SAFETY: as many bytes as a handle has, and a place for the address; both live as long as
        // the call.
        let code = unsafe { open(self.state, bytes.as_mut_ptr(), &raw mut memory) };
        self.check(code, operation, 0)?;
        let memory =
            NonNull::new(memory).ok_or_else(|| self.contract_violation("opened a handle as NULL"))?;
        Address::new(memory.as_ptr().expose_provenance())
            .ok_or_else(|| self.contract_violation("opened a handle outside of the address space"))
    }

    /// # Safety
    /// The memory came from [`Instance::open_handle`], was not closed before, and is not in use.
    pub(crate) unsafe fn close_handle(&self, address: Address, size: usize) -> Result<()> {
        let operation = "ext_close_ipc_handle";
        let close = self.table.functions.ext_close_ipc_handle.ok_or(self.unsupported(operation))?;
        // SAFETY: passed on to the caller.
        let code = unsafe { close(self.state, pointer(address), size) };
        self.check(code, operation, size)
    }

    /// A property of 4 or 8 bytes, as a number.
    pub(crate) fn property(&self, address: Address, property: i32) -> Result<u64> {
        let operation = "ext_get_allocation_properties";
        let functions = &self.table.functions;
        let both = functions.ext_get_allocation_properties.zip(functions.ext_get_allocation_properties_size);
        let (get, get_size) = both.ok_or(self.unsupported(operation))?;
        let mut size = 0;
        // SAFETY: the place lives as long as the call.
        let code = unsafe { get_size(self.state, property, &raw mut size) };
        self.check(code, "ext_get_allocation_properties_size", 0)?;
        if size != 4 && size != 8 {
            return Err(self.contract_violation("has a property that is neither 4 nor 8 bytes"));
        }
        let mut value = [0_u8; 8];
        // SAFETY: the place is at least as large as the provider says that the value is.
        let code = unsafe { get(self.state, pointer(address), property, value.as_mut_ptr().cast()) };
        self.check(code, operation, 0)?;
        let [a, b, c, d, ..] = value;
        Ok(if size == 4 { u32::from_ne_bytes([a, b, c, d]).into() } else { u64::from_ne_bytes(value) })
    }

    pub(crate) fn cache_line_size(&self) -> Result<u64> {
        let operation = "get_cache_line_size";
        let get = self.table.functions.get_cache_line_size.ok_or(self.unsupported(operation))?;
        let mut size = 0;
        // SAFETY: the place lives as long as the call.
        let code = unsafe { get(self.state, &raw mut size) };
        self.check(code, operation, 0)?;
        Ok(size as u64)
    }
}

fn pointer(address: Address) -> *mut c_void {
    address.as_ptr().unwrap_or(null_mut()).cast()
}

/// The error for a code that is not success. `last` is the answer of `get_last_native_error`.
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
            native_with("the number is the provider's own; it gives no text")
        }
        PROVIDER_SPECIFIC => native_with(message),
        INVALID_ARGUMENT => Error::InvalidArgument { what: call, why: "the provider refuses the arguments" },
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

/// Returns `text`, or its beginning, with a lifetime that [`Error`] can hold: each text is kept
/// once, for ever. Returns `fallback` if too many different texts were kept already.
fn intern(text: &str, fallback: &'static str) -> &'static str {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    const MOST: usize = 512;
    const LONGEST: usize = 200;
    const TRIES: usize = 1000;
    let text = text.trim();
    let end = (0..=LONGEST.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    let text = &text[..end.unwrap_or(0)];
    // A bounded wait: a forked child may find it locked for ever.
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
    if texts.len() >= MOST {
        return fallback;
    }
    let intern: &'static str = Box::leak(text.to_owned().into_boxed_str());
    texts.insert(intern);
    intern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = intern(&"ä".repeat(150), "");
        assert_eq!(text.chars().count(), 100);
        assert_eq!(intern(" same \n", ""), intern("same", ""));
    }

    #[test]
    fn each_code_has_its_error() {
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
