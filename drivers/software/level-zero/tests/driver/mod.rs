//! Shared by tests of the driver: the library's path, a client of the driver ([`User`]), and
//! running a test in a child process with settings of its own.

#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use level_zero_sys::*;

/// Returns the path of the driver, which cargo built beside this test.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let beside = test.with_file_name("libze_soft.so");
    assert!(beside.exists(), "{} is not there", beside.display());
    beside
}

/// Reports why a test is skipped on this machine.
pub(crate) fn skip(test: &str, why: &str) {
    println!("umf-skip: {test}: {why}");
}

const CHILD: &str = "TESTS_DRIVER_CHILD";

/// Runs `body` in a child process with these settings, since a driver reads them once. The child
/// runs the test `test` again.
pub(crate) fn run_in_child(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some_and(|child| child == test) {
        body();
        println!("{test} is done");
        return;
    }
    let output = child(test, settings).output().unwrap();
    let text = describe(&output);
    assert!(output.status.success() && text.contains(&format!("{test} is done")), "{text}");
    for line in text.lines().filter(|line| line.starts_with("umf-skip: ")) {
        println!("{line}");
    }
}

/// Returns the command of the child process of [`run_in_child`].
pub(crate) fn child(test: &str, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test).stdin(Stdio::null());
    clean(&mut command).envs(settings.iter().copied());
    command
}

/// Removes the `ZE_*` variables of the test's own environment.
pub(crate) fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ZE_") {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) fn describe(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// A client of a driver, with a context and an immediate list of the first device.
pub(crate) struct User {
    pub(crate) api: Api,
    pub(crate) driver: ze_driver_handle_t,
    pub(crate) devices: Vec<ze_device_handle_t>,
    pub(crate) context: ze_context_handle_t,
    /// A synchronous list.
    pub(crate) list: ze_command_list_handle_t,
}

pub(crate) type DriverResult<T = ()> = Result<T, Failure>;

/// Returns the result of a call that has to fail.
pub(crate) fn error_code<T: std::fmt::Debug>(answer: DriverResult<T>) -> ze_result_t {
    answer.unwrap_err().result()
}

impl User {
    /// Opens the driver without a loader.
    pub(crate) fn direct() -> Self {
        // SAFETY: the driver of this project.
        Self::new(unsafe { Api::load_driver(library()) }.unwrap())
    }

    /// Opens the driver through the system's loader. `None` if there is no loader.
    pub(crate) fn through_loader(test: &str) -> Option<Self> {
        // SAFETY: only the loader reads the variable, and no other thread of this process accesses
        // the environment.
        unsafe {
            std::env::set_var("ZE_ENABLE_ALT_DRIVERS", library());
            Api::load().map(Self::new).map_err(|error| skip(test, &error.to_string())).ok()
        }
    }

    pub(crate) fn new(api: Api) -> Self {
        // SAFETY: arguments as the specification requires.
        unsafe {
            api.zeInit(0).unwrap();
            let mut count = 1;
            let mut driver = ze_driver_handle_t::NULL;
            api.zeDriverGet(&raw mut count, &raw mut driver).unwrap();
            count = 0;
            api.zeDeviceGet(driver, &raw mut count, std::ptr::null_mut()).unwrap();
            let mut devices = vec![ze_device_handle_t::NULL; count as usize];
            api.zeDeviceGet(driver, &raw mut count, devices.as_mut_ptr()).unwrap();
            let mut context = ze_context_handle_t::NULL;
            let desc = ze_context_desc_t::default();
            api.zeContextCreate(driver, &raw const desc, &raw mut context).unwrap();
            let mut user = Self { api, driver, devices, context, list: ze_command_list_handle_t::NULL };
            user.list = user.list_of(user.devices[0], ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS);
            user
        }
    }

    pub(crate) fn list_of(
        &self,
        device: ze_device_handle_t,
        mode: ze_command_queue_mode_t,
    ) -> ze_command_list_handle_t {
        let desc = ze_command_queue_desc_t { mode, ..Default::default() };
        let mut list = ze_command_list_handle_t::NULL;
        // SAFETY: arguments as the specification requires.
        unsafe {
            self.api.zeCommandListCreateImmediate(self.context, device, &raw const desc, &raw mut list)
        }
        .unwrap();
        list
    }

    pub(crate) fn allocate(&self, size: usize) -> DriverResult<usize> {
        self.allocate_on(self.devices[0], size)
    }

    pub(crate) fn allocate_on(&self, device: ze_device_handle_t, size: usize) -> DriverResult<usize> {
        self.allocate_as(device, size, &ze_device_mem_alloc_desc_t::default())
    }

