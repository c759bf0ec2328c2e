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

use std::path::Path;

#[doc(inline)]
pub use umf_core::leaks::{CodePlace, LeakReport, LeakSite, LeakSize, LeakTime, Stack};

/// From here on stacks in reports have names of functions, files and lines.
pub(crate) fn name_stacks() {
    umf_core::leaks::set_resolver(resolve);
}

fn resolve(address: usize, tell: &mut dyn FnMut(CodePlace<'_>)) {
    backtrace::resolve(std::ptr::without_provenance_mut(address), |symbol| {
        // Without the hash behind it.
        let name = symbol.name().map(|name| format!("{name:#}"));
        let (file, line) = (symbol.filename().and_then(Path::to_str), symbol.lineno());
        tell(CodePlace { name: name.as_deref(), file, line, offset: None });
    });
}
