//! The last error of the calling thread: per kind of provider and pool, the provider whose call
//! failed, and the text of the last call that failed.

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

use crate::boundary::{Code, Failure, Out, Outcome, PROVIDER_SPECIFIC, SUCCESS, UNKNOWN};
use crate::provider::Provider;

struct LastErrors {
    /// The provider whose call failed.
    provider: Cell<*const Provider>,
    /// The last result of a provider's function, until [`explain`] takes it.
    result: Cell<Code>,
    /// The last failure of a host provider.
    host: Cell<Option<(NativeKind, FailedOperation)>>,
    /// The last result of the Level Zero and CUDA drivers; 0 is success.
    drivers: [Cell<u32>; 2],
    /// The last failure of each kind of pool.
    pools: [Cell<Code>; PoolKind::COUNT],
    /// Number of functions of this library that the thread is in: a table's function may run inside
    /// an exported one.
    depth: Cell<u32>,
    /// Whether a failure was recorded since the outermost function began.
    has_recorded: Cell<bool>,
    /// Whether the thread is in [`record_call`] or [`NativeKind::record_sharing_failure`]. The program's
    /// allocator, which they may call, may be a pool of this library.
    is_recording: Cell<bool>,
}

/// Failures with texts. They own memory.
#[derive(Default)]
struct Failures {
    /// The exported function that failed last, and its failure.
    call: Option<(&'static str, Failure)>,
    /// The last failure to export or open memory that no driver caused.
    sharing: Option<(NativeKind, FailedOperation, Failure)>,
}

thread_local! {
    static LAST_ERRORS: LastErrors = const {
        LastErrors {
            provider: Cell::new(null()),
            result: Cell::new(SUCCESS),
            host: Cell::new(None),
            drivers: [const { Cell::new(0) }; 2],
            pools: [const { Cell::new(SUCCESS) }; PoolKind::COUNT],
            depth: Cell::new(0),
            has_recorded: Cell::new(false),
            is_recording: Cell::new(false),
        }
    };
    static FAILURES: RefCell<Failures> = const { RefCell::new(Failures { call: None, sharing: None }) };
    /// The texts that C got last: of `write_last`, and of `umfrsLastErrorText`.
    static TEXTS: RefCell<[CString; 2]> = RefCell::default();
}

/// A running function of this library ([`enter`]).
pub(crate) struct Running(());

/// Notes that a function of this library runs, until the result is dropped.
#[inline]
pub(crate) fn enter() -> Running {
    LAST_ERRORS.with(|last| {
        let depth = last.depth.get();
        if depth == 0 {
            last.has_recorded.set(false);
        }
        last.depth.set(depth + 1);
    });
    Running(())
}

impl Drop for Running {
    #[inline]
    fn drop(&mut self) {
        LAST_ERRORS.with(|last| last.depth.set(last.depth.get() - 1));
    }
}

/// Changes the recorded failures. Does nothing in a thread that is exiting, and in an allocation
/// that recording a failure made.
fn record<T>(change: impl FnOnce(&mut Failures) -> T) {
    LAST_ERRORS.with(|last| {
        if last.is_recording.replace(true) {
            return;
        }
        let before =
            FAILURES.try_with(|failures| failures.try_borrow_mut().ok().map(|mut all| change(&mut all)));
        // Dropped without the borrow: freeing may call this library.
        drop(before);
        last.is_recording.set(false);
    });
}

/// Records that the exported function `name` failed in this thread.
pub(crate) fn record_call(name: &'static str, failure: Failure) {
    record(|failures| failures.call.replace((name, failure)));
    LAST_ERRORS.with(|last| last.has_recorded.set(true));
}

/// Records that a pool's function returned NULL to the exported function `name`, unless the reason
/// is recorded.
#[cold]
pub(crate) fn record_null(name: &'static str) {
    if !LAST_ERRORS.with(|last| last.has_recorded.get()) {
        let why = "the function of the pool returned NULL; umfPoolGetLastAllocationError has its result";
        record_call(name, Failure::new(UNKNOWN, why));
    }
}

/// Returns the failure with this code that was recorded inside of the running exported function.
pub(crate) fn failure_within(code: Code) -> Option<Failure> {
    if !LAST_ERRORS.with(|last| last.has_recorded.get()) {
        return None;
    }
    let failure =
        FAILURES.try_with(|failures| failures.try_borrow().ok()?.call.as_ref().map(|(_, f)| f.clone()));
    failure.ok().flatten().filter(|failure| failure.code() == code)
}

/// Keeps a text for C until the next one of the same place. Returns an empty text in a thread that
/// is exiting.
fn keep(place: usize, text: String) -> *const c_char {
    // A path in the text may contain any byte but NUL.
    let text = CString::new(text).unwrap_or_default();
    let kept = TEXTS.try_with(|texts| {
        let (pointer, before) = {
            let mut texts = texts.borrow_mut();
            let before = core::mem::replace(&mut texts[place], text);
            (texts[place].as_ptr(), before)
        };
        // Dropped without the borrow: freeing may call this library.
        drop(before);
        pointer
    });
    kept.unwrap_or(c"".as_ptr())
}

/// Returns the text of the thread's last call that failed; an empty text if none did.
#[unsafe(no_mangle)]
extern "C" fn umfrsLastErrorText() -> *const c_char {
    let text = FAILURES.try_with(|failures| {
        let failures = failures.try_borrow().ok()?;
        failures.call.as_ref().map(|(name, failure)| format!("{name}: {failure}"))
    });
    keep(1, text.ok().flatten().unwrap_or_default())
}

/// Returns the provider whose call failed last in this thread.
pub(crate) fn failed_provider() -> *const Provider {
    LAST_ERRORS.with(|last| last.provider.get())
}

pub(crate) fn set_failed_provider(provider: *const Provider) {
    LAST_ERRORS.with(|last| last.provider.set(provider));
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

    /// Returns the code of the last failure of this kind of pool in this thread.
    pub(crate) fn last(self) -> Code {
        LAST_ERRORS.with(|last| last.pools[self as usize].get())
    }

    pub(crate) fn set_last(self, code: Code) {
        LAST_ERRORS.with(|last| last.pools[self as usize].set(code));
    }
}

/// Records the result code of a provider's function. The pool that called it only reports an
/// [`Error`].
pub(crate) fn observe(code: Code) {
    LAST_ERRORS.with(|last| last.result.set(code));
}

/// Converts the error of an operation. If the provider caused it, the failure has the provider's
/// result code.
pub(crate) fn explain(error: Error) -> Failure {
    let failure = Failure::from(error);
    let result = LAST_ERRORS.with(|last| last.result.replace(SUCCESS));
    // Other errors are detected before the provider is called.
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
pub(crate) enum NativeKind {
    Os,
    DevDax,
    File,
    Fixed,
    LevelZero,
    Cuda,
}

/// Native error of all kinds of provider: making an IPC handle failed (`umfrs.h`).
const EXPORT_FAILED: i32 = -1;
/// Native error of all kinds of provider: opening an IPC handle failed (`umfrs.h`).
const OPEN_FAILED: i32 = -2;

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedOperation {
    Allocation,
    Free,
    PurgeLazy,
    PurgeForce,
    /// Making an IPC handle.
    Export,
    /// Opening an IPC handle.
    Open,
}

impl FailedOperation {
    /// Returns the text of the headers.
    const fn text(self) -> &'static CStr {
        match self {
            Self::Allocation => c"memory allocation failed",
            Self::Free => c"memory deallocation failed",
            Self::PurgeLazy => c"lazy purging failed",
            Self::PurgeForce => c"force purging failed",
            Self::Export => c"making an IPC handle failed",
            Self::Open => c"opening an IPC handle failed",
        }
    }
}

impl NativeKind {
    /// Returns whether a driver with its own error numbers serves it.
    pub(crate) const fn is_of_device(self) -> bool {
        matches!(self, Self::LevelZero | Self::Cuda)
    }

