//! The conformance suite over every kind of memory, and every way in which handles travel.

use umf_provider_level_zero::{Choice, FdForm, FreePolicy, Handles, LevelZeroProvider};
use umf_testkit::provider_conformance;

use super::{built, device, soft};

provider_conformance!(device_memory, || built(device()));
provider_conformance!(by_fds_in_handles, || built(device().handles(Handles::Fd)));
provider_conformance!(by_handles_as_they_are, || built(device().handles(Handles::Opaque)));
provider_conformance!(on_another_device, || built(LevelZeroProvider::device(another())));
provider_conformance!(resident_on_a_peer, || built(device().resident([1]).free_policy(FreePolicy::Blocking)));
provider_conformance!(exportable, || built(
    device().exportable(FdForm::Opaque).free_policy(FreePolicy::Deferred)
));
provider_conformance!(host_memory, || built(LevelZeroProvider::host(soft())));
provider_conformance!(managed_memory, || built(LevelZeroProvider::managed(soft())));

fn another() -> Choice {
    let mut choice = soft();
    choice.device = 1;
    choice
}
