//! Purging.

use umf_core::{Address, Error, Purge, Result};

use super::provider::PluginProvider;

impl PluginProvider {
    /// # Safety
    /// Nobody needs the content of the range.
    unsafe fn purge_range(&self, base: Address, size: usize, lazily: bool) -> Result<()> {
        self.check_not_frozen()?;
        if size == 0 || !base.is_aligned_to(self.page) || !size.is_multiple_of(self.page) {
            return Err(Error::InvalidArgument { what: "range", why: "must be one or more whole pages" });
        }
        self.regions.check_range(base, size)?;
        // SAFETY: the range lies in a live region, whose owner is in this call; the rest is passed on to the caller.
        unsafe { self.instance.purge(base, size, lazily) }
    }
}

impl Purge for PluginProvider {
    unsafe fn purge_lazy(&self, base: Address, size: usize) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.purge_range(base, size, true) }
    }

    unsafe fn purge_forced(&self, base: Address, size: usize) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.purge_range(base, size, false) }
    }
}
