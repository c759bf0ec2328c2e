//! The last native error of this library's own providers, per thread.

use core::cell::Cell;
use core::ffi::{CStr, c_char};

use crate::boundary::{Out, Outcome, PROVIDER_SPECIFIC};

use super::said::say;

/// Which of this library's providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    Os,
    DevDax,
    File,
    Fixed,
    LevelZero,
    Cuda,
}

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    Allocation,
    Free,
    PurgeLazy,
    PurgeForce,
}

impl Flavour {
    /// Whether a driver answers for it, with its own numbers.
    pub(super) const fn is_of_device(self) -> bool {
        matches!(self, Self::LevelZero | Self::Cuda)
    }

    /// The number that stands for success; those of errors follow.
    const fn first(self) -> i32 {
        match self {
            Self::Os => 1000,
            Self::DevDax => 2000,
            Self::File => 3000,
            Self::Fixed => 4000,
            // Drivers have their own numbers.
            Self::LevelZero | Self::Cuda => 0,
        }
    }

    /// The number of an error as the headers have it.
    const fn number(self, failed: Failed) -> i32 {
        let step = match (self, failed) {
            (Self::LevelZero | Self::Cuda, _) => 0,
            (Self::Fixed, _) | (_, Failed::Allocation) => 1,
            (Self::Os, Failed::Free) => 4,
            (Self::Os, Failed::PurgeLazy) => 5,
            (Self::Os, Failed::PurgeForce) => 6,
            (Self::DevDax, Failed::Free) => 3,
            (Self::DevDax, _) => 4,
            (Self::File, Failed::Free) => 2,
            (Self::File, _) => 3,
        };
        self.first() + step
    }
}

const TEXTS: [&CStr; 5] = [
    c"nothing failed",
    c"memory could not be had",
    c"memory could not be given back",
    c"pages could not be discarded lazily",
    c"pages could not be discarded",
];

thread_local! {
    static LAST: Cell<(Option<Flavour>, i32, usize)> = const { Cell::new((None, 0, 0)) };
}

/// Remembers that something native failed, and that the code for it is [`PROVIDER_SPECIFIC`].
pub(super) fn remember(flavour: Flavour, failed: Failed) {
    let text = match failed {
        Failed::Allocation => 1,
        Failed::Free => 2,
        Failed::PurgeLazy => 3,
        Failed::PurgeForce => 4,
    };
    LAST.set((Some(flavour), flavour.number(failed), text));
    say(PROVIDER_SPECIFIC);
}

/// Tells it.
pub(super) fn tell(flavour: Flavour, message: Out<*const c_char>, native: Out<i32>) -> Outcome<()> {
    let (message, native) = (message.check()?, native.check()?);
    let (number, text) = match LAST.get() {
        (Some(of), number, text) if of == flavour => (number, text),
        _ => (flavour.first(), 0),
    };
    message.set(TEXTS[text].as_ptr())?;
    native.set(number)
}
