//! Regions that belong to a named set of processes and outlive their creator.
//!
//! ```
//! # fn main() -> umf::Result<()> {
//! # let name = format!("doc-{}", std::process::id());
//! let domain = umf::domain::join(&name)?;
//! let object = domain.create(1 << 20, 1)?;
//! println!("{}", object.id()); // other processes register for it
//! # Ok(())
//! # }
//! ```
//!
//! [`join`] uses the settings of this process: with `[ipc] directory` (`UMF_IPC_DIR`), processes
//! without a common network namespace find each other. `docs/domain.md` has the rules.

#[doc(inline)]
pub use umf_domain::{
    Domain, DomainSettings, Error, Object, ObjectId, ObjectInfo, ParseObjectIdError, Result,
};

/// Returns the settings of this process for its domains.
///
/// # Errors
/// As [`crate::importer()`].
pub fn domain_settings() -> crate::Result<DomainSettings> {
    let mut settings = DomainSettings::default();
    (settings.directory, settings.allow) = crate::process::rendezvous()?;
    Ok(settings)
}

/// Joins the domain with this name, with the settings of this process; see [`Domain::join`].
///
/// # Errors
/// As [`Domain::join`] and [`crate::importer()`].
pub fn join(name: &str) -> crate::Result<Domain> {
    Ok(Domain::join(name, domain_settings()?)?)
}
