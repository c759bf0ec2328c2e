//! A DAX device (`/dev/daxX.Y`) as a provider: persistent, or other memory that the kernel does not manage.
//!
//! The device is mapped once, and regions are parts of that mapping, in pages of 2 MiB. The device itself is what other
//! processes get, so that every region can be exported.

mod import;
mod provider;
mod sys;

pub use import::DevDaxImport;
pub use provider::DevDaxProvider;