    /// Returns the number of success; the error numbers follow it. Drivers have their own numbers.
    const fn first(self) -> i32 {
        match self {
            Self::Os => 1000,
            Self::DevDax => 2000,
            Self::File => 3000,
            Self::Fixed => 4000,
            Self::LevelZero | Self::Cuda => 0,
        }
    }

    /// Returns the number of an error, as defined in the headers.
    const fn number(self, failed: FailedOperation) -> i32 {
        let step = match (self, failed) {
            (_, FailedOperation::Export) => return EXPORT_FAILED,
            (_, FailedOperation::Open) => return OPEN_FAILED,
            (Self::LevelZero | Self::Cuda, _) => 0,
            (Self::Fixed, _) | (_, FailedOperation::Allocation) => 1,
            (Self::Os, FailedOperation::Free) => 4,
            (Self::Os, FailedOperation::PurgeLazy) => 5,
            (Self::Os, FailedOperation::PurgeForce) => 6,
            (Self::DevDax, FailedOperation::Free) => 3,
            (Self::DevDax, _) => 4,
            (Self::File, FailedOperation::Free) => 2,
            (Self::File, _) => 3,
        };
        self.first() + step
    }

    /// Records that memory could not be exported or opened, unless a driver's result says why.
    pub(crate) fn record_sharing_failure(self, failed: FailedOperation, failure: &Failure) {
        if self.is_of_device() && failure.is_native() {
            return;
        }
        let failure = failure.clone();
        record(|failures| failures.sharing.replace((self, failed, failure)));
        if !self.is_of_device() {
            LAST_ERRORS.with(|last| last.host.set(Some((self, failed))));
        }
    }

