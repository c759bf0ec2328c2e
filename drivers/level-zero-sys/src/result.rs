//! [`ze_result_t`]: the result code of every function. [`Failure`]: the error of a failed call.

use crate::base::ze_context_handle_t;

enums! {
    /// The result code of a function.
    ze_result_t {
        ZE_RESULT_SUCCESS = 0,
        ZE_RESULT_NOT_READY = 1,
        ZE_RESULT_ERROR_DEVICE_LOST = 0x7000_0001,
        ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY = 0x7000_0002,
        ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY = 0x7000_0003,
        ZE_RESULT_ERROR_MODULE_BUILD_FAILURE = 0x7000_0004,
        ZE_RESULT_ERROR_MODULE_LINK_FAILURE = 0x7000_0005,
        ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET = 0x7000_0006,
        ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE = 0x7000_0007,
        ZE_RESULT_EXP_ERROR_DEVICE_IS_NOT_VERTEX = 0x7ff0_0001,
        ZE_RESULT_EXP_ERROR_VERTEX_IS_NOT_DEVICE = 0x7ff0_0002,
        ZE_RESULT_EXP_ERROR_REMOTE_DEVICE = 0x7ff0_0003,
        ZE_RESULT_EXP_ERROR_OPERANDS_INCOMPATIBLE = 0x7ff0_0004,
        ZE_RESULT_EXP_RTAS_BUILD_RETRY = 0x7ff0_0005,
        ZE_RESULT_EXP_RTAS_BUILD_DEFERRED = 0x7ff0_0006,
        ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS = 0x7001_0000,
        ZE_RESULT_ERROR_NOT_AVAILABLE = 0x7001_0001,
        ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE = 0x7002_0000,
        ZE_RESULT_WARNING_DROPPED_DATA = 0x7002_0001,
        ZE_RESULT_ERROR_UNINITIALIZED = 0x7800_0001,
        ZE_RESULT_ERROR_UNSUPPORTED_VERSION = 0x7800_0002,
        ZE_RESULT_ERROR_UNSUPPORTED_FEATURE = 0x7800_0003,
        ZE_RESULT_ERROR_INVALID_ARGUMENT = 0x7800_0004,
        ZE_RESULT_ERROR_INVALID_NULL_HANDLE = 0x7800_0005,
        ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE = 0x7800_0006,
        ZE_RESULT_ERROR_INVALID_NULL_POINTER = 0x7800_0007,
        ZE_RESULT_ERROR_INVALID_SIZE = 0x7800_0008,
        ZE_RESULT_ERROR_UNSUPPORTED_SIZE = 0x7800_0009,
        ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT = 0x7800_000a,
        ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT = 0x7800_000b,
        ZE_RESULT_ERROR_INVALID_ENUMERATION = 0x7800_000c,
        ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION = 0x7800_000d,
        ZE_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT = 0x7800_000e,
        ZE_RESULT_ERROR_INVALID_NATIVE_BINARY = 0x7800_000f,
        ZE_RESULT_ERROR_INVALID_GLOBAL_NAME = 0x7800_0010,
        ZE_RESULT_ERROR_INVALID_KERNEL_NAME = 0x7800_0011,
        ZE_RESULT_ERROR_INVALID_FUNCTION_NAME = 0x7800_0012,
        ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION = 0x7800_0013,
        ZE_RESULT_ERROR_INVALID_GLOBAL_WIDTH_DIMENSION = 0x7800_0014,
        ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX = 0x7800_0015,
        ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE = 0x7800_0016,
        ZE_RESULT_ERROR_INVALID_KERNEL_ATTRIBUTE_VALUE = 0x7800_0017,
        ZE_RESULT_ERROR_INVALID_MODULE_UNLINKED = 0x7800_0018,
        ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE = 0x7800_0019,
        ZE_RESULT_ERROR_OVERLAPPING_REGIONS = 0x7800_001a,
        ZE_RESULT_WARNING_ACTION_REQUIRED = 0x7800_001b,
        ZE_RESULT_ERROR_INVALID_KERNEL_HANDLE = 0x7800_001c,
        ZE_RESULT_EXT_RTAS_BUILD_RETRY = 0x7800_001d,
        ZE_RESULT_EXT_RTAS_BUILD_DEFERRED = 0x7800_001e,
        ZE_RESULT_EXT_ERROR_OPERANDS_INCOMPATIBLE = 0x7800_001f,
        ZE_RESULT_ERROR_SURVIVABILITY_MODE_DETECTED = 0x7800_0020,
        ZE_RESULT_ERROR_ADDRESS_NOT_FOUND = 0x7800_0021,
        ZE_RESULT_QUERY_TRUE = 0x7800_0022,
        ZE_RESULT_QUERY_FALSE = 0x7800_0023,
        ZE_RESULT_ERROR_INVALID_GRAPH = 0x7800_0024,
        ZE_RESULT_ERROR_GRAPH_CAPTURE_UNSUPPORTED = 0x7800_0025,
        ZE_RESULT_ERROR_GRAPH_CAPTURE_INVALIDATED = 0x7800_0026,
        ZE_RESULT_ERROR_GRAPH_CAPTURE_MERGE_ATTEMPT = 0x7800_0027,
        ZE_RESULT_ERROR_COMMAND_LIST_NOT_CAPTURING = 0x7800_0028,
        ZE_RESULT_ERROR_GRAPH_UNJOINED_FORKS = 0x7800_0029,
        ZE_RESULT_ERROR_GRAPH_INTERNAL_EVENT = 0x7800_002a,
        ZE_RESULT_ERROR_UNKNOWN = 0x7fff_fffe,
    }
}

