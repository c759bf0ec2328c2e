//! [`CopyEngine`]: copies and fills with the command lists of a device. [`Device`]: a device of a
//! context, with the properties that are queried once.

use std::sync::Arc;

use level_zero_sys::{
    ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE, ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY,
    ZE_MEMORY_TYPE_HOST, ze_command_list_handle_t, ze_device_handle_t, ze_memory_type_t,
};
use umf_core::{Address, Error, Layout, Result, Transfer};
use umf_os::page_size;
use umf_sync::Lock;

use crate::context::{Context, DeviceSelector};
use crate::native::{self, AllocationDesc, CopyEnd, DriverResult, allocation_error, driver_error};

/// A device and its properties.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    pub handle: ze_device_handle_t,
    /// The largest allocation without relaxed limits (`maxMemAllocSize`), in bytes.
    pub max_allocation: u64,
    /// The first command queue group that can copy.
    pub copy_group: u32,
    /// Size of a cache line in bytes.
    pub cache_line: Option<usize>,
}

impl Device {
    /// No device: for host memory in a context of an unknown driver.
    pub(crate) const NONE: Self =
        Self { handle: ze_device_handle_t::NULL, max_allocation: 0, copy_group: 0, cache_line: None };

    /// Returns whether this is [`Device::NONE`].
    pub(crate) fn is_none(&self) -> bool {
        self.handle.is_null()
    }

    pub(crate) fn new(context: &Context, handle: ze_device_handle_t) -> Result<Self> {
        let api = context.api();
        let properties = native::properties(api, handle).map_err(driver_error)?;
        let groups = native::queue_groups(api, handle).unwrap_or_default();
        // Compute groups can copy too, but not all drivers set the copy flag on them.
        let can_copy =
            ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY | ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE;
        let group = groups.iter().position(|group| group.flags & can_copy != 0).unwrap_or(0);
        Ok(Self {
            handle,
            max_allocation: properties.maxMemAllocSize,
            copy_group: u32::try_from(group).unwrap_or(0),
            cache_line: native::cache_line(api, handle).ok().flatten(),
        })
    }
}

/// Returns the page size of allocations of a kind, in bytes.
///
/// If the driver has no query for it, one small allocation is made, inspected and freed.
pub(crate) fn page_size_of(
    context: &Context,
    kind: ze_memory_type_t,
    desc: &AllocationDesc<'_>,
) -> Result<usize> {
    if kind != ZE_MEMORY_TYPE_HOST
        && let Ok(page) = native::query_page_size(context, desc.device, 1)
        // Some drivers return 0.
        && page.is_power_of_two()
    {
        return Ok(page.max(page_size()));
    }
    let layout = Layout::new(1, 1)?;
    let probe =
        native::allocate(context, layout, desc).map_err(|failure| allocation_error(failure, layout))?;
    let Some(base) = probe else { return Ok(page_size()) };
    let info = native::allocation_info(context, base);
    native::free(context, base, None).map_err(driver_error)?;
    let page = info.ok().and_then(|info| usize::try_from(info.page).ok());
    Ok(page.filter(|page| page.is_power_of_two()).map_or(page_size(), |page| page.max(page_size())))
}

/// Copies and fills memory of a context on one device. Each call takes an immediate command list
/// from a free list, or creates one.
#[derive(Debug)]
pub(crate) struct CopyEngine {
    context: Arc<Context>,
    device: Device,
    /// Command lists that no call uses: at most as many as there were concurrent copies.
    free_lists: Lock<Vec<ze_command_list_handle_t>>,
}

impl CopyEngine {
    pub(crate) fn new(context: Arc<Context>, device: Device) -> Self {
        Self { context, device, free_lists: Lock::new(Vec::new()) }
    }

    /// Returns an engine of the selected device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the driver has no such device; errors of [`Context::select`].
    pub(crate) fn select(selector: &DeviceSelector) -> Result<Self> {
        let (context, devices) = Context::select(selector)?;
        let device = devices.get(selector.device as usize).copied().ok_or(Error::InvalidArgument {
            what: "device",
            why: "must be below the number of devices of the Level Zero driver (umf info lists them)",
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

    /// Runs `call` with a command list. After an error the list is destroyed.
    fn with_list(&self, call: impl FnOnce(ze_command_list_handle_t) -> DriverResult) -> Result<()> {
        self.context.check()?;
        if self.device.is_none() {
            return Err(NO_DEVICE);
        }
        let free = self.free_lists.lock().pop();
        let list = match free {
            Some(list) => list,
            None => native::create_list(&self.context, self.device.handle, self.device.copy_group)
                .map_err(driver_error)?,
        };
        match call(list) {
            Ok(()) => {
                self.free_lists.lock().push(list);
                Ok(())
            }
            Err(failure) => {
                let error = driver_error(failure);
                // The first error is the one to report.
                let _ = native::destroy_list(&self.context, list);
                Err(error)
            }
        }
    }

    /// Checks that the range is memory of the context.
    fn check(&self, base: Address, size: usize) -> Result<()> {
        self.context.check()?;
        self.context.address_map.lock().check(base, size)
    }
}

/// The error of operations that need a device.
pub(crate) const NO_DEVICE: Error = Error::NotSupported {
    what: "copying or importing without a device",
    owner: "the Level Zero provider of host memory; pass a device of the context to from_context",
    native: 0,
};

impl Transfer for CopyEngine {
    unsafe fn read(&self, from: Address, into: &mut [u8]) -> Result<()> {
        self.check(from, into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        let size = into.len();
        self.with_list(|list| {
            native::append_copy(
                &self.context,
                list,
                CopyEnd::HostDestination(into),
                CopyEnd::Context(from, size),
            )
        })
    }

    unsafe fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        self.check(to, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.with_list(|list| {
            native::append_copy(
                &self.context,
                list,
                CopyEnd::Context(to, bytes.len()),
                CopyEnd::HostSource(bytes),
            )
        })
    }

    unsafe fn fill(&self, to: Address, size: usize, byte: u8) -> Result<()> {
        self.check(to, size)?;
        if size == 0 {
            return Ok(());
        }
        self.with_list(|list| native::append_fill(&self.context, list, (to, size), byte))
    }

    unsafe fn copy(&self, from: Address, to: Address, size: usize) -> Result<()> {
        self.check(from, size)?;
        self.check(to, size)?;
        if size == 0 {
            return Ok(());
        }
        self.with_list(|list| {
            native::append_copy(&self.context, list, CopyEnd::Context(to, size), CopyEnd::Context(from, size))
        })
    }
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        if self.context.is_usable() {
            for list in self.free_lists.lock().drain(..) {
                let _ = native::destroy_list(&self.context, list).map_err(driver_error);
            }
        }
    }
}
