//! [`RemoteSettings`]: the settings of a server and of the connections to servers.

use core::time::Duration;
use std::path::PathBuf;

use umf_core::settings::{ByteSize, Microseconds, Milliseconds, Trusted};

/// The longest reply that a server sends as one message, its header included. Longer messages need
/// a handshake in several providers.
pub(crate) const MAX_REPLY: usize = 16 << 10;

/// The most data of a reply, in bytes.
pub(crate) const MAX_SMALL: usize = MAX_REPLY - 128;

umf_core::settings! {
    /// The section `[remote]`.
    #[non_exhaustive]
    pub struct RemoteSettings {
        /// libfabric: the path or name of the library. Refused in ./umf.toml.
        pub library: PathBuf as Trusted<PathBuf> = libfabric_sys::LIBRARY.into();
        /// The provider of libfabric that serves: a name of fi_info(1), such as "tcp", "efa" or
        /// "verbs;ofi_rxm". "" is the first one that libfabric offers and that other machines
        /// reach. Importers use the one that the producer names.
        pub provider: String = String::new();
        /// The network interface or IP address at which this process serves. "" is the first one
        /// that is not the loopback interface.
        pub interface: String = String::new();
        /// How long a read or another call waits for the producer, in milliseconds. After that the
        /// producer is taken for lost, and the next call connects again.
        pub timeout("timeout_ms"): Duration as Milliseconds = Duration::from_secs(5),
            "a whole number of milliseconds, at least 1" if |time| !time.is_zero();
        /// Longest spinning of a call before it sleeps, in microseconds. Each connection learns its
        /// own length below that. 0 sleeps at once.
        pub spin("spin_us"): Duration as Microseconds = Duration::from_millis(2);
        /// Longest read that the producer's thread answers with a message; at most 16,256 bytes.
        /// Longer ones are one-sided.
        pub small_read: usize as ByteSize = MAX_SMALL,
            "a number of bytes up to 16256" if |bytes| *bytes <= MAX_SMALL;
        /// Limit of the blocks that a server keeps registered; 0 is unlimited. Beyond it, idle ones
        /// are closed, and if none is idle, reads of further blocks are answered by messages.
        pub max_registered: u64 = 4096;
        /// Limit of the bytes of these blocks; 0 is unlimited.
        pub max_registered_bytes: u64 as ByteSize = 0;
        /// How long a server keeps an importer that sends nothing, in milliseconds. It connects
        /// again when it needs to.
        pub idle("idle_ms"): Duration as Milliseconds = Duration::from_secs(30),
            "a whole number of milliseconds, at least 100" if |time| time.as_millis() >= 100;
        /// Longest grant to write that a server gives, in milliseconds; 0 gives none.
        pub max_grant("max_grant_ms"): Duration as Milliseconds = Duration::from_secs(10);
        /// Most importers of a server at a time.
        pub max_importers: u32 = 1024, "at least 1" if |count| *count > 0;
        /// Whether memory that the fabric cannot read (of devices, or that needs notices before
        /// accesses) is copied by the producer's thread. Otherwise reads of it fail.
        pub bounce: bool = true;
        /// Whether memory of this machine is mapped. "false" is for tests: it is then read over the
        /// fabric, as if it were another machine's.
        pub local: bool = true;
    }
}

/// The longest times of the settings: they are added to the time of day.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

impl RemoteSettings {
    /// Returns these settings with times of at most 30 days.
    pub(crate) fn bounded(mut self) -> Self {
        for time in [&mut self.timeout, &mut self.idle, &mut self.max_grant, &mut self.spin] {
            *time = (*time).min(LONGEST);
        }
        self
    }
}
