//! [`CUresult`]: the result code of every function. [`Failure`]: the error of a failed call.

enums! {
    /// The result code of a function.
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
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
        CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
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
    /// Returns its meaning and a remedy in a few words. [`crate::Api::text_of`] returns the
    /// driver's own text.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            CUDA_ERROR_OUT_OF_MEMORY => {
                "the device has too little free memory; free or trim some, here or in the other processes that nvidia-smi shows"
            }
            CUDA_ERROR_INVALID_VALUE => "an argument is invalid",
            CUDA_ERROR_NOT_INITIALIZED => "the driver does not work in a forked child; exec first",
            CUDA_ERROR_DEINITIALIZED => "the driver is shutting down with the process",
            CUDA_ERROR_STUB_LIBRARY => {
                "libcuda is the toolkit's stub; install the driver, or take the stubs folder out of LD_LIBRARY_PATH"
            }
            CUDA_ERROR_DEVICE_UNAVAILABLE => {
                "another process has exclusive use of the device (compute mode); see nvidia-smi -q"
            }
            CUDA_ERROR_NO_DEVICE => {
                "this process sees no device; check CUDA_VISIBLE_DEVICES and the permissions of /dev/nvidia*"
            }
            CUDA_ERROR_INVALID_DEVICE => {
                "there is no device with that number; nvidia-smi -L lists them, CUDA_VISIBLE_DEVICES narrows them"
            }
            CUDA_ERROR_INVALID_CONTEXT => {
                "the context was destroyed, or the handle was exported by this process"
            }
            CUDA_ERROR_MAP_FAILED => "the memory cannot be mapped; its exporter may have exited",
            CUDA_ERROR_ALREADY_MAPPED => {
                "another library has opened the memory in this process already; close it there first"
            }
            CUDA_ERROR_ECC_UNCORRECTABLE => {
                "the device's memory is damaged; end the process, and reset the device"
            }
            CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => {
                "the devices cannot access each other's memory; nvidia-smi topo -m shows which can"
            }
            CUDA_ERROR_OPERATING_SYSTEM => {
                "a system call of the driver failed; check the limits of files and locked memory"
            }
            CUDA_ERROR_INVALID_HANDLE => "a handle is invalid",
            CUDA_ERROR_NOT_FOUND => "the requested object does not exist",
            CUDA_ERROR_ILLEGAL_ADDRESS => {
                "a kernel accessed an invalid address; the context is unusable, end the process"
            }
            CUDA_ERROR_LAUNCH_TIMEOUT => "a kernel ran too long; the context is unusable, end the process",
            CUDA_ERROR_PEER_ACCESS_NOT_ENABLED => {
                "the device has no access to the memory; add it to the peers"
            }
            CUDA_ERROR_CONTEXT_IS_DESTROYED => "the application destroyed the context, and all memory in it",
            CUDA_ERROR_TOO_MANY_PEERS => {
                "the device has the maximum number of peers that its hardware supports"
            }
            CUDA_ERROR_HARDWARE_STACK_ERROR | CUDA_ERROR_MISALIGNED_ADDRESS | CUDA_ERROR_LAUNCH_FAILED => {
                "a kernel failed; the context is unusable, end the process"
            }
            CUDA_ERROR_NOT_PERMITTED => "the driver does not permit the operation",
            CUDA_ERROR_NOT_SUPPORTED => "the device or system does not support the operation",
            CUDA_ERROR_SYSTEM_NOT_READY => {
                "start the fabric manager (nvidia-fabricmanager), or wait until it has started"
            }
            CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
                "libcuda and the kernel module have different versions; reboot, or install matching versions"
            }
            CUDA_ERROR_UNMAP_FAILED => "the memory cannot be unmapped",
            CUDA_ERROR_NOT_MAPPED => "the memory is not mapped",
            CUDA_ERROR_UNSUPPORTED_LIMIT => "the device does not have this limit",
            CUDA_ERROR_CONTEXT_ALREADY_IN_USE => "another thread uses the context; use one per thread",
            CUDA_ERROR_ILLEGAL_STATE => "a resource is not in a state that allows the operation",
            CUDA_ERROR_NOT_READY => "submitted work has not completed",
            CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {
                "the context has access to the memory of the other one already"
            }
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => {
                "the memory, or a part of it, is registered already; unregister it first"
            }
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => "the memory is not registered, or was unregistered",
            CUDA_ERROR_UNKNOWN => {
                "the driver failed for a reason that it does not name; see the kernel's log, and end the process"
            }
            _ => "",
        }
    }

    /// Returns whether the context is unusable after it: every later call in it fails.
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

    /// Returns whether the context, and with it all of its memory, is gone.
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
    /// The library does not have the function: it is older than the function.
    #[error("{function}: this CUDA driver lacks the function; install a newer one")]
    Absent {
        /// The function.
        function: &'static str,
    },
    /// The driver returned an error.
    #[error("{function}: {result}")]
    Refused {
        /// The function.
        function: &'static str,
        /// The result. Not always an error: queries return [`CUDA_ERROR_NOT_READY`].
        result: CUresult,
    },
}

impl Failure {
    /// Returns the function that failed.
    #[must_use]
    pub const fn function(self) -> &'static str {
        match self {
            Self::Absent { function } | Self::Refused { function, .. } => function,
        }
    }

    /// Returns the result. A missing function is [`CUDA_ERROR_NOT_SUPPORTED`].
    #[must_use]
    pub const fn result(self) -> CUresult {
        match self {
            Self::Absent { .. } => CUDA_ERROR_NOT_SUPPORTED,
            Self::Refused { result, .. } => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_a_meaning() {
        for (name, number) in CUresult::NAMES.iter().filter(|(_, number)| *number != 0) {
            assert_ne!(CUresult(*number).meaning(), "", "{name}");
        }
    }
}
