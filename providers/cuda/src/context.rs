//! [`Context`]: the application's, or the one that all of a process share; and being in it for the time of a call.

use core::marker::PhantomData;
use std::sync::OnceLock;

use cuda_sys::*;
use umf_core::{Error, Result};

use crate::driver::{Driver, error};

/// A context, and whose it is.
#[derive(Debug)]
pub(crate) struct Context {
    driver: &'static Driver,
    handle: CUcontext,
    device: CUdevice,
    uuid: [u8; 16],
    /// It is the primary one, retained here.
    is_retained: bool,
    /// Where copies are made: made at the first.
    stream: OnceLock<CUstream>,
}

impl Context {
    /// The primary context of a device.
    pub(crate) fn primary(driver: &'static Driver, ordinal: i32) -> Result<Self> {
        driver.check_not_inherited()?;
        let device = driver.handle_of(ordinal)?;
        let uuid = driver.uuid(device)?;
        let mut handle = CUcontext::NULL;
        // SAFETY: a place for the answer.
        unsafe { driver.api().cuDevicePrimaryCtxRetain(&raw mut handle, device) }.map_err(error)?;
        Ok(Self { driver, handle, device, uuid, is_retained: true, stream: OnceLock::new() })
    }

    /// One that the application has made.
    ///
    /// # Safety
    /// It is a context, and stays one for as long as this (or is destroyed by `cuCtxDestroy`, which the driver then tells).
    pub(crate) unsafe fn of_application(driver: &'static Driver, handle: CUcontext) -> Result<Self> {
        if handle.is_null() {
            return Err(Error::InvalidArgument { what: "context", why: "must not be null" });
        }
        let mut made =
            Self { driver, handle, device: 0, uuid: [0; 16], is_retained: false, stream: OnceLock::new() };
        let mut device = 0;
        {
            let current = made.enter()?;
            // SAFETY: a place for the answer.
            unsafe { current.api().cuCtxGetDevice(&raw mut device) }.map_err(error)?;
        }
        made.device = device;
        made.uuid = driver.uuid(device)?;
        Ok(made)
    }

    pub(crate) const fn driver(&self) -> &'static Driver {
        self.driver
    }

    pub(crate) const fn handle(&self) -> CUcontext {
        self.handle
    }

    /// The device's place among those that the process sees.
    pub(crate) const fn device(&self) -> CUdevice {
        self.device
    }

    pub(crate) const fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Makes it the current one of this thread, until the value is dropped: then that is what it was.
    pub(crate) fn enter(&self) -> Result<Current<'_>> {
        self.driver.check_not_inherited()?;
        // SAFETY: a context, by the contracts of the constructors.
        unsafe { self.driver.api().cuCtxPushCurrent(self.handle) }.map_err(error)?;
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
            // SAFETY: made here, and nobody copies any more.
            let _ = unsafe { self.driver.api().cuStreamDestroy(stream) };
        }
        if self.is_retained {
            // SAFETY: retained once. (A driver that shuts down with the process refuses, which is as good.)
            let _ = unsafe { self.driver.api().cuDevicePrimaryCtxRelease(self.device) };
        }
    }
}

/// A context that is this thread's current one.
pub(crate) struct Current<'c> {
    context: &'c Context,
    /// Belongs to the thread.
    thread: PhantomData<*const ()>,
}

impl Current<'_> {
    pub(crate) fn api(&self) -> &'static Api {
        self.context.driver.api()
    }

    /// A stream for copies, which waits for no other.
    pub(crate) fn stream(&self) -> Result<CUstream> {
        if let Some(stream) = self.context.stream.get() {
            return Ok(*stream);
        }
        let mut stream = CUstream::NULL;
        // SAFETY: a place for the answer.
        unsafe { self.api().cuStreamCreate(&raw mut stream, CU_STREAM_NON_BLOCKING) }.map_err(error)?;
        if self.context.stream.set(stream).is_err() {
            // Another thread was faster.
            // SAFETY: made above, and never used.
            let _ = unsafe { self.api().cuStreamDestroy(stream) };
        }
        Ok(self.context.stream.get().copied().unwrap_or(stream))
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = CUcontext::NULL;
        // SAFETY: a place for the answer. It pushed one, and a value of this type stays in its thread.
        let _ = unsafe { self.api().cuCtxPopCurrent(&raw mut popped) };
    }
}