impl ze_result_t {
    /// Returns its meaning in a few words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            ZE_RESULT_SUCCESS => "success",
            ZE_RESULT_NOT_READY => "not complete yet",
            ZE_RESULT_ERROR_DEVICE_LOST => "the device hung, was reset or is gone",
            ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY => "the host has too little free memory",
            ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY => "the device has too little free memory",
            ZE_RESULT_ERROR_MODULE_BUILD_FAILURE => "the module does not build; its log says why",
            ZE_RESULT_ERROR_MODULE_LINK_FAILURE => "the modules do not link; the log says why",
            ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET => "the device has to be reset first",
            ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE => "the device is in a low power state",
            ZE_RESULT_EXP_ERROR_DEVICE_IS_NOT_VERTEX => "the device is not a vertex of the fabric",
            ZE_RESULT_EXP_ERROR_VERTEX_IS_NOT_DEVICE => "the vertex of the fabric is not a device",
            ZE_RESULT_EXP_ERROR_REMOTE_DEVICE => "the vertex of the fabric is a device of another machine",
            ZE_RESULT_EXP_ERROR_OPERANDS_INCOMPATIBLE => "the operands cannot be compared",
            ZE_RESULT_EXP_RTAS_BUILD_RETRY => "the ray tracing structure needs a larger buffer",
            ZE_RESULT_EXP_RTAS_BUILD_DEFERRED => {
                "the ray tracing structure is built when the operation is joined"
            }
            ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS => "the process lacks the permission",
            ZE_RESULT_ERROR_NOT_AVAILABLE => "in use by another client, or removed",
            ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE => "a dependency of the driver is missing",
            ZE_RESULT_WARNING_DROPPED_DATA => "some data may be missing",
            ZE_RESULT_ERROR_UNINITIALIZED => "the driver was not initialized",
            ZE_RESULT_ERROR_UNSUPPORTED_VERSION => "the version is not supported",
            ZE_RESULT_ERROR_UNSUPPORTED_FEATURE => "not supported by this driver",
            ZE_RESULT_ERROR_INVALID_ARGUMENT => "an argument is invalid",
            ZE_RESULT_ERROR_INVALID_NULL_HANDLE => "a handle is null or invalid",
            ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE => "the object is still in use by the device",
            ZE_RESULT_ERROR_INVALID_NULL_POINTER => "a required pointer is null",
            ZE_RESULT_ERROR_INVALID_SIZE => "a size is invalid",
            ZE_RESULT_ERROR_UNSUPPORTED_SIZE => "a size exceeds the device's maximum",
            ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT => "the device does not support the alignment",
            ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT => "an event or fence is in the wrong state",
            ZE_RESULT_ERROR_INVALID_ENUMERATION => "a value is not defined",
            ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION => "a value is defined, but not supported by the device",
            ZE_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT => "the image format is not supported",
            ZE_RESULT_ERROR_INVALID_NATIVE_BINARY => "the binary is not for this device",
            ZE_RESULT_ERROR_INVALID_GLOBAL_NAME => "the module has no such variable",
            ZE_RESULT_ERROR_INVALID_KERNEL_NAME => "the module has no such kernel",
            ZE_RESULT_ERROR_INVALID_FUNCTION_NAME => "the module has no such function",
            ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION => {
                "the group size is not one for this kernel or device"
            }
            ZE_RESULT_ERROR_INVALID_GLOBAL_WIDTH_DIMENSION => {
                "the global width is not one for this kernel or device"
            }
            ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX => "the kernel has no argument at that place",
            ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE => "the kernel's argument has another size",
            ZE_RESULT_ERROR_INVALID_KERNEL_ATTRIBUTE_VALUE => {
                "the attribute's value is not one for this kernel or device"
            }
            ZE_RESULT_ERROR_INVALID_MODULE_UNLINKED => "the module has to be linked first",
            ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE => "the list is not for queues of that kind",
            ZE_RESULT_ERROR_OVERLAPPING_REGIONS => "source and destination overlap",
            ZE_RESULT_WARNING_ACTION_REQUIRED => "the caller has to act to complete the operation",
            ZE_RESULT_ERROR_INVALID_KERNEL_HANDLE => "the kernel cannot be used for this",
            ZE_RESULT_EXT_RTAS_BUILD_RETRY => "the ray tracing structure needs a larger buffer",
            ZE_RESULT_EXT_RTAS_BUILD_DEFERRED => {
                "the ray tracing structure is built when the operation is joined"
            }
            ZE_RESULT_EXT_ERROR_OPERANDS_INCOMPATIBLE => "the operands cannot be compared",
            ZE_RESULT_ERROR_SURVIVABILITY_MODE_DETECTED => "the device's firmware has to be updated",
            ZE_RESULT_ERROR_ADDRESS_NOT_FOUND => "the address is not in this context",
            ZE_RESULT_QUERY_TRUE => "yes",
            ZE_RESULT_QUERY_FALSE => "no",
            ZE_RESULT_ERROR_INVALID_GRAPH => "the graph is not valid",
            ZE_RESULT_ERROR_GRAPH_CAPTURE_UNSUPPORTED => "this cannot be recorded into a graph",
            ZE_RESULT_ERROR_GRAPH_CAPTURE_INVALIDATED => "an error has invalidated the recording",
            ZE_RESULT_ERROR_GRAPH_CAPTURE_MERGE_ATTEMPT => "two recordings would become one",
            ZE_RESULT_ERROR_COMMAND_LIST_NOT_CAPTURING => "the list is not recorded into a graph",
            ZE_RESULT_ERROR_GRAPH_UNJOINED_FORKS => "a branch of the graph was never joined",
            ZE_RESULT_ERROR_GRAPH_INTERNAL_EVENT => {
                "the event belongs to a graph and cannot be used outside it"
            }
            ZE_RESULT_ERROR_UNKNOWN => "the driver gives no reason",
            _ => "a result that this version of the specification does not define",
        }
    }

    /// Returns whether it is [`ZE_RESULT_SUCCESS`].
    #[must_use]
    pub fn is_success(self) -> bool {
        self == ZE_RESULT_SUCCESS
    }
}

