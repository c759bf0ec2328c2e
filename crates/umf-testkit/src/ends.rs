//! [`Ends`]: threads that run until a flag is set end with the test that would set it.

use core::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag when it is dropped. In a thread scope whose threads run until the flag is set: if what goes on beside them panics, the
/// scope waits for them, and without this for ever.
#[derive(Debug)]
pub struct Ends<'e>(pub &'e AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
