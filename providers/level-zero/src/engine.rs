//! [`Engine`]: a device of a context, which copies.

use std::sync::Arc;

use level_zero_sys::ze_command_list_handle_t;
use umf_core::{Address, Error, Result, Transfer};
use umf_sync::Lock;

use crate::context::{Choice, Context};
use crate::device::Device;
use crate::failure::error;
use crate::native::Answer;
use crate::native::list::{self, End};

/// A device of a context. Copies go through its command lists: a thread has one for itself as long as a copy lasts.
#[derive(Debug)]
pub(crate) struct Engine {
    context: Arc<Context>,
    device: Device,
    /// Lists that nobody uses just now: as many as there were copies at once.
    idle: Lock<Vec<ze_command_list_handle_t>>,
}

impl Engine {
    pub(crate) fn new(context: Arc<Context>, device: Device) -> Self {
        Self { context, device, idle: Lock::new(Vec::new()) }
    }

    /// The device that settings name.
    pub(crate) fn chosen(choice: &Choice) -> Result<Self> {
        let (context, devices) = Context::chosen(choice)?;
        let device = devices.get(choice.device as usize).copied().ok_or(Error::InvalidArgument {
            what: "device",
            why: "the Level Zero driver has fewer; they are counted from 0",
        })?;
        let device = Device::new(&context, device)?;
        Ok(Self::new(context, device))
    }

    pub(crate) const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) const fn device(&self) -> &Device {
        &self.device
    }

    /// Does something with a list that waits for it. One that has failed is not used again.
    fn with_list(&self, work: impl FnOnce(ze_command_list_handle_t) -> Answer) -> Result<()> {
        self.context.check()?;
        if self.device.is_absent() {
            return Err(WITHOUT_DEVICE);
        }
        let idle = self.idle.lock().pop();
        let list = match idle {
            Some(list) => list,
            None => list::create(&self.context, self.device.handle, self.device.group).map_err(error)?,
        };
        match work(list) {
            Ok(()) => {
                self.idle.lock().push(list);
                Ok(())
            }
            Err(failure) => {
                let failed = error(failure);
                // What it says of that is of no more use.
                let _ = list::destroy(&self.context, list);
                Err(failed)
            }
        }
    }

    fn check(&self, base: Address, size: usize) -> Result<()> {
        self.context.check()?;
        self.context.ranges.lock().check(base, size)
    }
}

/// What a device would be needed for.
pub(crate) const WITHOUT_DEVICE: Error = Error::NotSupported {
    what: "copying, or opening memory of other processes",
    owner: "Level Zero memory of the host without a device; name one of the context's",
    native: 0,
};

impl Transfer for Engine {
    unsafe fn read(&self, from: Address, into: &mut [u8]) -> Result<()> {
        self.check(from, into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        let size = into.len();
        self.with_list(|list| list::copy(&self.context, list, End::Into(into), End::At(from, size)))
    }

    unsafe fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        self.check(to, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.with_list(|list| list::copy(&self.context, list, End::At(to, bytes.len()), End::From(bytes)))
    }

    unsafe fn fill(&self, to: Address, size: usize, byte: u8) -> Result<()> {
        self.check(to, size)?;
        if size == 0 {
            return Ok(());
        }
        self.with_list(|list| list::fill(&self.context, list, (to, size), byte))
    }

    unsafe fn copy(&self, from: Address, to: Address, size: usize) -> Result<()> {
        self.check(from, size)?;
        self.check(to, size)?;
        if size == 0 {
            return Ok(());
        }
        self.with_list(|list| list::copy(&self.context, list, End::At(to, size), End::At(from, size)))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.context.belongs_here() {
            for list in self.idle.lock().drain(..) {
                let _ = list::destroy(&self.context, list).map_err(error);
            }
        }
    }
}
