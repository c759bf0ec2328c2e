//! [`Completion`]: whether work that was given away is done, so that memory which it uses can be used again.

/// How far the work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Progress {
    /// Not done: the memory may still be in use.
    Pending,
    /// Done: nobody uses the memory any more.
    Ready,
    /// Nobody can tell: the device or the stream failed. The memory counts as in use.
    Lost,
}

/// Work that may still use memory which its owner has freed: what a device was told to do, for one.
///
/// A block that is freed with a completion ([`crate::DeferredFree::free_after`]) is not handed out, and its region does not go back to the
/// provider, before the completion is [`Progress::Ready`]. An event of a stream is the usual one; one value may stand for all blocks
/// that were freed between two events.
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
/// A completion may be asked in any thread that uses the pool, more than once, and by several threads at a time. A block for which it
/// has said [`Progress::Ready`] asks no more. After [`Progress::Lost`] it may be asked again: an application that has reset the device
/// has its completions say `Ready` from then on.
///
/// It is asked, and dropped, without any lock of the pool. It must not wait, and must not be what keeps the pool alive (an
/// `Arc` of it): a pool that goes waits for whoever is asking. One that panics counts as lost.
pub trait Completion: Send + Sync {
    /// How far the work is, as far as can be told without waiting.
    fn progress(&self) -> Progress;

    /// Whether a block that other processes have open is held for them alone, without this completion.
    fn yields_to_leases(&self) -> bool {
        false
    }
}
