//! [`Instance`]: a running plugin. All calls into foreign code are here, and each result is checked before it is
//! believed.

use core::ffi::{CStr, c_char, c_void};
use core::mem::ManuallyDrop;
use core::ptr::{NonNull, null, null_mut};

use libloading::os::unix::Library;
use umf_core::{Address, Error, NativeBytes, Result};
use umf_sync::fork;

use super::ops::{Code, Operations, State};
use super::result::{
    self, Asked, INVALID_ARGUMENT, INVALID_CTL_PATH, NOT_SUPPORTED, PROVIDER_SPECIFIC, SUCCESS,
};
use super::text::lasting;

const PROGRAMMATIC: i32 = 1;
const RUNNABLE: i32 = 2;

/// An empty `va_list`: what one is differs, but it is at most 32 bytes, and passed by address where it is not an
/// address itself.
#[repr(C, align(16))]
struct NoArguments([u64; 4]);

/// Bytes of an IPC handle, aligned as for any structure in C.
#[repr(C, align(16))]
struct HandleBytes([u8; umf_core::provider::NATIVE_BYTES]);

impl HandleBytes {
    fn of(native: &NativeBytes) -> Self {
        let mut bytes = Self([0; _]);
        bytes.0[..native.as_slice().len()].copy_from_slice(native.as_slice());
        bytes
    }

    fn as_mut_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

/// A plugin that was initialised. Finalised when dropped, once; its code stays loaded until then.
pub(super) struct Instance {
    state: State,
    operations: Operations,
    /// For errors.
    owner: &'static str,
    library: ManuallyDrop<Library>,
    /// The process that initialised it.
    generation: u32,
    /// Whether a forked child has no part in it.
    parent_only: bool,
}

// SAFETY: UMF requires of every provider that all its operations may be called by several threads at once, and by
// other threads than the one that initialised it; the state is nothing but handed back to it.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Sync for Instance {}

impl Instance {
    /// Has the plugin make a provider of `params`, which is JSON, or nothing.
    ///
    /// # Safety
    /// The operations are functions of `library` that do what UMF says.
    pub(super) unsafe fn start(
        library: Library,
        operations: Operations,
        params: Option<&CStr>,
    ) -> Result<Self> {
        let mut state = null_mut();
        let params = params.map_or(null(), |text| text.as_ptr().cast::<c_void>());
        let owner = "the plugin";
        // SAFETY: the text and the place for the state live as long as the call.
        let code = unsafe { (operations.initialize)(params, &raw mut state) };
        if code != SUCCESS {
            // There is no state yet that could be asked for the native error.
            return Err(result::error(code, Asked::to("initialize"), owner, None));
        }
        let library = ManuallyDrop::new(library);
        let generation = fork::generation();
        let mut instance = Self { state, operations, owner, library, generation, parent_only: false };
        instance.owner = lasting(&format!("plugin {}", instance.name()?), owner);
        instance.post_initialize()?;
        Ok(instance)
    }

    /// UMF runs this entry of a provider's control tree after `initialize`, from version 1.1 on; some do their real
    /// start there.
    fn post_initialize(&self) -> Result<()> {
        let Some(ctl) = self.operations.ctl.filter(|_| self.operations.minor >= 1) else { return Ok(()) };
        let mut none = NoArguments([0; 4]);
        let name = c"post_initialize".as_ptr();
        let more = (&raw mut none).cast();
        // SAFETY: the name is a constant, and the entry has no arguments.
        let code = unsafe { ctl(self.state, PROGRAMMATIC, name, null_mut(), 0, RUNNABLE, more) };
        if code == INVALID_CTL_PATH {
            return Ok(());
        }
        self.check(code, Asked::to("ext_ctl(post_initialize)"))
    }

    /// Says that a forked child has no part in the memory, and so is not to finalise anything.
    pub(super) const fn belongs_to_parent(&mut self) {
        self.parent_only = true;
    }

    /// The plugin's name, for errors.
    pub(super) const fn owner(&self) -> &'static str {
        self.owner
    }

    pub(super) const fn operations(&self) -> &Operations {
        &self.operations
    }

    /// The error for something that no provider may do.
    pub(super) fn nonsense(&self, why: &str) -> Error {
        Error::Untrusted { why: lasting(&format!("{} {why}", self.owner), "the plugin breaks UMF's rules") }
    }

    fn not_offered(&self, what: &'static str) -> Error {
        Error::NotSupported { what, owner: self.owner, native: 0 }
    }

