//! Which blocks were never freed, and where they were allocated, if a pool is set to tell (`leaks` in the settings).
//!
//! ```
//! # fn main() -> umf::Result<()> {
//! let checks = umf::CheckSettings::new().on_leaks(|report| println!("{report}"));
//! let pool = umf::Pool::builder().check(checks).leaks(umf::Leaks::Sites).build()?;
//! std::mem::forget(pool.allocate(100)?);
//! drop(pool); // says so, with the stack
//! # Ok(())
//! # }
//! ```

#[doc(inline)]
pub use umf_core::leaks::{CodePlace, LeakReport, LeakSite, LeakSize, LeakTime, Stack};

/// From here on stacks in reports have names of functions, files and lines, if this build has the
/// feature `sites`.
#[cfg(any(feature = "config", feature = "slab"))]
pub(crate) fn name_stacks() {
    #[cfg(feature = "sites")]
    umf_core::leaks::set_resolver(resolve);
}

#[cfg(all(feature = "sites", any(feature = "config", feature = "slab")))]
fn resolve(address: usize, tell: &mut dyn FnMut(CodePlace<'_>)) {
    backtrace::resolve(std::ptr::without_provenance_mut(address), |symbol| {
        // Without the hash behind it.
        let name = symbol.name().map(|name| format!("{name:#}"));
        let (file, line) = (symbol.filename().and_then(std::path::Path::to_str), symbol.lineno());
        tell(CodePlace { name: name.as_deref(), file, line, offset: None });
    });
}
