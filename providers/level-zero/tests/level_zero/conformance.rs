//! The conformance suite over every kind of memory and every handle format.

use umf_provider_level_zero::{DeviceSelector, FdFormat, FreePolicy, HandleFormat, LevelZeroProvider};
use umf_testkit::provider_conformance;

use super::{built, device, soft};

provider_conformance!(device_memory, || built(device()));
provider_conformance!(fds_in_handles, || built(device().handles(HandleFormat::Fd)));
provider_conformance!(opaque_handles, || built(device().handles(HandleFormat::Opaque)));
provider_conformance!(second_device, || built(LevelZeroProvider::device(another())));
provider_conformance!(resident_on_a_peer, || built(device().resident([1]).free_policy(FreePolicy::Blocking)));
provider_conformance!(exportable, || built(
    device().exportable(FdFormat::Opaque).free_policy(FreePolicy::Deferred)
));
provider_conformance!(host_memory, || built(LevelZeroProvider::host(soft())));
provider_conformance!(managed_memory, || built(LevelZeroProvider::managed(soft())));

fn another() -> DeviceSelector {
    let mut selector = soft();
    selector.device = 1;
    selector
}
