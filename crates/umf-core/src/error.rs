//! The error that providers, pools and the tracker return.

use core::fmt;
use core::time::Duration;

use crate::Address;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// An error of a provider, a pool or the tracker.
///
/// Contains no heap memory: a pool may be the global allocator, and a failing allocator must not
/// allocate to report that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A size of zero bytes was requested.
    ZeroSize,
    /// A size, rounded up to its alignment, exceeds the address space.
    SizeOverflow {
        /// The requested size in bytes.
        size: usize,
        /// The requested alignment in bytes.
        align: usize,
    },
    /// An alignment is not a power of two, or exceeds what the provider or pool supports.
    BadAlignment {
        /// The requested alignment in bytes.
        align: usize,
    },
    /// The address belongs to no live region that this pool or provider owns.
    ForeignAddress {
        /// The address that was passed.
        address: Address,
        /// The pool or provider that was called.
        owner: &'static str,
    },
    /// The address was freed before.
    NotAllocated {
        /// The address that was passed.
        address: Address,
    },
    /// The address was freed before, and the pool's history has the earlier free. Without a history
    /// this is [`Error::NotAllocated`].
    FreedTwice {
        /// The address that was passed.
        address: Address,
        /// The earlier free.
        by: PastFree,
    },
    /// A block was written to after it was freed.
    WrittenAfterFree {
        /// The address of the block.
        address: Address,
        /// Its size in bytes.
        size: usize,
        /// The offset of the first byte that differs from the poison.
        offset: usize,
        /// The free of the block, if the pool's history still has it.
        by: Option<PastFree>,
    },
    /// The address lies inside a block, not at its start.
    InteriorAddress {
        /// The address that was passed.
        address: Address,
    },
    /// The system or device has no memory left.
    OutOfMemory {
        /// The requested size in bytes.
        size: usize,
        /// The provider, pool or system that could not allocate.
        owner: &'static str,
        /// The native error number (errno for system calls), 0 if none.
        native: i32,
    },
    /// A limit set by the user would be exceeded.
    LimitReached {
        /// The name of the limit.
        what: &'static str,
        /// The limit, in bytes.
        limit: u64,
        /// The requested bytes.
        size: usize,
    },
    /// The bytes of freed memory that other processes still have open reached `max_held`.
    HeldLimit {
        /// Bytes that are held now.
        held: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A forked child used an object over shared memory that it inherited from its parent.
    Frozen {
        /// The object.
        what: &'static str,
    },
    /// The provider, pool or system does not support the operation.
    NotSupported {
        /// The requested operation.
        what: &'static str,
        /// The provider, pool or system that does not have it.
        owner: &'static str,
        /// The native error number, 0 if none.
        native: i32,
    },
    /// An argument is invalid.
    InvalidArgument {
        /// Which argument.
        what: &'static str,
        /// What would be valid.
        why: &'static str,
    },
    /// A native call failed.
    Native {
        /// The system or driver call.
        call: &'static str,
        /// The native error number: errno for system calls, the driver's code for drivers.
        native: i32,
        /// What to do about it, empty if nothing is known.
        hint: &'static str,
    },
    /// A call of a device driver failed.
    Driver {
        /// The driver's function.
        call: &'static str,
        /// The result code.
        code: i64,
        /// The name of the code in the driver's specification.
        name: &'static str,
        /// The meaning of the code by the specification, or what to do about it.
        meaning: &'static str,
    },
    /// Memory of another process, or a region of a provider, failed a check.
    Untrusted {
        /// The check that failed.
        why: &'static str,
    },
    /// A fixed-size table is full.
    TooMany {
        /// The kind of entry.
        what: &'static str,
        /// The capacity.
        limit: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroSize => f.write_str("cannot allocate 0 bytes; request at least 1"),
            Self::SizeOverflow { size, align } => {
                write!(
                    f,
                    "cannot allocate {size} bytes aligned to {align}: they overflow the address space; request less"
                )
            }
            Self::BadAlignment { align } => write!(
                f,
                "cannot allocate with alignment {align}: it is not a power of two, or exceeds what this provider or pool supports; use a smaller power of two"
            ),
            Self::ForeignAddress { address, owner } => {
                write!(f, "address {address} does not belong to {owner}; free a block where it was allocated")
            }
            Self::NotAllocated { address } => {
                write!(
                    f,
                    "address {address} is not allocated: it was freed before, or never allocated; free each block once"
                )
            }
            Self::FreedTwice { address, by } => {
                write!(f, "address {address} was freed before, {by}; free each block once")
            }
            Self::WrittenAfterFree { address, size, offset, by } => write!(
                f,
                "byte {offset} of the free block of {size} bytes at {address} was written to after it was freed, {}; find the code that still uses it",
                FreedBy(by)
            ),
            Self::InteriorAddress { address } => write!(
                f,
                "address {address} lies inside a block and not at its start; pass what allocate returned"
            ),
            Self::OutOfMemory { size, owner, native } => {
                write!(
                    f,
                    "out of memory: {size} bytes from {owner}{}; free memory or request less",
                    NativeSuffix(*native)
                )
            }
            Self::LimitReached { what, limit, size } => write!(
                f,
                "{what} limit of {limit} bytes would be exceeded by {size} more; raise it or free some"
            ),
            Self::HeldLimit { held, limit } => write!(
                f,
                "{held} bytes that were freed are still open in other processes, and no more than {limit} may be (max_held); have them closed there, wait with drain, or raise the limit"
            ),
            Self::Frozen { what } => {
                write!(f, "{what} was inherited through fork and is frozen in the child; make a new one here")
            }
            Self::NotSupported { what, owner, native } => {
                write!(f, "{what} is not supported by {owner}{}", NativeSuffix(*native))
            }
            Self::InvalidArgument { what, why } => write!(f, "{what}: {why}"),
            Self::Native { call, native, hint } => {
                write!(f, "{call} failed{}{}", NativeSuffix(*native), Hint(hint))
            }
            Self::Driver { call, name, meaning: "", .. } => write!(f, "{call} failed: {name}"),
            Self::Driver { call, name, meaning, .. } => write!(f, "{call} failed: {name} ({meaning})"),
            Self::Untrusted { why } => write!(
                f,
                "the memory failed a check: {why}; get a new handle from its exporter, or correct its provider"
            ),
            Self::TooMany { what, limit } => {
                write!(f, "no more than {limit} {what} are possible in one process; drop unused ones")
            }
        }
    }
}

