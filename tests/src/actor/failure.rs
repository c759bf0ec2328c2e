//! [`Failure`]: an error as the line `err <variant> <message>`.

use std::fmt;

/// Name of the innermost variant of an error, and its text as a user reads it.
#[derive(Debug)]
pub(crate) struct Failure {
    variant: String,
    message: String,
}

impl Failure {
    pub(crate) fn new(variant: &str, message: impl fmt::Display) -> Self {
        Self { variant: variant.to_owned(), message: message.to_string() }
    }

    pub(crate) fn unknown(line: &str) -> Self {
        Self::new("Unknown", format!("no such command, block or mapping: {line}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.variant, self.message)
    }
}

/// Returns the name of an error's variant: the first word of its `Debug` text.
fn variant(error: &impl fmt::Debug) -> String {
    let text = format!("{error:?}");
    text.split(|character: char| !character.is_alphanumeric()).next().unwrap_or("").to_owned()
}

impl From<umf::ipc::Error> for Failure {
    fn from(error: umf::ipc::Error) -> Self {
        let variant = match &error {
            umf::ipc::Error::Decode(inner) => variant(inner),
            umf::ipc::Error::Memory(inner) => variant(inner),
            other => variant(other),
        };
        Self { variant, message: error.to_string() }
    }
}

impl From<umf::Error> for Failure {
    fn from(error: umf::Error) -> Self {
        let variant = match &error {
            umf::Error::Ipc(inner) => return inner.clone().into(),
            umf::Error::Memory(inner) => variant(inner),
            umf::Error::Domain(inner) => variant(inner),
            umf::Error::Link(inner) => variant(inner),
            umf::Error::Settings(inner) => variant(inner),
            other => variant(other),
        };
        Self { variant, message: error.to_string() }
    }
}

impl From<umf::domain::Error> for Failure {
    fn from(error: umf::domain::Error) -> Self {
        Self { variant: variant(&error), message: error.to_string() }
    }
}

impl From<umf::link::Error> for Failure {
    fn from(error: umf::link::Error) -> Self {
        Self { variant: variant(&error), message: error.to_string() }
    }
}

impl From<umf_core::Error> for Failure {
    fn from(error: umf_core::Error) -> Self {
        umf::Error::from(error).into()
    }
}

impl From<umf::ipc::DecodeError> for Failure {
    fn from(error: umf::ipc::DecodeError) -> Self {
        umf::Error::from(error).into()
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new("Io", error)
    }
}

impl From<std::num::TryFromIntError> for Failure {
    fn from(error: std::num::TryFromIntError) -> Self {
        Self::new("Number", error)
    }
}

impl From<std::num::ParseIntError> for Failure {
    fn from(error: std::num::ParseIntError) -> Self {
        Self::new("Number", error)
    }
}
