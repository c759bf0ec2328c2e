//! The memory of an object: a memfd whose size is sealed.

use std::os::fd::OwnedFd;

use umf_os::ReceivedFd;
use umf_sync::failpoint;

use crate::sys::{self, File, SharedMapping};
use crate::{Error, Result};

/// New memory, mapped. `size` is rounded up to pages.
pub(crate) fn create(domain: &str, size: usize) -> Result<(OwnedFd, File, SharedMapping)> {
    let page = sys::page_size();
    let largest = sys::file_size_limit().min(isize::MAX as u64) & !(page as u64 - 1);
    let rounded =
        size.checked_next_multiple_of(page).filter(|&rounded| size > 0 && rounded as u64 <= largest);
    let rounded = rounded.ok_or(Error::BadSize { size, largest })?;
    let fd = sys::memfd(&format!("umf-domain/{domain}"), rounded as u64)
        .map_err(Error::system("memfd_create of a region"))?;
    failpoint!("domain.region_made");
    let mapping = SharedMapping::of_data(&fd, rounded).map_err(Error::system("mmap of a region"))?;
    let file = sys::sealed_file(&fd).map_err(Error::system("fstat of a region"))?;
    let file = file.ok_or_else(|| Error::system("sealing of a region")(rustix::io::Errno::OPNOTSUPP))?;
    Ok((fd, file, mapping))
}

/// What a participant sent for an object, mapped; `None` if it is not what the table says.
pub(crate) fn open(fd: ReceivedFd, expected: File) -> Result<Option<(OwnedFd, SharedMapping)>> {
    let found = sys::sealed_file(&fd).map_err(Error::system("fstat of a region"))?;
    let size = usize::try_from(expected.size).ok().filter(|&size| size > 0);
    match size {
        Some(size) if found == Some(expected) => {
            let fd = fd.into_inner();
            let mapping = map(&fd, size)?;
            Ok(Some((fd, mapping)))
        }
        _ => Ok(None),
    }
}

/// Maps a file of this size.
pub(crate) fn map(fd: &OwnedFd, size: usize) -> Result<SharedMapping> {
    let mapping = SharedMapping::of_data(fd, size).map_err(Error::system("mmap of a region"))?;
    failpoint!("domain.region_mapped");
    Ok(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for bad in [0, usize::MAX, isize::MAX as usize] {
            assert!(matches!(create("test", bad), Err(Error::BadSize { size, .. }) if size == bad), "{bad}");
        }
        let (fd, file, mapping) = create("test", 1).unwrap();
        assert_eq!((file.size, mapping.size()), (sys::page_size() as u64, sys::page_size()));
        let received = || ReceivedFd::from(fd.try_clone().unwrap());
        assert!(open(received(), file).unwrap().is_some());
        for other in [
            File { size: file.size * 2, ..file },
            File { size: 0, ..file },
            File { inode: file.inode + 1, ..file },
            File { device: file.device + 1, ..file },
        ] {
            assert!(open(received(), other).unwrap().is_none());
        }
    }
}
