//! What every function answers, and the error that a call is where that is not success.

enums! {
    /// The answer of a function: success, or a number that the interface names.
    CUresult {
        CUDA_SUCCESS = 0,
        CUDA_ERROR_INVALID_VALUE = 1,
        CUDA_ERROR_OUT_OF_MEMORY = 2,
        CUDA_ERROR_NOT_INITIALIZED = 3,
        CUDA_ERROR_DEINITIALIZED = 4,
        CUDA_ERROR_STUB_LIBRARY = 34,
        CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
        CUDA_ERROR_NO_DEVICE = 100,
        CUDA_ERROR_INVALID_DEVICE = 101,
        CUDA_ERROR_INVALID_CONTEXT = 201,
        CUDA_ERROR_MAP_FAILED = 205,
        CUDA_ERROR_UNMAP_FAILED = 206,
        CUDA_ERROR_ALREADY_MAPPED = 208,
        CUDA_ERROR_NOT_MAPPED = 211,
        CUDA_ERROR_ECC_UNCORRECTABLE = 214,
        CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
        CUDA_ERROR_CONTEXT_ALREADY_IN_USE = 216,
        CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
        CUDA_ERROR_OPERATING_SYSTEM = 304,
        CUDA_ERROR_INVALID_HANDLE = 400,
        CUDA_ERROR_ILLEGAL_STATE = 401,
        CUDA_ERROR_NOT_FOUND = 500,
        CUDA_ERROR_NOT_READY = 600,
        CUDA_ERROR_ILLEGAL_ADDRESS = 700,
        CUDA_ERROR_LAUNCH_TIMEOUT = 702,
        CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
        CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
        CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
        CUDA_ERROR_TOO_MANY_PEERS = 711,
        CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
        CUDA_ERROR_MISALIGNED_ADDRESS = 716,
        CUDA_ERROR_LAUNCH_FAILED = 719,
        CUDA_ERROR_NOT_PERMITTED = 800,
        CUDA_ERROR_NOT_SUPPORTED = 801,
        CUDA_ERROR_SYSTEM_NOT_READY = 802,
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
        CUDA_ERROR_UNKNOWN = 999,
    }
}

