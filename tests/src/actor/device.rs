//! Access to memory that the CPU cannot access: copies by the device replace loads and stores.

use umf::Address;
use umf::Pool;
use umf::cuda::CudaProvider;
use umf_runtime::tracker;

use crate::Failure;
use crate::memory::ActorState;

/// Creates a slab pool over CUDA memory of this kind, with the driver on the library path.
pub(crate) fn cuda_pool(memory: &str, name: &str) -> Result<Pool, Failure> {
    let kind = memory.parse().map_err(|error| Failure::new("InvalidArgument", error))?;
    let provider = CudaProvider::builder().memory(kind).name(name.to_owned()).build()?;
    Ok(Pool::builder().provider(provider).build()?)
}

impl ActorState {
    /// Copies bytes to the beginning of a block, region or mapping by the device. Returns `false`
    /// without copying if the CPU can access the memory.
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
        let (address, size) = self.extent(name)?;
        with_transfer(address, |transfer| {
            // SAFETY: the actor's own live block or region, of which nothing has a reference.
            unsafe { transfer.write(address, &content(size)) }
        })
    }

    /// Returns the content of a block or region of a device, or `None` if the CPU can access it.
    pub(crate) fn copied_out(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        let (address, size) = self.extent(name)?;
        let mut content = vec![0; size];
        let copied = with_transfer(address, |transfer| {
            // SAFETY: the actor's own live block or region, which no thread writes.
            unsafe { transfer.read(address, &mut content) }
        })?;
        Ok(copied.then_some(content))
    }
}

/// Runs `copy` with the transfers of the provider of `address`. Returns `false` without running it
/// if the CPU can access the memory.
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
