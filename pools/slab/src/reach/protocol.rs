//! How a thread comes in and others keep it out, and how a life changes hands; apart from where the words lie.

use core::sync::atomic::Ordering;

/// The owner of a span whose lives are taken by atomic exchange.
pub(crate) const UNBIASED: u32 = 0;
/// The owner of a span whose owner is being waited for.
pub(super) const REVOKING: u32 = u32::MAX;

/// The words of one thread.
pub(super) trait Door {
    /// Whether somebody is to wait for the thread.
    fn is_busy(&self) -> bool;
    fn set_busy(&self, busy: bool, order: Ordering);
    fn set_pending(&self, pending: bool, order: Ordering);
    /// The thread's side of [`Door::heavy`]. `fenced`: the other side does nothing for it.
    fn light(fenced: bool);
    /// Of what the caller wrote before and another thread wrote before its `light`, one at least is read by the other behind that.
    fn heavy();
    /// Waits a little, for the time number `turn`.
    fn pause(turn: u32);
}

/// The thread comes in and looks whether it may; if not, it has to leave at once. `may` reads what others write before they
/// wait, with [`Ordering::Acquire`].
#[inline(always)]
pub(super) fn come_in<D: Door>(door: &D, fenced: bool, may: impl FnOnce() -> bool) -> bool {
    door.set_busy(true, Ordering::Relaxed);
    D::light(fenced);
    may()
}

/// The thread leaves.
#[inline(always)]
pub(super) fn leave(door: &impl Door) {
    door.set_busy(false, Ordering::Release);
}

/// From here on these threads do not come in; those who are inside are to be waited for. `close` closes the gate that they
/// look at first.
pub(super) fn keep_out<'a, D: Door + 'a>(doors: impl Iterator<Item = &'a D>, close: impl FnOnce()) {
    doors.for_each(|door| door.set_pending(true, Ordering::Relaxed));
    close();
    D::heavy();
}

/// Waits until the thread, which is kept out, is not inside.
pub(super) fn await_leaving<D: Door>(door: &D) {
    let mut turn = 0_u32;
    while door.is_busy() {
        D::pause(turn);
        turn = turn.saturating_add(1);
    }
}

/// The thread may come in again, as soon as the gate is open.
pub(super) fn let_in(door: &impl Door) {
    door.set_pending(false, Ordering::Release);
}

/// Takes a span from its thread, so that its lives are taken by atomic exchange. `forget` has the thread forget what it remembers of the
/// span.
pub(super) fn share<D: Door>(
    door: &D,
    set_owner: impl Fn(u32),
    (close, forget, open): (impl FnOnce(), impl FnOnce(), impl FnOnce()),
) {
    // Someone else who comes meanwhile sees neither an owner nor that there is none, and waits.
    set_owner(REVOKING);
    keep_out(core::iter::once(door), close);
    await_leaving(door);
    forget();
    set_owner(UNBIASED);
    let_in(door);
    open();
}