    fn check(&self, code: Code, asked: Asked) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let last = (code == PROVIDER_SPECIFIC).then(|| self.last_native_error());
        Err(result::error(code, asked, self.owner, last.flatten()))
    }

    fn last_native_error(&self) -> Option<(i32, &'static str)> {
        let mut message: *const c_char = null();
        let mut native = 0;
        // SAFETY: both places live as long as the call.
        let code =
            unsafe { (self.operations.get_last_native_error)(self.state, &raw mut message, &raw mut native) };
        if code != SUCCESS {
            return None;
        }
        if message.is_null() {
            return Some((native, ""));
        }
        // SAFETY: UMF says that the message ends with a NUL and stays this thread's until the next call.
        let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
        Some((native, lasting(&message, "")))
    }

    pub(super) fn name(&self) -> Result<String> {
        let mut name = null();
        // SAFETY: the place lives as long as the call.
        let code = unsafe { (self.operations.get_name)(self.state, &raw mut name) };
        self.check(code, Asked::to("get_name"))?;
        if name.is_null() {
            return Err(self.nonsense("has no name: get_name succeeded with NULL"));
        }
        // SAFETY: UMF says that a name is a string that ends with a NUL and lives as long as the provider.
        Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }

    pub(super) fn min_page_size(&self) -> Result<usize> {
        let mut page = 0;
        // SAFETY: NULL asks for that of the provider; the place lives as long as the call.
        let code = unsafe { (self.operations.get_min_page_size)(self.state, null(), &raw mut page) };
        self.check(code, Asked::to("get_min_page_size"))?;
        if page.is_power_of_two() {
            Ok(page)
        } else {
            Err(self.nonsense("has a page size that is no power of two"))
        }
    }

    /// `None` if the plugin tells none that makes sense.
    pub(super) fn recommended_page_size(&self, size: usize) -> Option<usize> {
        let mut page = 0;
        // SAFETY: the place lives as long as the call.
        let code = unsafe { (self.operations.get_recommended_page_size)(self.state, size, &raw mut page) };
        (code == SUCCESS && page.is_power_of_two()).then_some(page)
    }

    pub(super) fn allocate(&self, size: usize, align: usize) -> Result<Address> {
        let asked = Asked { operation: "alloc", size, align };
        let mut memory = null_mut();
        // SAFETY: the place lives as long as the call.
        let code = unsafe { (self.operations.alloc)(self.state, size, align, &raw mut memory) };
        self.check(code, asked)?;
        let memory = NonNull::new(memory).ok_or_else(|| self.nonsense("returned NULL as memory"))?;
        match Address::new(memory.as_ptr().expose_provenance()) {
            Some(address) if address.is_aligned_to(align) => Ok(address),
            _ => {
                // SAFETY: it was allocated above, with this size, and nobody has seen it. What the plugin says to that
                // changes nothing.
                let _ = unsafe { (self.operations.free)(self.state, memory.as_ptr(), size) };
                Err(self.nonsense("returned memory at an address that is not aligned as asked"))
            }
        }
    }

    /// # Safety
    /// The memory is one allocation of this plugin, of that size, and nobody uses it.
    pub(super) unsafe fn free(&self, address: Address, size: usize) -> Result<()> {
        // SAFETY: passed on to the caller.
        let code = unsafe { (self.operations.free)(self.state, pointer(address), size) };
        self.check(code, Asked::on("free", size))
    }

    /// # Safety
    /// The range lies in one allocation of this plugin, and nobody needs its content.
    pub(super) unsafe fn purge(&self, address: Address, size: usize, lazily: bool) -> Result<()> {
        let (operation, purge) = if lazily {
            ("ext_purge_lazy", self.operations.purge_lazy)
        } else {
            ("ext_purge_force", self.operations.purge_force)
        };
        let purge = purge.ok_or_else(|| self.not_offered(operation))?;
        // SAFETY: passed on to the caller.
        let code = unsafe { purge(self.state, pointer(address), size) };
        self.check(code, Asked::on(operation, size))
    }

    /// # Safety
    /// The memory is one allocation of this plugin, of `total` bytes, and `first` is less.
    pub(super) unsafe fn split(&self, address: Address, total: usize, first: usize) -> Result<()> {
        let operation = "ext_allocation_split";
        let operations = self.operations.split_merge.ok_or_else(|| self.not_offered(operation))?;
        // SAFETY: passed on to the caller.
        let code = unsafe { (operations.split)(self.state, pointer(address), total, first) };
        self.check(code, Asked::on(operation, total))
    }

    /// # Safety
    /// Both are allocations of this plugin, the second behind the first, of `total` bytes together.
    pub(super) unsafe fn merge(&self, low: Address, high: Address, total: usize) -> Result<()> {
        let operation = "ext_allocation_merge";
        let operations = self.operations.split_merge.ok_or_else(|| self.not_offered(operation))?;
        // SAFETY: passed on to the caller.
        let code = unsafe { (operations.merge)(self.state, pointer(low), pointer(high), total) };
        self.check(code, Asked::on(operation, total))
    }

    /// Bytes of an IPC handle; `None` if the plugin has none, or has them switched off.
    pub(super) fn handle_size(&self) -> Result<Option<usize>> {
        let Some(ipc) = self.operations.ipc else { return Ok(None) };
        let mut size = 0;
        // SAFETY: the place lives as long as the call.
        let code = unsafe { (ipc.size)(self.state, &raw mut size) };
        if code == NOT_SUPPORTED || code == INVALID_ARGUMENT {
            // The first is what the header says; the second is what UMF's own provider says of private memory.
            return Ok(None);
        }
        self.check(code, Asked::to("ext_get_ipc_handle_size"))?;
        if size == 0 { Err(self.nonsense("has IPC handles of 0 bytes")) } else { Ok(Some(size)) }
    }

    pub(super) fn get_handle(&self, address: Address, size: usize) -> Result<NativeBytes> {
        let operation = "ext_get_ipc_handle";
        let ipc = self.operations.ipc.ok_or_else(|| self.not_offered(operation))?;
        // Asked again: the place for the handle must be large enough now.
        let len = self.handle_size()?.ok_or_else(|| self.not_offered(operation))?;
        let mut bytes = HandleBytes([0; _]);
        if len > bytes.0.len() {
            let what = "an IPC handle of more than 64 bytes, which no umf handle has room for,";
            return Err(self.not_offered(what));
        }
        // SAFETY: the range is an allocation (or the plugin says that it is not), and there is room for the handle.
        let code = unsafe { (ipc.get)(self.state, pointer(address), size, bytes.as_mut_ptr()) };
        self.check(code, Asked::on(operation, size))?;
        NativeBytes::new(&bytes.0[..len])
    }

    pub(super) fn put_handle(&self, native: &NativeBytes) -> Result<()> {
        let operation = "ext_put_ipc_handle";
        let ipc = self.operations.ipc.ok_or_else(|| self.not_offered(operation))?;
        let mut bytes = HandleBytes::of(native);
        // SAFETY: the bytes are those of a handle of this plugin, as long as its handles are.
        let code = unsafe { (ipc.put)(self.state, bytes.as_mut_ptr()) };
        self.check(code, Asked::to(operation))
    }

    /// Where the memory of another process begins here.
    pub(super) fn open_handle(&self, native: &NativeBytes) -> Result<Address> {
        let operation = "ext_open_ipc_handle";
        let ipc = self.operations.ipc.ok_or_else(|| self.not_offered(operation))?;
        let mut bytes = HandleBytes::of(native);
        let mut memory = null_mut();
        // SAFETY: as many bytes as a handle has, and a place for the address; both live as long as the call.
        let code = unsafe { (ipc.open)(self.state, bytes.as_mut_ptr(), &raw mut memory) };
        self.check(code, Asked::to(operation))?;
        let memory = NonNull::new(memory).ok_or_else(|| self.nonsense("opened a handle as NULL"))?;
        Address::new(memory.as_ptr().expose_provenance())
            .ok_or_else(|| self.nonsense("opened a handle at no address of a process"))
    }

    /// # Safety
    /// The memory came from [`Instance::open_handle`], was not closed before, and nobody uses it.
    pub(super) unsafe fn close_handle(&self, address: Address, size: usize) -> Result<()> {
        let operation = "ext_close_ipc_handle";
        let ipc = self.operations.ipc.ok_or_else(|| self.not_offered(operation))?;
        // SAFETY: passed on to the caller.
        let code = unsafe { (ipc.close)(self.state, pointer(address), size) };
        self.check(code, Asked::on(operation, size))
    }

    /// A property of at most 8 bytes, as a number.
    pub(super) fn property(&self, address: Address, property: i32) -> Result<u64> {
        let operation = "ext_get_allocation_properties";
        let operations = self.operations.properties.ok_or_else(|| self.not_offered(operation))?;
        let mut size = 0;
        // SAFETY: the place lives as long as the call.
        let code = unsafe { (operations.size)(self.state, property, &raw mut size) };
        self.check(code, Asked::to("ext_get_allocation_properties_size"))?;
        if size != 4 && size != 8 {
            return Err(self.nonsense("has a property that is neither 4 nor 8 bytes"));
        }
        let mut value = [0_u64; 2];
        // SAFETY: the place is as large as the plugin says that the value is, and larger.
        let code =
            unsafe { (operations.get)(self.state, pointer(address), property, value.as_mut_ptr().cast()) };
        self.check(code, Asked::to(operation))?;
        let bytes = value[0].to_ne_bytes();
        match bytes {
            [a, b, c, d, ..] if size == 4 => Ok(u32::from_ne_bytes([a, b, c, d]).into()),
            _ => Ok(value[0]),
        }
    }

    pub(super) fn cache_line_size(&self) -> Result<u64> {
        let operation = "get_cache_line_size";
        let get = self.operations.get_cache_line_size.ok_or_else(|| self.not_offered(operation))?;
        let mut size = 0;
        // SAFETY: the place lives as long as the call.
        let code = unsafe { get(self.state, &raw mut size) };
        self.check(code, Asked::to(operation))?;
        Ok(size as u64)
    }
}

fn pointer(address: Address) -> *mut c_void {
    address.as_ptr().unwrap_or(null_mut()).cast()
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.parent_only && self.generation != fork::generation() {
            // A child that lets go of its parent's memory: code stays loaded, and nothing is undone.
            return;
        }
        // SAFETY: initialised once in `start`, and finalised here alone; nobody has a reference any more.
        let code = unsafe { (self.operations.finalize)(self.state) };
        if code != SUCCESS {
            tracing::warn!(plugin = self.owner, code, "finalize of a plugin failed");
        }
        // SAFETY: not used again.
        unsafe { ManuallyDrop::drop(&mut self.library) };
    }
}