impl core::error::Error for Error {}

/// A free that a pool's history recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastFree {
    /// The thread that freed the block (`gettid(2)`).
    pub thread: u32,
    /// The time since the free.
    pub ago: Duration,
}

impl fmt::Display for PastFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ago by thread {}", self.ago, self.thread)
    }
}

/// Shows the earlier free, or how to record it.
struct FreedBy<'a>(&'a Option<PastFree>);

impl fmt::Display for FreedBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(by) => by.fmt(f),
            None => f.write_str("enable `history`, or lengthen it, to record the free"),
        }
    }
}

impl Error {
    /// Makes the error of a failed system call from its errno. For EPERM and ENOSYS, a hint names
    /// the possible causes.
    #[must_use]
    pub const fn native(call: &'static str, native: i32) -> Self {
        const EPERM: i32 = 1;
        const ENOSYS: i32 = 38;
        let hint = match native {
            EPERM | ENOSYS => {
                "a missing right, a seccomp filter or a security module refuses it, or this kernel lacks it"
            }
            _ => "",
        };
        Self::Native { call, native, hint }
    }

    /// Returns the native error number (errno) behind this error, if there is one.
    #[must_use]
    pub const fn native_code(&self) -> Option<i32> {
        match self {
            Self::OutOfMemory { native, .. }
            | Self::NotSupported { native, .. }
            | Self::Native { native, .. }
                if *native != 0 =>
            {
                Some(*native)
            }
            _ => None,
        }
    }
}

/// Shows ` (Cannot allocate memory (os error 12))`, or nothing for 0.
struct NativeSuffix(i32);

impl fmt::Display for NativeSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return Ok(());
        }
        write!(f, " ({})", std::io::Error::from_raw_os_error(self.0))
    }
}

/// Shows `; hint`, or nothing.
struct Hint(&'static str);

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; {}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_cause_and_remedy() {
        let text = Error::OutOfMemory { size: 4096, owner: "host", native: 12 }.to_string();
        assert!(text.contains("4096 bytes from host") && text.contains("os error 12"), "{text}");
        let text = Error::Native { call: "mbind", native: 1, hint: "grant CAP_SYS_NICE" }.to_string();
        assert!(text.contains("mbind failed") && text.ends_with("; grant CAP_SYS_NICE"), "{text}");
        let (call, name) = ("zeMemAllocDevice", "ZE_RESULT_ERROR_DEVICE_LOST");
        let text = Error::Driver { call, code: 0x7000_0001, name, meaning: "the device is gone" }.to_string();
        assert_eq!(text, "zeMemAllocDevice failed: ZE_RESULT_ERROR_DEVICE_LOST (the device is gone)");
        let text = Error::Driver { call, code: 1, name, meaning: "" }.to_string();
        assert_eq!(text, "zeMemAllocDevice failed: ZE_RESULT_ERROR_DEVICE_LOST");
        assert_eq!(Error::native("mmap", 22).native_code(), Some(22));
        assert!(Error::native("fcntl(F_GET_SEALS)", 1).to_string().contains("seccomp"));
        assert_eq!(Error::ZeroSize.native_code(), None);
        let (address, by) =
            (Address::from_bits(4096), PastFree { thread: 7, ago: Duration::from_micros(1500) });
        let text = Error::FreedTwice { address, by }.to_string();
        assert!(text.contains("0x1000 was freed before, 1.5ms ago by thread 7"), "{text}");
        let text = Error::WrittenAfterFree { address, size: 64, offset: 9, by: Some(by) }.to_string();
        assert!(
            text.starts_with("byte 9 of the free block of 64 bytes") && text.contains("thread 7"),
            "{text}"
        );
    }
}
