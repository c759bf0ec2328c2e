//! [`Context`]: the application's context, or the primary one of a device. [`Current`]: the guard
//! that makes it current in a thread for the duration of a call.

use core::marker::PhantomData;
use std::sync::OnceLock;

use cuda_sys::*;
use umf_core::{Error, Result};

use crate::driver::{Driver, driver_error};

/// A driver context: the primary one of a device, or one of the application.
#[derive(Debug)]
pub(crate) struct Context {
    driver: &'static Driver,
    handle: CUcontext,
    device: CUdevice,
    uuid: [u8; 16],
    /// Whether it is a primary context, which is released on drop.
    is_primary: bool,
    /// The stream of copies, created by the first one.
    stream: OnceLock<CUstream>,
}

impl Context {
    /// Retains the primary context of a device.
    pub(crate) fn primary(driver: &'static Driver, ordinal: i32) -> Result<Self> {
        driver.check_not_inherited()?;
        let device = driver.device_handle(ordinal)?;
        let uuid = driver.uuid(device)?;
        let mut handle = CUcontext::NULL;
        // SAFETY: the pointer to the result is valid for writes.
        unsafe { driver.api().cuDevicePrimaryCtxRetain(&raw mut handle, device) }.map_err(driver_error)?;
        Ok(Self { driver, handle, device, uuid, is_primary: true, stream: OnceLock::new() })
    }

    /// Wraps a context of the application.
    ///
    /// # Safety
    /// `handle` is a context of `driver` and outlives this value. Destroying it earlier with
    /// `cuCtxDestroy` is allowed: the driver then returns errors.
    pub(crate) unsafe fn from_application(driver: &'static Driver, handle: CUcontext) -> Result<Self> {
        if handle.is_null() {
            return Err(Error::InvalidArgument { what: "context", why: "must not be null" });
        }
        let mut context =
            Self { driver, handle, device: 0, uuid: [0; 16], is_primary: false, stream: OnceLock::new() };
        let mut device = 0;
        {
            let current = context.enter()?;
            // SAFETY: the pointer to the result is valid for writes.
            unsafe { current.api().cuCtxGetDevice(&raw mut device) }.map_err(driver_error)?;
        }
        context.device = device;
        context.uuid = driver.uuid(device)?;
        Ok(context)
    }

    pub(crate) const fn driver(&self) -> &'static Driver {
        self.driver
    }

    pub(crate) const fn handle(&self) -> CUcontext {
        self.handle
    }

    /// Returns the ordinal of its device among those that the process sees.
    pub(crate) const fn device(&self) -> CUdevice {
        self.device
    }

    pub(crate) const fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Makes it current in this thread. Dropping the guard restores the previous context.
    pub(crate) fn enter(&self) -> Result<Current<'_>> {
        self.driver.check_not_inherited()?;
        // SAFETY: the handle is a context by the contracts of the constructors.
        unsafe { self.driver.api().cuCtxPushCurrent(self.handle) }.map_err(driver_error)?;
        Ok(Current { context: self, thread: PhantomData })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.driver.is_inherited() {
            return;
        }
        if let Some(stream) = self.stream.get().copied() {
            let _current = self.enter().ok();
            // SAFETY: created in `Current::stream`; no copy runs, since copies borrow the context.
            let _ = unsafe { self.driver.api().cuStreamDestroy(stream) };
        }
        if self.is_primary {
            // SAFETY: retained once in `primary`. At process exit the driver may return an error,
            // which is harmless.
            let _ = unsafe { self.driver.api().cuDevicePrimaryCtxRelease(self.device) };
        }
    }
}

/// A guard: the context is current in this thread.
pub(crate) struct Current<'c> {
    context: &'c Context,
    /// Makes the guard neither `Send` nor `Sync`.
    thread: PhantomData<*const ()>,
}

impl Current<'_> {
    pub(crate) fn api(&self) -> &'static Api {
        self.context.driver.api()
    }

    /// Returns the stream for copies, created on first use. It does not wait for the default
    /// stream.
    pub(crate) fn stream(&self) -> Result<CUstream> {
        if let Some(stream) = self.context.stream.get() {
            return Ok(*stream);
        }
        let mut stream = CUstream::NULL;
        // SAFETY: the pointer to the result is valid for writes.
        unsafe { self.api().cuStreamCreate(&raw mut stream, CU_STREAM_NON_BLOCKING) }
            .map_err(driver_error)?;
        if self.context.stream.set(stream).is_err() {
            // Another thread has set a stream first.
            // SAFETY: created above and never used.
            let _ = unsafe { self.api().cuStreamDestroy(stream) };
        }
        Ok(self.context.stream.get().copied().unwrap_or(stream))
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = CUcontext::NULL;
        // SAFETY: the pointer to the result is valid for writes. `enter` pushed the context in this
        // thread, which the guard does not leave.
        let _ = unsafe { self.api().cuCtxPopCurrent(&raw mut popped) };
    }
}
