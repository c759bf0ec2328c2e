//! [`Source`]: who makes buffers.

use rustix::io::Errno;
use umf_core::{Error, Result};
use umf_memory::page_size;

use crate::buffer::DmaBuf;
use crate::heap::Heap;
use crate::udmabuf::Udmabuf;

/// Who makes buffers, one for each region.
#[derive(Debug)]
pub(crate) enum Source {
    Udmabuf(Udmabuf),
    Heap(Heap),
}

impl Source {
    /// Sizes are rounded up to this.
    pub(crate) fn page_size(&self) -> usize {
        match self {
            Self::Udmabuf(device) => device.page_size(),
            Self::Heap(_) => page_size(),
        }
    }

    /// A buffer of at least `size` bytes, a multiple of the page size.
    pub(crate) fn make(&self, size: usize) -> Result<DmaBuf> {
        match self {
            Self::Udmabuf(device) => device.make(size),
            Self::Heap(heap) => heap.make(size),
        }
    }

    /// Who gives the pages, if it takes them from all that there are.
    pub(crate) const fn owner(&self) -> Option<&'static str> {
        match self {
            Self::Udmabuf(device) if device.has_huge_pages() => None,
            Self::Udmabuf(_) => Some("udmabuf"),
            Self::Heap(_) => Some("the dma-buf heap"),
        }
    }

    /// Whether its pages count as memory of the control group of whoever makes a buffer. Those of heaps are nobody's.
    pub(crate) const fn counts_against_groups(&self) -> bool {
        !matches!(self, Self::Heap(_))
    }
}

/// What to do about a device that cannot be opened.
pub(crate) struct Remedies {
    /// For messages.
    pub(crate) what: &'static str,
    /// The call.
    pub(crate) call: &'static str,
    /// Where it is not there.
    pub(crate) absent: &'static str,
    /// Where this process may not.
    pub(crate) refused: &'static str,
}

/// Why a device could not be opened.
pub(crate) fn open_error(errno: Errno, remedies: &Remedies) -> Error {
    let native = errno.raw_os_error();
    match errno {
        Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::NOTDIR => {
            Error::NotSupported { what: remedies.what, owner: remedies.absent, native }
        }
        Errno::ACCESS | Errno::PERM => Error::Native { call: remedies.call, native, hint: remedies.refused },
        _ => shortage(remedies.call, errno).unwrap_or(Error::native(remedies.call, native)),
    }
}

/// An error number that says that descriptors have run out.
pub(crate) fn shortage(call: &'static str, errno: Errno) -> Option<Error> {
    let hint = match errno {
        Errno::MFILE => "raise RLIMIT_NOFILE: each dma-buf is a descriptor of its own",
        Errno::NFILE => "the whole system is out of files: raise fs.file-max",
        _ => return None,
    };
    Some(Error::Native { call, native: errno.raw_os_error(), hint })
}
