//! The driver's flags for allocations.

use umf_core::{Error, Provider};
use umf_provider_cuda::CudaMemory;

use super::{alone, builder, free, layout};

/// The driver rejects unknown flags, which shows that it received them.
#[test]
fn alloc_flags_are_passed_to_the_driver() {
    let _alone = alone();
    for (memory, flags, is_known) in [
        (CudaMemory::Host, 0, true),
        (CudaMemory::Host, 4, true),
        (CudaMemory::Host, 0x100, false),
        (CudaMemory::Managed, 1, true),
        (CudaMemory::Managed, 2, true),
        (CudaMemory::Managed, 0, false),
        // Ignored for this kind.
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