/// Formats the specification's name and its meaning: `ZE_RESULT_ERROR_DEVICE_LOST (the device hung,
/// was reset or is gone)`.
impl core::fmt::Display for ze_result_t {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{self:?} ({})", self.text())
    }
}

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The loader or the driver lacks the function: it is older than the function, or lacks its
    /// extension.
    #[error("{function}: this Level Zero loader or driver lacks the function; install a newer one")]
    Absent {
        /// The function.
        function: &'static str,
    },
    /// The driver, or the loader, returned an error.
    #[error("{function}: {result}")]
    Refused {
        /// The function.
        function: &'static str,
        /// The result. Not always an error: queries return [`crate::ZE_RESULT_NOT_READY`].
        result: ze_result_t,
    },
}

impl Failure {
    /// Returns the function that failed.
    #[must_use]
    pub fn function(self) -> &'static str {
        match self {
            Self::Absent { function } | Self::Refused { function, .. } => function,
        }
    }

    /// Returns the result. A missing function is [`ZE_RESULT_ERROR_UNSUPPORTED_FEATURE`].
    #[must_use]
    pub fn result(self) -> ze_result_t {
        match self {
            Self::Absent { .. } => ZE_RESULT_ERROR_UNSUPPORTED_FEATURE,
            Self::Refused { result, .. } => result,
        }
    }
}

/// A type that functions of the interface return.
pub trait ReturnValue {
    /// The value of a successful call.
    type Value;

    /// Converts it to a `Result`.
    ///
    /// # Errors
    /// [`Failure`] if the call was not successful.
    fn checked(self, function: &'static str) -> Result<Self::Value, Failure>;
}

impl ReturnValue for ze_result_t {
    type Value = ();

    fn checked(self, function: &'static str) -> Result<(), Failure> {
        match self {
            ZE_RESULT_SUCCESS => Ok(()),
            result => Err(Failure::Refused { function, result }),
        }
    }
}

/// Only `zeDriverGetDefaultContext` returns a handle, which is null if there is none.
impl ReturnValue for ze_context_handle_t {
    type Value = Self;

    fn checked(self, function: &'static str) -> Result<Self, Failure> {
        if self.is_null() {
            return Err(Failure::Refused { function, result: ZE_RESULT_ERROR_UNSUPPORTED_FEATURE });
        }
        Ok(self)
    }
}
