//! [`Heap`]: dma-bufs from `/dev/dma_heap/<name>`.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use umf_core::{Error, Result};

use crate::buffer::DmaBuf;
use crate::source::{self, Remedies};
use crate::sys;

const REMEDIES: Remedies = Remedies {
    what: "this dma-buf heap",
    call: "open of a dma-buf heap",
    absent: "this system: look in /dev/dma_heap for those that there are (a kernel with CONFIG_DMABUF_HEAPS_SYSTEM has \"system\")",
    refused: "heaps belong to root: change the mode of /dev/dma_heap/* by a udev rule, or allow the device in the container",
};

/// A heap: a part of the machine's memory that some kind of device can reach. Thread-safe.
#[derive(Debug)]
pub struct Heap {
    device: OwnedFd,
}

impl Heap {
    /// Where heaps are.
    pub const FOLDER: &str = "/dev/dma_heap";

    /// Opens the heap of this name, `system` for one.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if there is none, [`Error::Native`] if this process may not use it; with what to do.
    /// [`Error::InvalidArgument`] for what is no name of a file.
    pub fn open(name: &str) -> Result<Self> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(Error::InvalidArgument {
                what: "dma-buf heap",
                why: "must be a name in /dev/dma_heap",
            });
        }
        let device = sys::open_device(&Path::new(Self::FOLDER).join(name))
            .map_err(|errno| source::open_error(errno, &REMEDIES))?;
        Ok(Self { device })
    }

    /// The heaps of this machine, by name.
    #[must_use]
    pub fn names() -> Vec<String> {
        let entries = std::fs::read_dir(Self::FOLDER).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    pub(crate) fn make(&self, size: usize) -> Result<DmaBuf> {
        let buffer = sys::heap::allocate(self.device.as_fd(), size as u64).map_err(|errno| match errno {
            Errno::NOMEM => {
                Error::OutOfMemory { size, owner: "the dma-buf heap", native: errno.raw_os_error() }
            }
            errno => source::shortage("ioctl(DMA_HEAP_IOCTL_ALLOC)", errno)
                .unwrap_or(Error::native("ioctl(DMA_HEAP_IOCTL_ALLOC)", errno.raw_os_error())),
        })?;
        DmaBuf::made(buffer)
    }
}
