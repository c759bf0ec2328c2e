//! Memory that the CPU must not touch: what the other commands do with pointers is done by copies of the device.

use umf::Address;
use umf::Pool;
use umf::cuda::CudaProvider;
use umf_runtime::tracker;

use crate::Failure;
use crate::memory::Actor;

/// A slab pool over CUDA memory of a kind, on the driver that the search path has.
pub(crate) fn cuda_pool(memory: &str, name: &str) -> Result<Pool, Failure> {
    let kind = memory.parse().map_err(|error| Failure::new("InvalidArgument", error))?;
    let provider = CudaProvider::builder().memory(kind).name(name.to_owned()).build()?;
    Ok(Pool::builder().provider(provider).build()?)
}

impl Actor {
    /// Copies bytes to the beginning of a block, region or mapping; `false` if the CPU does that.
    pub(crate) fn copied_into(
        &self,
        name: &str,
        content: impl FnOnce(usize) -> Vec<u8>,
    ) -> Result<bool, Failure> {
        if let Some(mapping) = self.mappings.get(name) {
            if !mapping.is_host_accessible() {
                mapping.write(0, &content(mapping.len()))?;
                return Ok(true);
            }
            return Ok(false);
        }
        let (address, size) = self.place(name)?;
        with_transfer(address, |transfer| {
            // SAFETY: the actor's own live block or region, of which nothing has a reference.
            unsafe { transfer.write(address, &content(size)) }
        })
    }

    /// What a block or region of a device holds; nothing if the CPU can look.
    pub(crate) fn copied_out(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        let (address, size) = self.place(name)?;
        let mut content = vec![0; size];
        let copied = with_transfer(address, |transfer| {
            // SAFETY: as above.
            unsafe { transfer.read(address, &mut content) }
        })?;
        Ok(copied.then_some(content))
    }
}

/// Has whoever copies the memory at an address do something, if the CPU must not touch it.
fn with_transfer(
    address: Address,
    copy: impl FnOnce(&dyn umf_core::Transfer) -> umf_core::Result<()>,
) -> Result<bool, Failure> {
    let found = tracker::find(address).ok_or_else(|| Failure::new("NotTracked", address))?;
    let owner = found.owner.guard().ok_or_else(|| Failure::new("NotTracked", address))?;
    let Some(provider) = owner.provider() else { return Ok(false) };
    match provider.transfer().filter(|_| !provider.memory_kind().is_host_accessible()) {
        Some(transfer) => Ok(copy(transfer).map(|()| true)?),
        None => Ok(false),
    }
}
