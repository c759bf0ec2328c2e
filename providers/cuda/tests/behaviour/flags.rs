//! The driver's own flags for allocations.

use umf_core::{Error, Provider};
use umf_provider_cuda::CudaMemory;

use super::{alone, builder, free, layout};

/// What the driver is told is what was set: it refuses what it does not know.
#[test]
fn flags_are_the_drivers() {
    let _alone = alone();
    for (memory, flags, is_known) in [
        (CudaMemory::Host, 0, true),
        (CudaMemory::Host, 4, true),
        (CudaMemory::Host, 0x100, false),
        (CudaMemory::Managed, 1, true),
        (CudaMemory::Managed, 2, true),
        (CudaMemory::Managed, 0, false),
        // Has none.
        (CudaMemory::Device, 0x100, true),
    ] {
        let provider = builder(memory).alloc_flags(flags).build().unwrap();
        match provider.allocate(layout(100)) {
            Ok(region) => {
                assert!(is_known, "{memory} {flags}");
                free(&provider, region);
            }
            Err(Error::Driver { name, .. }) => {
                assert_eq!((name, is_known), ("CUDA_ERROR_INVALID_VALUE", false), "{memory} {flags}");
            }
            Err(error) => panic!("{memory} {flags}: {error}"),
        }
    }
}
