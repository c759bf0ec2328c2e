//! Private mappings.

use rustix::io::Errno;
use umf_os::{Mapping, Place, page_size};

use crate::sys;

/// Zeroed private memory at a multiple of `align`.
pub(crate) fn normal(size: usize, align: usize) -> Result<Mapping, Errno> {
    // What surely holds an aligned part, trimmed.
    let room = size.checked_add(align.saturating_sub(page_size())).ok_or(Errno::NOMEM)?;
    let base = sys::map_private(Place::Anywhere, room, None)?;
    // SAFETY: it was just mapped, for this.
    Ok(unsafe { Mapping::from_parts(base, room) }.trimmed(size, align))
}

/// Zeroed private memory on huge pages of `huge_page` bytes, of which `size` is a multiple.
pub(crate) fn huge(size: usize, align: usize, huge_page: usize) -> Result<Mapping, Errno> {
    // Not trimmed: every page that is mapped is taken from those that are reserved.
    // SAFETY: the function maps that much, for nobody else.
    unsafe { Mapping::placed(size, align, |place| sys::map_private(place, size, Some(huge_page))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_beyond_the_page() {
        for align in [1, 4096, 1 << 16, 1 << 21, 1 << 30] {
            for size in [4096, 12288, 1 << 21] {
                let mapping = normal(size, align).unwrap();
                assert_eq!((mapping.base().addr().get() % align, mapping.size()), (0, size));
                // SAFETY: both bytes lie in the mapping.
                unsafe {
                    mapping.base().write(1);
                    mapping.base().add(size - 1).write(1);
                }
            }
        }
        assert!(normal(1 << 60, 1 << 21).is_err());
        assert!(normal(usize::MAX & !4095, 1 << 21).is_err());
    }
}
