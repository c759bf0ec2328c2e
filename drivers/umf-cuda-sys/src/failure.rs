//! Why a call did not do what it should.

use crate::{CUDA_ERROR_NOT_SUPPORTED, CUresult};

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
        /// The answer. Not always an error: [`crate::CUDA_ERROR_NOT_READY`] is an answer to a question.
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
