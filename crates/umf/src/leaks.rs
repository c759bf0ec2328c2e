//! Reports of blocks that were never freed, with their allocation sites. The key `leaks` enables
//! them.
//!
//! ```
//! # fn main() -> umf::Result<()> {
//! let checks = umf::CheckSettings::new().on_leaks(|report| println!("{report}"));
//! let pool = umf::Pool::builder().check(checks).leaks(umf::Leaks::Sites).build()?;
//! std::mem::forget(pool.allocate(100)?);
//! drop(pool); // prints the report
//! # Ok(())
//! # }
//! ```

#[doc(inline)]
pub use umf_core::leaks::{CodePlace, LeakReport, LeakSite, LeakSize, LeakTime, Stack};

/// Installs the symbol resolver, with which reports show functions, files and lines. Does nothing
/// without the feature `sites`.
#[cfg(any(feature = "config", feature = "slab"))]
pub(crate) fn install_resolver() {
    #[cfg(feature = "sites")]
    umf_core::leaks::set_resolver(resolve);
}

#[cfg(all(feature = "sites", any(feature = "config", feature = "slab")))]
fn resolve(address: usize, report: &mut dyn FnMut(CodePlace<'_>)) {
    backtrace::resolve(std::ptr::without_provenance_mut(address), |symbol| {
        // The alternate form leaves out the hash of the symbol.
        let name = symbol.name().map(|name| format!("{name:#}"));
        let (file, line) = (symbol.filename().and_then(std::path::Path::to_str), symbol.lineno());
        report(CodePlace { name: name.as_deref(), file, line, offset: None });
    });
}
