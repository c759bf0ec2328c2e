//! [`Engine`]: a device of a context, which copies.
//! [`Device`] is what is known of a device.

use std::sync::Arc;

use level_zero_sys::{
    ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE, ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY,
    ZE_MEMORY_TYPE_HOST, ze_command_list_handle_t, ze_device_handle_t, ze_memory_type_t,
};
use umf_core::{Address, Error, Layout, Result, Transfer};
use umf_os::page_size;
use umf_sync::Lock;

use crate::context::{Choice, Context};
use crate::failure::error;
use crate::native;
use crate::native::Answer;
use crate::native::list::{self, End};
use crate::native::memory::Wish;

/// A device, and what was asked of it once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    pub handle: ze_device_handle_t,
    /// The largest allocation without relaxed limits, in bytes.
    pub largest: u64,
    /// The first group of queues that copies.
    pub group: u32,
    pub cache_line: Option<usize>,
}

impl Device {
    /// None, for memory of the host in a context of an unknown driver.
    pub(crate) const ABSENT: Self =
        Self { handle: ze_device_handle_t::NULL, largest: 0, group: 0, cache_line: None };

    /// Whether there is none.
    pub(crate) fn is_absent(&self) -> bool {
        self.handle.is_null()
    }

    pub(crate) fn new(context: &Context, handle: ze_device_handle_t) -> Result<Self> {
        let api = context.api();
        let properties = native::device::properties(api, handle).map_err(error)?;
        let groups = native::device::queue_groups(api, handle).unwrap_or_default();
        // Who computes copies, too, though not all drivers say so.
        let copies = ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY | ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE;
        let group = groups.iter().position(|group| group.flags & copies != 0).unwrap_or(0);
        Ok(Self {
            handle,
            largest: properties.maxMemAllocSize,
            group: u32::try_from(group).unwrap_or(0),
            cache_line: native::device::cache_line(api, handle).ok().flatten(),
        })
    }
}

/// The granularity of allocations of a kind, in bytes.
///
/// Asked for where the driver can be asked; else one small allocation tells, which goes again.
pub(crate) fn page_of(context: &Context, kind: ze_memory_type_t, wish: &Wish<'_>) -> Result<usize> {
    if kind != ZE_MEMORY_TYPE_HOST
        && let Ok(page) = native::memory::query_page_size(context, wish.device, 1)
        // Some answer with 0.
        && page.is_power_of_two()
    {
        return Ok(page.max(page_size()));
    }
    let layout = Layout::new(1, 1)?;
    let probe = native::memory::allocate(context, layout, wish)
        .map_err(|failure| crate::failure::of_allocation(failure, layout))?;
    let Some(base) = probe else { return Ok(page_size()) };
    let facts = native::memory::facts(context, base);
    native::memory::free(context, base, None).map_err(error)?;
    let page = facts.ok().and_then(|facts| usize::try_from(facts.page).ok());
    Ok(page.filter(|page| page.is_power_of_two()).map_or(page_size(), |page| page.max(page_size())))
}

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