    /// Records that a native operation failed. Its result code is [`PROVIDER_SPECIFIC`].
    pub(crate) fn record_failure(self, failed: FailedOperation) {
        LAST_ERRORS.with(|last| last.host.set(Some((self, failed))));
        observe(PROVIDER_SPECIFIC);
    }

    /// Records the driver's result. Returns the result code of the C interface.
    pub(crate) fn record_driver_result(self, error: &Error) -> Option<Code> {
        let answer = self.answer_of(error)?;
        self.set_answer(answer);
        // The original has different codes for exhausted device memory and host memory.
        let is_device_memory = answer == ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY.0 && self == Self::LevelZero;
        Some(if is_device_memory { PROVIDER_SPECIFIC } else { Failure::from(*error).code() })
    }

    /// Records the result of Level Zero drivers for an allocation of 0 bytes, without calling one.
    pub(crate) fn record_zero_size(self) {
        self.set_answer(ZE_RESULT_ERROR_UNSUPPORTED_SIZE.0);
    }

    /// Converts the error of creating a provider, and records the driver's result if it is the
    /// cause.
    pub(crate) fn refused(self, error: Error) -> Failure {
        let code = self.record_driver_result(&error);
        let failure = Failure::from(error);
        match code {
            Some(code) => failure.with_code(code),
            None => failure,
        }
    }

    fn set_answer(self, answer: u32) {
        // It is newer than a failure of this library.
        record(|failures| failures.sharing.take_if(|(of, ..)| *of == self));
        LAST_ERRORS.with(|last| last.drivers[usize::from(self == Self::Cuda)].set(answer));
    }

    fn answer(self) -> u32 {
        LAST_ERRORS.with(|last| last.drivers[usize::from(self == Self::Cuda)].get())
    }

    /// Returns the driver's result behind an error, if there is one.
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

    /// Returns name and text of a driver's result. CUDA's texts come from its driver.
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

    /// Writes the last native error. The text is valid until the thread asks again.
    pub(crate) fn write_last(self, message: Out<*const c_char>, native: Out<i32>) -> Outcome<()> {
        let (message, native) = (message.check()?, native.check()?);
        if !self.is_of_device() {
            let last = LAST_ERRORS.with(|last| last.host.get()).filter(|(of, _)| *of == self);
            let (number, text) =
                last.map_or((self.first(), c"success"), |(of, failed)| (of.number(failed), failed.text()));
            message.set(self.sharing_text(number).unwrap_or(text.as_ptr()))?;
            return native.set(number);
        }
        for number in [EXPORT_FAILED, OPEN_FAILED] {
            if let Some(text) = self.sharing_text(number) {
                message.set(text)?;
                return native.set(number);
            }
        }
        let answer = self.answer();
        message.set(keep(0, self.text_of(answer)))?;
        native.set(answer.cast_signed())
    }

    /// Returns the text of the last failure to export or open such memory, if its native error has
    /// this number.
    fn sharing_text(self, number: i32) -> Option<*const c_char> {
        let text = FAILURES.try_with(|failures| {
            let failures = failures.try_borrow().ok()?;
            let (_, _, failure) = failures
                .sharing
                .as_ref()
                .filter(|(of, failed, _)| *of == self && of.number(*failed) == number)?;
            Some(failure.to_string())
        });
        Some(keep(0, text.ok().flatten()?))
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
        assert_eq!(NativeKind::LevelZero.refused(out_of(device)).code(), PROVIDER_SPECIFIC);
        let out = Error::OutOfMemory { size: 1, owner: "test", native: 0 };
        assert_eq!(NativeKind::Cuda.refused(out).code(), OUT_OF_HOST_MEMORY);
        assert_eq!(NativeKind::Cuda.refused(Error::ZeroSize).code(), INVALID_ARGUMENT);
    }

    #[test]
    fn each_kind_of_driver_has_its_last_answer() {
        let last = |flavour: NativeKind| {
            let (mut message, mut native) = (null(), -1);
            flavour.write_last(Out::to(&mut message), Out::to(&mut native)).unwrap();
            // SAFETY: `write_last` has just written a valid string.
            (native, unsafe { CStr::from_ptr(message) }.to_str().unwrap().to_owned())
        };
        let lost = Error::Driver { call: "test", code: 0x7000_0001, name: "", meaning: "" };
        NativeKind::LevelZero.record_driver_result(&lost);
        assert_eq!(last(NativeKind::Cuda).0, 0);
        let (number, text) = last(NativeKind::LevelZero);
        assert_eq!(number, 0x7000_0001);
        assert!(text.starts_with("ZE_RESULT_ERROR_DEVICE_LOST - "), "{text}");
    }
}
