//! [`Completion`]: tells a pool when asynchronous work has finished with a freed block.

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
