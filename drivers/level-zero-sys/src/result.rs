//! What every function answers, and the error that a call is where that is not success.

use crate::base::ze_context_handle_t;

enums! {
    /// The answer of a function: success, or a number that the specification names.
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
    /// What it means, in a few words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            ZE_RESULT_SUCCESS => "success",
            ZE_RESULT_NOT_READY => "what was asked about is not done yet",
            ZE_RESULT_ERROR_DEVICE_LOST => "the device hung, was reset or is gone",
            ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY => "the host has not enough memory",
            ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY => "the device has not enough memory",
            ZE_RESULT_ERROR_MODULE_BUILD_FAILURE => "the module does not build; its log says why",
            ZE_RESULT_ERROR_MODULE_LINK_FAILURE => "the modules do not link; the log says why",
            ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET => "the device has to be reset first",
            ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE => "the device is asleep",
            ZE_RESULT_EXP_ERROR_DEVICE_IS_NOT_VERTEX => "the device is no vertex of the fabric",
            ZE_RESULT_EXP_ERROR_VERTEX_IS_NOT_DEVICE => "the vertex of the fabric is no device",
            ZE_RESULT_EXP_ERROR_REMOTE_DEVICE => "the vertex of the fabric is a device of another machine",
            ZE_RESULT_EXP_ERROR_OPERANDS_INCOMPATIBLE => "what is compared cannot be compared",
            ZE_RESULT_EXP_RTAS_BUILD_RETRY => "the ray tracing structure needs a larger buffer",
            ZE_RESULT_EXP_RTAS_BUILD_DEFERRED => {
                "the ray tracing structure is built when the operation is joined"
            }
            ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS => "not permitted",
            ZE_RESULT_ERROR_NOT_AVAILABLE => "in use by another, or removed",
            ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE => "something that the driver needs is missing",
            ZE_RESULT_WARNING_DROPPED_DATA => "some data may be missing",
            ZE_RESULT_ERROR_UNINITIALIZED => "the driver was not initialised",
            ZE_RESULT_ERROR_UNSUPPORTED_VERSION => "the version is not supported",
            ZE_RESULT_ERROR_UNSUPPORTED_FEATURE => "not supported by this driver",
            ZE_RESULT_ERROR_INVALID_ARGUMENT => "an argument is wrong",
            ZE_RESULT_ERROR_INVALID_NULL_HANDLE => "a handle is null or names nothing that is there",
            ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE => "the object is still in use by the device",
            ZE_RESULT_ERROR_INVALID_NULL_POINTER => "a pointer is null that may not be",
            ZE_RESULT_ERROR_INVALID_SIZE => "a size is wrong",
            ZE_RESULT_ERROR_UNSUPPORTED_SIZE => "a size is more than the device takes",
            ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT => "an alignment is not one that the device has",
            ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT => "an event or fence is not in a state for this",
            ZE_RESULT_ERROR_INVALID_ENUMERATION => "a value is not one of those that are defined",
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
            ZE_RESULT_WARNING_ACTION_REQUIRED => "something has to be done to finish this",
            ZE_RESULT_ERROR_INVALID_KERNEL_HANDLE => "the kernel cannot be used for this",
            ZE_RESULT_EXT_RTAS_BUILD_RETRY => "the ray tracing structure needs a larger buffer",
            ZE_RESULT_EXT_RTAS_BUILD_DEFERRED => {
                "the ray tracing structure is built when the operation is joined"
            }
            ZE_RESULT_EXT_ERROR_OPERANDS_INCOMPATIBLE => "what is compared cannot be compared",
            ZE_RESULT_ERROR_SURVIVABILITY_MODE_DETECTED => "the device's firmware has to be updated",
            ZE_RESULT_ERROR_ADDRESS_NOT_FOUND => "the address is not in this context",
            ZE_RESULT_QUERY_TRUE => "yes",
            ZE_RESULT_QUERY_FALSE => "no",
            ZE_RESULT_ERROR_INVALID_GRAPH => "the graph is not valid",
            ZE_RESULT_ERROR_GRAPH_CAPTURE_UNSUPPORTED => "this cannot be recorded into a graph",
            ZE_RESULT_ERROR_GRAPH_CAPTURE_INVALIDATED => "the recording is spoilt by what failed in it",
            ZE_RESULT_ERROR_GRAPH_CAPTURE_MERGE_ATTEMPT => "two recordings would become one",
            ZE_RESULT_ERROR_COMMAND_LIST_NOT_CAPTURING => "the list is not recorded into a graph",
            ZE_RESULT_ERROR_GRAPH_UNJOINED_FORKS => "a branch of the graph was never joined",
            ZE_RESULT_ERROR_GRAPH_INTERNAL_EVENT => {
                "the event belongs to a graph and is of no use outside it"
            }
            ZE_RESULT_ERROR_UNKNOWN => "the driver does not say why",
            _ => "an answer that this version of the specification does not know",
        }
    }

    /// Whether it is [`ZE_RESULT_SUCCESS`].
    #[must_use]
    pub fn is_success(self) -> bool {
        self == ZE_RESULT_SUCCESS
    }
}

/// The specification's name and what it means: `ZE_RESULT_ERROR_DEVICE_LOST (the device hung, was
/// reset or is gone)`.
impl core::fmt::Display for ze_result_t {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{self:?} ({})", self.text())
    }
}

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Neither the loader nor the driver has that function: it is older than the function is, or
    /// the function belongs to an extension that it lacks.
    #[error("{function}: this Level Zero loader or driver has no such function; a newer one may")]
    Absent {
        /// The function.
        function: &'static str,
    },
    /// The driver, or the loader before it, answered with this.
    #[error("{function}: {result}")]
    Refused {
        /// The function.
        function: &'static str,
        /// The answer. Not always an error: [`crate::ZE_RESULT_NOT_READY`] is an answer to a
        /// question.
        result: ze_result_t,
    },
}

impl Failure {
    /// The function that failed.
    #[must_use]
    pub fn function(self) -> &'static str {
        match self {
            Self::Absent { function } | Self::Refused { function, .. } => function,
        }
    }

    /// The answer as a number of the specification: an absent function is an unsupported feature.
    #[must_use]
    pub fn result(self) -> ze_result_t {
        match self {
            Self::Absent { .. } => ZE_RESULT_ERROR_UNSUPPORTED_FEATURE,
            Self::Refused { result, .. } => result,
        }
    }
}

/// What a function of the interface returns.
pub trait Answer {
    /// What a caller gets of it.
    type Value;

    /// The value, or that the function refused.
    ///
    /// # Errors
    /// The answer is anything but success.
    fn checked(self, function: &'static str) -> Result<Self::Value, Failure>;
}

impl Answer for ze_result_t {
    type Value = ();

    fn checked(self, function: &'static str) -> Result<(), Failure> {
        match self {
            ZE_RESULT_SUCCESS => Ok(()),
            result => Err(Failure::Refused { function, result }),
        }
    }
}

/// `zeDriverGetDefaultContext` alone returns a handle, null where there is none.
impl Answer for ze_context_handle_t {
    type Value = Self;

    fn checked(self, function: &'static str) -> Result<Self, Failure> {
        if self.is_null() {
            return Err(Failure::Refused { function, result: ZE_RESULT_ERROR_UNSUPPORTED_FEATURE });
        }
        Ok(self)
    }
}
