//! What failed last in the calling thread: of each kind of provider and pool of this library, and
//! the provider whose call failed.

use core::cell::{Cell, RefCell};
use core::ffi::{CStr, c_char};
use core::ptr::null;
use std::ffi::CString;

use umf_core::Error;
use umf_provider_cuda::Driver;
use umf_provider_cuda::driver_api::{CUDA_ERROR_OUT_OF_MEMORY, CUresult};
use umf_provider_level_zero::last_failure;
use umf_provider_level_zero::sys::{
    ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY,
    ZE_RESULT_ERROR_UNSUPPORTED_SIZE, ze_result_t,
};

use crate::boundary::{Code, Failure, Out, Outcome, PROVIDER_SPECIFIC, SUCCESS};
use crate::provider::Provider;

struct Last {
    /// The provider whose call failed.
    provider: Cell<*const Provider>,
    /// The last result of a provider's function, until [`explain`] takes it.
    result: Cell<Code>,
    /// The last failure of a provider of the host.
    host: Cell<Option<(Flavour, Failed)>>,
    /// The last answer of the drivers of Level Zero and CUDA: 0 is success.
    drivers: [Cell<u32>; 2],
    /// The last failure of each kind of pool.
    pools: [Cell<Code>; PoolKind::COUNT],
}

thread_local! {
    static LAST: Last = const {
        Last {
            provider: Cell::new(null()),
            result: Cell::new(SUCCESS),
            host: Cell::new(None),
            drivers: [const { Cell::new(0) }; 2],
            pools: [const { Cell::new(SUCCESS) }; PoolKind::COUNT],
        }
    };
    /// The text of a driver's answer that C got last.
    static TEXT: RefCell<CString> = RefCell::default();
}

/// The provider of which a call failed last in this thread.
pub(crate) fn failed_provider() -> *const Provider {
    LAST.with(|last| last.provider.get())
}

pub(crate) fn set_failed_provider(provider: *const Provider) {
    LAST.with(|last| last.provider.set(provider));
}

/// A kind of pool of this library.
#[derive(Clone, Copy)]
pub(crate) enum PoolKind {
    Disjoint,
    #[cfg(feature = "jemalloc")]
    Jemalloc,
    Preloaded,
    Proxy,
    Scalable,
}

impl PoolKind {
    const COUNT: usize = 5;

    /// The code of the last failure of such a pool in this thread.
    pub(crate) fn last(self) -> Code {
        LAST.with(|last| last.pools[self as usize].get())
    }

    pub(crate) fn set_last(self, code: Code) {
        LAST.with(|last| last.pools[self as usize].set(code));
    }
}

/// Keeps the result of a provider's function, on its way through a pool, which knows errors alone.
pub(crate) fn observe(code: Code) {
    LAST.with(|last| last.result.set(code));
}

/// Returns the failure of an operation. Where it failed because its provider did, it has the code
/// of that.
pub(crate) fn explain(error: Error) -> Failure {
    let failure = Failure::from(error);
    let result = LAST.with(|last| last.result.replace(SUCCESS));
    // Other errors come of what was known before the provider was asked.
    let is_of_provider = matches!(
        error,
        Error::OutOfMemory { .. }
            | Error::Native { .. }
            | Error::Driver { .. }
            | Error::NotSupported { .. }
            | Error::BadAlignment { .. }
    );
    if is_of_provider && result != SUCCESS { failure.with_code(result) } else { failure }
}

/// A kind of provider of this library.
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

impl Failed {
    const fn text(self) -> &'static CStr {
        match self {
            Self::Allocation => c"memory could not be had",
            Self::Free => c"memory could not be given back",
            Self::PurgeLazy => c"pages could not be discarded lazily",
            Self::PurgeForce => c"pages could not be discarded",
        }
    }
}

impl Flavour {
    /// Whether a driver answers for it, with its own numbers.
    pub(crate) const fn is_of_device(self) -> bool {
        matches!(self, Self::LevelZero | Self::Cuda)
    }

