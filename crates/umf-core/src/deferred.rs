//! Deferred free: memory that is freed while other processes have it open, or while a device works
//! on it.
//!
//! [`OnFree`] selects what happens to its contents. A [`Completion`] is the work of a device.
//! [`crate::DeferredFree`] is the ability of a pool.

crate::words! {
    /// What a free does with the contents of memory that another process has open.
    #[derive(Default)]
    pub enum OnFree {
        /// The contents stay until the last lease ends.
        #[default]
        Hold = "hold",
        /// Whole pages go back to the system at once. Importers that still read them see zeros. If
        /// the provider cannot purge ([`crate::Provider::purge`]), the contents stay. In both cases
        /// the addresses are not reused before the last lease ends.
        Release = "release",
    }
}

/// Memory whose free is deferred. A snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeferredStatistics {
    /// Blocks that their pool does not reuse yet.
    pub blocks: u64,
    /// Regions that have not gone back to their provider yet.
    pub regions: u64,
    /// Bytes in these blocks and regions.
    pub bytes: u64,
    /// Of `bytes`: bytes in blocks that wait for a [`crate::Completion`], and in regions with such
    /// a block whose pool was dropped.
    pub pending_bytes: u64,
    /// Of `pending_bytes`: bytes with a completion that is [`crate::Progress::Lost`].
    pub lost_bytes: u64,
    /// Bytes that were in use when there was no memory to record that. They leak.
    pub unrecorded_bytes: u64,
}

impl DeferredStatistics {
    /// Returns whether there is no deferred free.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.blocks == 0 && self.regions == 0
    }
}

/// The state of the work behind a [`Completion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Progress {
    /// The work is not done: the memory may still be in use.
    Pending,
    /// The work is done: the memory is not in use any more.
    Ready,
    /// The device or stream failed, so the state is unknown. The memory counts as in use.
    Lost,
}

/// Asynchronous work that may still use a block after its owner freed it: a kernel on a device, for
/// example.
///
/// A pool does not reuse a block that was freed with a completion
/// ([`crate::DeferredFree::free_after`]), and does not return its region to the provider, before
/// the completion is [`Progress::Ready`]. The usual completion is an event of a stream. One
/// completion may cover all blocks that were freed between two events.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use umf_core::{Completion, Progress};
///
/// struct Done(AtomicBool);
///
/// impl Completion for Done {
///     fn progress(&self) -> Progress {
///         if self.0.load(Ordering::Acquire) { Progress::Ready } else { Progress::Pending }
///     }
/// }
/// ```
///
/// Any thread that uses the pool may poll a completion, repeatedly, and at the same time as other
/// threads. The pool does not poll again after [`Progress::Ready`]. It may poll again after
/// [`Progress::Lost`]: an application that has reset the device makes its completions `Ready`.
///
/// The pool holds no lock while it polls or drops a completion. `progress` must not block. A
/// completion must not own the pool (an `Arc` of it): a pool that is dropped waits for threads that
/// poll. A panic counts as [`Progress::Lost`].
pub trait Completion: Send + Sync {
    /// Returns the state of the work. Must not block.
    fn progress(&self) -> Progress;

    /// Returns whether a block that other processes have open waits for their leases alone, without
    /// this completion.
    fn yields_to_leases(&self) -> bool {
        false
    }
}
