//! Raw bindings of libfabric, versions 1.17 to 2.5, for both sides: what a provider implements
//! ([`fi_provider`]), and what a client calls.
//!
//! Names and meanings are those of the interface (<https://ofiwg.github.io/libfabric/>). Nothing is
//! linked. The crate has no other part of umf as a dependency. The library is called
//! `libfabric_sys`.
//!
//! # Versions
//!
//! The interface grows at the end of structures and of tables. Structures have the members of 1.17;
//! where a later version added members, a second structure has them too, and its name ends in the
//! version: [`fi_domain_attr_2_5`], [`fi_mr_attr_2_0`], [`fi_cq_err_entry_1_20`]. The documentation
//! of each added member, constant or operation names its first version.
//!
//! | allocated by | its layout follows | read an added member if |
//! |---|---|---|
//! | the library: [`fi_info`] and what it points to | the library's version | `fi_version()` is at least the member's version |
//! | the application: attributes, entries of queues | the version that it passed to `fi_getinfo` | `fi_fabric_attr.api_version` is at least the member's version |
//! | the provider: tables | the provider | the table's `size` is above the member's offset |
//!
//! Version 2.0 removed little from the layout. Numbers whose meaning changed are documented as
//! "until": bits 45, 46 and 48 of the capabilities.

#![allow(non_camel_case_types, reason = "the interface's names")]
#![allow(clippy::too_many_arguments, reason = "the interface's functions")]

#[macro_use]
pub mod layout;

mod constants;
mod enums;
mod errors;
mod info;
mod library;
mod messages;
mod objects;
mod provider;
mod requests;
mod tables;
mod transfers;

pub use constants::*;
pub use enums::*;
pub use errors::*;
pub use info::*;
pub use layout::make_version;
pub use library::{Functions, LIBRARY, Library, OpenError};
pub use messages::*;
pub use objects::*;
pub use provider::*;
pub use requests::*;
pub use tables::*;
pub use transfers::*;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
