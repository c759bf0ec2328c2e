//! The provider over the software driver, without a loader: the conformance suite, and the
//! behaviour that is specific to this provider.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod conformance;
#[path = "../../../../drivers/software/level-zero/tests/driver/mod.rs"]
mod driver;
mod faults;
mod fds;
mod handles;
mod pools;
mod regions;
mod residency;

use std::sync::{Arc, Once};

use umf_core::{Layout, Provider, Region, Result};
use umf_provider_level_zero::{DeviceSelector, LevelZeroBuilder, LevelZeroProvider};

/// Selects the first device of the software driver. Its handles support every format, unless a test
/// sets another style.
fn soft() -> DeviceSelector {
    static SET: Once = Once::new();
    SET.call_once(|| {
        if std::env::var_os("TESTS_DRIVER_CHILD").is_none() {
            // SAFETY: only the driver reads the variable, and it is initialized after this.
            unsafe { std::env::set_var("ZE_SOFT_IPC", "opaque") };
        }
    });
    DeviceSelector::device(0).loader(driver::library())
}

fn device() -> LevelZeroBuilder {
    LevelZeroProvider::device(soft())
}

fn built(builder: LevelZeroBuilder) -> Arc<LevelZeroProvider> {
    builder.build().unwrap()
}

fn allocate(provider: &LevelZeroProvider, size: usize) -> Result<Region> {
    provider.allocate(Layout::new(size, 1)?)
}

fn free(provider: &LevelZeroProvider, region: Region) -> Result<()> {
    // SAFETY: the tests do not use regions after freeing them.
    unsafe { provider.free(region) }
}

fn put(provider: &LevelZeroProvider, region: &Region, bytes: &[u8]) {
    // SAFETY: the region is live, and no reference into it exists.
    unsafe { provider.transfer().unwrap().write(region.base(), bytes) }.unwrap();
}

fn get(provider: &LevelZeroProvider, region: &Region, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    // SAFETY: as above.
    unsafe { provider.transfer().unwrap().read(region.base(), &mut bytes) }.unwrap();
    bytes
}
