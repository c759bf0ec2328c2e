//! Why a call did not do what it should.

use crate::handles::ze_context_handle_t;
use crate::result::{ZE_RESULT_ERROR_UNSUPPORTED_FEATURE, ZE_RESULT_SUCCESS, ze_result_t};

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Neither the loader nor the driver has that function: it is older than the function is, or the function belongs to an
    /// extension that it lacks.
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
        /// The answer. Not always an error: [`crate::ZE_RESULT_NOT_READY`] is an answer to a question.
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