impl CUresult {
    /// What it means and what to do, in a few words. (The driver's own text is
    /// [`crate::Api::text_of`]'s.)
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            CUDA_ERROR_OUT_OF_MEMORY => {
                "the device has too little free memory; free or trim some, here or in the other processes that nvidia-smi shows"
            }
            CUDA_ERROR_INVALID_VALUE => "the driver does not take an argument",
            CUDA_ERROR_NOT_INITIALIZED => "the driver does not work in a forked child; exec first",
            CUDA_ERROR_DEINITIALIZED => "the driver is shutting down with the process",
            CUDA_ERROR_STUB_LIBRARY => {
                "libcuda is the toolkit's stub; install the driver, or take the stubs folder out of LD_LIBRARY_PATH"
            }
            CUDA_ERROR_DEVICE_UNAVAILABLE => {
                "another process has the device for itself (compute mode); see nvidia-smi -q"
            }
            CUDA_ERROR_NO_DEVICE => {
                "there is no device that this process may see; look at CUDA_VISIBLE_DEVICES and the permissions of /dev/nvidia*"
            }
            CUDA_ERROR_INVALID_DEVICE => {
                "there is no device with that number; nvidia-smi -L lists them, CUDA_VISIBLE_DEVICES narrows them"
            }
            CUDA_ERROR_INVALID_CONTEXT => "the context is gone, or the handle was made in this process",
            CUDA_ERROR_MAP_FAILED => "the memory cannot be mapped; its exporter may be gone",
            CUDA_ERROR_ALREADY_MAPPED => {
                "the memory is open in this process already, by someone else than umf"
            }
            CUDA_ERROR_ECC_UNCORRECTABLE => {
                "the device's memory is damaged; end the process, and reset the device"
            }
            CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => {
                "the devices cannot reach each other's memory; nvidia-smi topo -m shows which can"
            }
            CUDA_ERROR_OPERATING_SYSTEM => {
                "a system call of the driver failed; look at the limits of files and locked memory"
            }
            CUDA_ERROR_INVALID_HANDLE => "a handle names nothing that is there",
            CUDA_ERROR_NOT_FOUND => "what was asked for is not there",
            CUDA_ERROR_ILLEGAL_ADDRESS => {
                "work on the device touched memory that is none; the context is of no use any more, end the process"
            }
            CUDA_ERROR_LAUNCH_TIMEOUT => {
                "work on the device took too long; the context is of no use any more, end the process"
            }
            CUDA_ERROR_PEER_ACCESS_NOT_ENABLED => {
                "that device was not given access to the memory; name it among the peers"
            }
            CUDA_ERROR_CONTEXT_IS_DESTROYED => "the application destroyed the context, and all memory in it",
            CUDA_ERROR_TOO_MANY_PEERS => "the hardware has no room for one more peer of that device",
            CUDA_ERROR_HARDWARE_STACK_ERROR | CUDA_ERROR_MISALIGNED_ADDRESS | CUDA_ERROR_LAUNCH_FAILED => {
                "the device failed in the middle of its work; the context is of no use any more, end the process"
            }
            CUDA_ERROR_NOT_PERMITTED => "the driver does not allow that here",
            CUDA_ERROR_NOT_SUPPORTED => "this device or system cannot do that",
            CUDA_ERROR_SYSTEM_NOT_READY => {
                "start the fabric manager (nvidia-fabricmanager), or wait until it is done"
            }
            CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
                "libcuda and the kernel's module are of different versions; reboot, or install what belongs together"
            }
            _ => "",
        }
    }

    /// Whether nothing that was done in the context is of any use from now on.
    #[must_use]
    pub const fn is_fatal(self) -> bool {
        matches!(
            self,
            CUDA_ERROR_ECC_UNCORRECTABLE
                | CUDA_ERROR_ILLEGAL_ADDRESS
                | CUDA_ERROR_LAUNCH_TIMEOUT
                | CUDA_ERROR_HARDWARE_STACK_ERROR
                | CUDA_ERROR_MISALIGNED_ADDRESS
                | CUDA_ERROR_LAUNCH_FAILED
                | CUDA_ERROR_UNKNOWN
        )
    }

    /// Whether the context is gone, and all its memory with it.
    #[must_use]
    pub const fn is_gone(self) -> bool {
        matches!(self, CUDA_ERROR_DEINITIALIZED | CUDA_ERROR_CONTEXT_IS_DESTROYED)
    }
}

impl core::fmt::Display for CUresult {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match (self.name(), self.meaning()) {
            (None, _) => write!(formatter, "CUresult {}", self.0),
            (Some(name), "") => formatter.write_str(name),
            (Some(name), meaning) => write!(formatter, "{name}: {meaning}"),
        }
    }
}

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The library has no such function: it is older than the function is.
    #[error("{function}: this CUDA driver has no such function; a newer one may")]
    Absent {
        /// The function.
        function: &'static str,
    },
    /// The driver answered with this.
    #[error("{function}: {result}")]
    Refused {
        /// The function.
        function: &'static str,
        /// The answer. Not always an error: [`CUDA_ERROR_NOT_READY`] is an answer to a question.
        result: CUresult,
    },
}

impl Failure {
    /// The function that failed.
    #[must_use]
    pub const fn function(self) -> &'static str {
        match self {
            Self::Absent { function } | Self::Refused { function, .. } => function,
        }
    }

    /// The answer as a number of the interface: an absent function is not supported.
    #[must_use]
    pub const fn result(self) -> CUresult {
        match self {
            Self::Absent { .. } => CUDA_ERROR_NOT_SUPPORTED,
            Self::Refused { result, .. } => result,
        }
    }
}
