//! [`Device`]: what has to be known of a device.

use level_zero_sys::{
    ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE, ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY,
    ZE_MEMORY_TYPE_HOST, ze_device_handle_t, ze_memory_type_t,
};
use umf_core::{Layout, Result};
use umf_os::page_size;

use crate::context::Context;
use crate::failure::error;
use crate::native;
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
    /// None, for memory of the host in a context of which nobody says which driver it is of.
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
