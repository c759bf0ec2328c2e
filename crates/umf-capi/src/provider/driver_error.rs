//! What drivers of devices answer: as the original's result codes, and the last answer of each kind of driver per thread.

use core::cell::{Cell, RefCell};
use core::ffi::c_char;
use std::ffi::CString;

use umf_core::Error;
use umf_provider_cuda::Driver;
use umf_provider_cuda::driver_api::{CUDA_ERROR_OUT_OF_MEMORY, CUresult};
use umf_provider_level_zero::last_failure;
use umf_provider_level_zero::sys::{
    ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY,
    ZE_RESULT_ERROR_UNSUPPORTED_SIZE, ze_result_t,
};

use super::native_error::Flavour;
use super::said::say;
use crate::boundary::{Code, Failure, Out, Outcome, PROVIDER_SPECIFIC};

thread_local! {
    /// Of Level Zero, and of CUDA: the driver's number, 0 for success.
    static LAST: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    /// What C was told last.
    static TEXT: RefCell<CString> = RefCell::default();
}

/// The driver's answer that an error stands for, if it is one.
fn answer(flavour: Flavour, error: &Error) -> Option<u32> {
    match error {
        Error::Driver { code, .. } => u32::try_from(*code).ok(),
        Error::OutOfMemory { .. } if flavour == Flavour::Cuda => Some(CUDA_ERROR_OUT_OF_MEMORY.0),
        Error::OutOfMemory { .. } => {
            let memory = [ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY];
            last_failure()
                .map(|failure| failure.result())
                .filter(|last| memory.contains(last))
                .map(|last| last.0)
        }
        _ => None,
    }
}

/// The original's code for an error: of a lack of the device's memory it says something else than of the host's.
fn code(flavour: Flavour, answer: u32, error: &Error) -> Code {
    if flavour == Flavour::LevelZero && answer == ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY.0 {
        return PROVIDER_SPECIFIC;
    }
    Failure::from(*error).code()
}

/// Remembers what a driver answered; the code for it.
pub(crate) fn remember(flavour: Flavour, error: &Error) -> Option<Code> {
    let answer = answer(flavour, error)?;
    let (level_zero, cuda) = LAST.get();
    LAST.set(if flavour == Flavour::Cuda { (level_zero, answer) } else { (answer, cuda) });
    Some(code(flavour, answer, error))
}

/// Remembers what a driver answered, and says the code for it on the way through a pool.
pub(super) fn remember_and_say(flavour: Flavour, error: &Error) {
    if let Some(code) = remember(flavour, error) {
        say(code);
    }
}

/// Remembers what drivers of Level Zero answer to an allocation of 0 bytes, which none is asked for.
pub(super) fn remember_nothing_asked() {
    LAST.set((ZE_RESULT_ERROR_UNSUPPORTED_SIZE.0, LAST.get().1));
}

/// The failure of making a provider, for which a driver may be the reason.
pub(crate) fn refused(flavour: Flavour, error: Error) -> Failure {
    let code = remember(flavour, &error);
    let failure = Failure::from(error);
    match code {
        Some(code) => failure.with_code(code),
        None => failure,
    }
}

/// The name and the text of an answer. CUDA's driver has them itself.
fn text(flavour: Flavour, answer: u32) -> String {
    if flavour == Flavour::Cuda {
        let result = CUresult(answer);
        let said = Driver::open(None).map(|driver| driver.api().text_of(result)).unwrap_or_default();
        return match said.split_once(": ") {
            Some((name, text)) => format!("{name} - {text}"),
            None => format!("{} - {}", result.name().unwrap_or("an answer without a name"), result.meaning()),
        };
    }
    let result = ze_result_t(answer);
    format!("{} - {}", result.name().unwrap_or("an answer without a name"), result.text())
}

/// Tells the last answer. The text stays until the thread asks again.
pub(super) fn tell(flavour: Flavour, message: Out<*const c_char>, native: Out<i32>) -> Outcome<()> {
    let (message, native) = (message.check()?, native.check()?);
    let (level_zero, cuda) = LAST.get();
    let answer = if flavour == Flavour::Cuda { cuda } else { level_zero };
    let text = CString::new(text(flavour, answer)).unwrap_or_default();
    let kept = TEXT.try_with(|kept| {
        *kept.borrow_mut() = text;
        kept.borrow().as_ptr()
    });
    // (A thread that is ending has nowhere to keep it.)
    message.set(kept.unwrap_or(c"".as_ptr()))?;
    native.set(answer.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boundary::{INVALID_ARGUMENT, OUT_OF_HOST_MEMORY};

    #[test]
    fn answers_have_the_codes_of_the_original() {
        let out_of = |code: u32| Error::Driver { call: "test", code: code.into(), name: "", meaning: "" };
        let device = ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY.0;
        assert_eq!(refused(Flavour::LevelZero, out_of(device)).code(), PROVIDER_SPECIFIC);
        let out = Error::OutOfMemory { size: 1, owner: "test", native: 0 };
        assert_eq!(refused(Flavour::Cuda, out).code(), OUT_OF_HOST_MEMORY);
        assert_eq!(refused(Flavour::Cuda, Error::ZeroSize).code(), INVALID_ARGUMENT);
    }

    #[test]
    fn each_kind_of_driver_has_its_last_answer() {
        let last = |flavour| {
            let (mut message, mut native) = (core::ptr::null(), -1);
            tell(flavour, Out::to(&mut message), Out::to(&mut native)).unwrap();
            // SAFETY: told just now.
            (native, unsafe { core::ffi::CStr::from_ptr(message) }.to_str().unwrap().to_owned())
        };
        let lost = Error::Driver { call: "test", code: 0x7000_0001, name: "", meaning: "" };
        remember(Flavour::LevelZero, &lost);
        assert_eq!(last(Flavour::Cuda).0, 0);
        let (number, text) = last(Flavour::LevelZero);
        assert_eq!(number, 0x7000_0001);
        assert!(text.starts_with("ZE_RESULT_ERROR_DEVICE_LOST - "), "{text}");
    }
}