    pub(crate) fn allocate_as(
        &self,
        device: ze_device_handle_t,
        size: usize,
        desc: &ze_device_mem_alloc_desc_t,
    ) -> DriverResult<usize> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: arguments as the specification requires.
        unsafe { self.api.zeMemAllocDevice(self.context, desc, size, 0, device, &raw mut pointer) }?;
        Ok(pointer.addr())
    }

    pub(crate) fn free(&self, address: usize) -> DriverResult {
        // SAFETY: the driver rejects invalid addresses.
        unsafe { self.api.zeMemFree(self.context, std::ptr::without_provenance_mut(address)) }
    }

    pub(crate) fn write(&self, address: usize, bytes: &[u8]) -> DriverResult {
        self.write_by(self.list, address, bytes)
    }

    pub(crate) fn write_by(
        &self,
        list: ze_command_list_handle_t,
        address: usize,
        bytes: &[u8],
    ) -> DriverResult {
        let to = std::ptr::without_provenance_mut(address);
        let none = ze_event_handle_t::NULL;
        // SAFETY: the bytes live until the list has executed.
        unsafe {
            self.api.zeCommandListAppendMemoryCopy(
                list,
                to,
                bytes.as_ptr().cast(),
                bytes.len(),
                none,
                0,
                std::ptr::null_mut(),
            )
        }
    }

    pub(crate) fn read(&self, address: usize, size: usize) -> DriverResult<Vec<u8>> {
        self.read_by(self.list, address, size)
    }

    pub(crate) fn read_by(
        &self,
        list: ze_command_list_handle_t,
        address: usize,
        size: usize,
    ) -> DriverResult<Vec<u8>> {
        let mut bytes = vec![0_u8; size];
        let from = std::ptr::without_provenance(address);
        let to = bytes.as_mut_ptr().cast();
        let none = ze_event_handle_t::NULL;
        // SAFETY: the bytes live until the list has executed.
        unsafe {
            self.api.zeCommandListAppendMemoryCopy(list, to, from, size, none, 0, std::ptr::null_mut())?;
            // Old loaders lack this function; `self.list` is synchronous and does not need it.
            if list != self.list {
                self.api.zeCommandListHostSynchronize(list, u64::MAX)?;
            }
        }
        Ok(bytes)
    }

    pub(crate) fn properties(&self, address: usize) -> ze_memory_allocation_properties_t {
        let mut properties = ze_memory_allocation_properties_t::default();
        let pointer = std::ptr::without_provenance(address);
        let mut device = ze_device_handle_t::NULL;
        // SAFETY: arguments as the specification requires.
        unsafe {
            self.api
                .zeMemGetAllocProperties(self.context, pointer, &raw mut properties, &raw mut device)
                .unwrap();
        }
        properties
    }

    /// Returns the number of the driver's objects of a kind.
    pub(crate) fn count(&self, what: &std::ffi::CStr) -> u64 {
        type Query = unsafe extern "C" fn(*const std::ffi::c_char, *mut u64) -> ze_result_t;
        let mut value = 0;
        // SAFETY: the function has this prototype.
        unsafe {
            let query: Query = std::mem::transmute(self.function(c"zeSoftQuery").unwrap());
            assert_eq!(query(what.as_ptr(), &raw mut value), ZE_RESULT_SUCCESS, "{what:?}");
        }
        value
    }

    /// Injects faults.
    pub(crate) fn faults(&self, faults: &std::ffi::CStr) -> ze_result_t {
        self.fault_setter()(faults)
    }

    /// Returns a function that injects faults. It makes no other call of the driver, which could
    /// fail by an injected fault.
    pub(crate) fn fault_setter(&self) -> impl Fn(&std::ffi::CStr) -> ze_result_t + use<> {
        type Set = unsafe extern "C" fn(*const std::ffi::c_char) -> ze_result_t;
        // SAFETY: the function has this prototype.
        let set: Set = unsafe { std::mem::transmute(self.function(c"zeSoftSetFaults").unwrap()) };
        // SAFETY: as above.
        move |faults| unsafe { set(faults.as_ptr()) }
    }

    pub(crate) fn function(&self, name: &std::ffi::CStr) -> DriverResult<*mut std::ffi::c_void> {
        let mut found = std::ptr::null_mut();
        // SAFETY: arguments as the specification requires.
        unsafe {
            self.api.zeDriverGetExtensionFunctionAddress(self.driver, name.as_ptr(), &raw mut found)?;
        }
        Ok(found)
    }

    pub(crate) fn finish(self) {
        // SAFETY: the handles are not used afterwards.
        unsafe {
            self.api.zeCommandListDestroy(self.list).unwrap();
            self.api.zeContextDestroy(self.context).unwrap();
        }
    }
}

/// Returns an IPC handle of memory.
pub(crate) fn handle(user: &User, address: usize) -> Result<ze_ipc_mem_handle_t, Failure> {
    let mut bytes = ze_ipc_mem_handle_t::default();
    let pointer = std::ptr::without_provenance(address);
    // SAFETY: arguments as the specification requires.
    unsafe { user.api.zeMemGetIpcHandle(user.context, pointer, &raw mut bytes) }?;
    Ok(bytes)
}

/// Opens an IPC handle.
pub(crate) fn open(user: &User, bytes: ze_ipc_mem_handle_t) -> Result<usize, Failure> {
    let mut pointer = std::ptr::null_mut();
    // SAFETY: as the specification has it; bytes that are no handle are an answer.
    unsafe {
        user.api.zeMemOpenIpcHandle(user.context, user.devices[0], bytes, 0, &raw mut pointer)?;
    }
    Ok(pointer.addr())
}

/// Closes an opened IPC handle.
pub(crate) fn close(user: &User, address: usize) -> Result<(), Failure> {
    // SAFETY: the driver rejects addresses that were not opened.
    unsafe { user.api.zeMemCloseIpcHandle(user.context, std::ptr::without_provenance(address)) }
}