    /// The number that stands for success; those of errors follow. Drivers have their own numbers.
    const fn first(self) -> i32 {
        match self {
            Self::Os => 1000,
            Self::DevDax => 2000,
            Self::File => 3000,
            Self::Fixed => 4000,
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

    /// Remembers that something native failed. The code for it is [`PROVIDER_SPECIFIC`].
    pub(crate) fn remember_failed(self, failed: Failed) {
        LAST.with(|last| last.host.set(Some((self, failed))));
        observe(PROVIDER_SPECIFIC);
    }

    /// Remembers what the driver answered. Returns the code for it.
    pub(crate) fn remember_answer(self, error: &Error) -> Option<Code> {
        let answer = self.answer_of(error)?;
        self.set_answer(answer);
        // The original says something else of a lack of the device's memory than of the host's.
        let is_device_memory = answer == ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY.0 && self == Self::LevelZero;
        Some(if is_device_memory { PROVIDER_SPECIFIC } else { Failure::from(*error).code() })
    }

    /// Remembers what drivers of Level Zero answer to an allocation of 0 bytes, for which none is
    /// asked.
    pub(crate) fn remember_nothing_asked(self) {
        self.set_answer(ZE_RESULT_ERROR_UNSUPPORTED_SIZE.0);
    }

    /// The failure of making a provider, for which its driver may be the reason.
    pub(crate) fn refused(self, error: Error) -> Failure {
        let code = self.remember_answer(&error);
        let failure = Failure::from(error);
        match code {
            Some(code) => failure.with_code(code),
            None => failure,
        }
    }

    fn set_answer(self, answer: u32) {
        LAST.with(|last| last.drivers[usize::from(self == Self::Cuda)].set(answer));
    }

    fn answer(self) -> u32 {
        LAST.with(|last| last.drivers[usize::from(self == Self::Cuda)].get())
    }

    /// The driver's answer that an error stands for, if it is one.
    fn answer_of(self, error: &Error) -> Option<u32> {
        match error {
            Error::Driver { code, .. } => u32::try_from(*code).ok(),
            Error::OutOfMemory { .. } if self == Self::Cuda => Some(CUDA_ERROR_OUT_OF_MEMORY.0),
            Error::OutOfMemory { .. } => {
                let memory = [ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY];
                let last = last_failure().map(|failure| failure.result());
                last.filter(|last| memory.contains(last)).map(|last| last.0)
            }
            _ => None,
        }
    }

    /// The name and the text of an answer. CUDA's driver has them itself.
    fn text_of(self, answer: u32) -> String {
        if self == Self::Cuda {
            let result = CUresult(answer);
            let text = Driver::open(None).map(|driver| driver.api().text_of(result)).unwrap_or_default();
            return match text.split_once(": ") {
                Some((name, text)) => format!("{name} - {text}"),
                None => {
                    format!("{} - {}", result.name().unwrap_or("an answer without a name"), result.meaning())
                }
            };
        }
        let result = ze_result_t(answer);
        format!("{} - {}", result.name().unwrap_or("an answer without a name"), result.text())
    }

    /// Writes the last native error. Its text stays until the thread asks again.
    pub(crate) fn write_last(self, message: Out<*const c_char>, native: Out<i32>) -> Outcome<()> {
        let (message, native) = (message.check()?, native.check()?);
        if !self.is_of_device() {
            let last = LAST.with(|last| last.host.get()).filter(|(of, _)| *of == self);
            let (number, text) = last
                .map_or((self.first(), c"nothing failed"), |(of, failed)| (of.number(failed), failed.text()));
            message.set(text.as_ptr())?;
            return native.set(number);
        }
        let answer = self.answer();
        let text = CString::new(self.text_of(answer)).unwrap_or_default();
        let kept = TEXT.try_with(|kept| {
            *kept.borrow_mut() = text;
            kept.borrow().as_ptr()
        });
        // A thread that is ending has nowhere to keep it.
        message.set(kept.unwrap_or(c"".as_ptr()))?;
        native.set(answer.cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boundary::{INVALID_ARGUMENT, OUT_OF_HOST_MEMORY};

    #[test]
    fn answers_have_the_codes_of_the_original() {
        let out_of = |code: u32| Error::Driver { call: "test", code: code.into(), name: "", meaning: "" };
        let device = ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY.0;
        assert_eq!(Flavour::LevelZero.refused(out_of(device)).code(), PROVIDER_SPECIFIC);
        let out = Error::OutOfMemory { size: 1, owner: "test", native: 0 };
        assert_eq!(Flavour::Cuda.refused(out).code(), OUT_OF_HOST_MEMORY);
        assert_eq!(Flavour::Cuda.refused(Error::ZeroSize).code(), INVALID_ARGUMENT);
    }

    #[test]
    fn each_kind_of_driver_has_its_last_answer() {
        let last = |flavour: Flavour| {
            let (mut message, mut native) = (null(), -1);
            flavour.write_last(Out::to(&mut message), Out::to(&mut native)).unwrap();
            // SAFETY: written just now.
            (native, unsafe { CStr::from_ptr(message) }.to_str().unwrap().to_owned())
        };
        let lost = Error::Driver { call: "test", code: 0x7000_0001, name: "", meaning: "" };
        Flavour::LevelZero.remember_answer(&lost);
        assert_eq!(last(Flavour::Cuda).0, 0);
        let (number, text) = last(Flavour::LevelZero);
        assert_eq!(number, 0x7000_0001);
        assert!(text.starts_with("ZE_RESULT_ERROR_DEVICE_LOST - "), "{text}");
    }
}
